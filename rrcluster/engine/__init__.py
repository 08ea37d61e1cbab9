"""Runs clients: one at a time (`reference`), many at once (`batched`) or in several processes (`workers`)."""
