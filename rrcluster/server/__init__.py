"""The server's half of a run: choice rules, rebalancing, the initial rounds, and the loop over rounds."""
