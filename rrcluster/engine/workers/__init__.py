"""One client at a time in each of several processes that share memory."""
