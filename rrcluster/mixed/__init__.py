"""Mixed effects: a shared model (or one per cluster) and each client's random effects, fitted from released answers."""
