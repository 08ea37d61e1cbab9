"""The version, in a module of its own so that it can be read without importing anything else."""

__version__ = "0.2.0.dev0"
