"""Secure aggregation: the server learns the sum of the clients' vectors alone. Bytes and arrays, no network."""
