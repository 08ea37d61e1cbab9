"""Settings, run folders, and runs from config to result."""
