"""Training with real members, each on its own data: agreement, daemons, secure sums, transports."""

from rrcluster.registry import Entry

COMMAND = Entry(
    "federation",
    "rrcluster.federation.federation_command:main",
    "train with real members, each on its own data: enrol, sign, serve, check",
)
