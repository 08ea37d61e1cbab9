"""The paper's tables and figures: what is run, what was published, and ours beside theirs."""
