"""Mixed effects: one shared model (or one per cluster) and a random effect of each client, learnt from questions."""
