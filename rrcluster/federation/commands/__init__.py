"""The actions of `rrcluster federation`."""
