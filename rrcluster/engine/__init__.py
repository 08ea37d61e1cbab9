"""Runs clients: one at a time (`reference`), or many in one tensor program (`batched`)."""
