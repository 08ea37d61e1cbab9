"""A federation: the server's rounds over real clients, which answer over a transport."""
