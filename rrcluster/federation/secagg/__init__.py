"""Secure aggregation: the server learns only the sum of the clients' vectors. Bytes and arrays, no network."""
