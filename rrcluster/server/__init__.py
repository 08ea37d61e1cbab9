"""How clients choose clusters, how clusters are rebalanced, and the schedule of the first rounds."""
