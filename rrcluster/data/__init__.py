"""Datasets, partitions and the federated arrays the engine trains on."""
