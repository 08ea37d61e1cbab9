"""Simulates whole runs: rounds, clients' memory, failing and hostile clients, and evaluation."""
