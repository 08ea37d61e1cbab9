"""Runs clients: one at a time (`reference`) or many at once (`batched`), and simulates whole runs."""
