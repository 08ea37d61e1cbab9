"""Simulates whole runs: rounds, what clients remember, clients that fail or lie, and evaluation."""
