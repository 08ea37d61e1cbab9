"""What clients remember of their own earlier rounds. It is in no release, and on disk only in checkpoint/."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rrcluster.data.federated import Cohort
from rrcluster.methods.method import Clients
from rrcluster.types import Array


@dataclass(frozen=True)
class ClientMemory:
    """One row of numbers per client that has taken part. A changed memory is a new one, so a round can be undone."""

    width: int
    rows: Mapping[int, Array] = field(default_factory=dict)

    def recall(self, cohort: Cohort) -> Clients:
        """The clients of a cohort with what each remembers; zeros for who remembers nothing."""
        memory = np.zeros((len(cohort.clients), self.width), dtype=np.float32)
        known = np.array([client in self.rows for client in cohort.clients.tolist()], dtype=bool)
        for place in np.flatnonzero(known):
            memory[place] = self.rows[int(cohort.clients[place])]
        return Clients(cohort, memory, known)

    def updated(self, clients: Array, rows: Array) -> "ClientMemory":
        """The memory after these clients' round."""
        if self.width == 0:
            return self
        fresh = {int(client): np.array(row, dtype=np.float32) for client, row in zip(clients, rows, strict=True)}
        return ClientMemory(self.width, {**self.rows, **fresh})

    def tensors(self) -> dict[str, Array]:
        """As two arrays, for the checkpoint."""
        ids = np.array(sorted(self.rows), dtype=np.int64)
        rows = [self.rows[client] for client in ids.tolist()]
        return {"memory.clients": ids, "memory.rows": np.array(rows, dtype=np.float32).reshape(len(ids), self.width)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> "ClientMemory":
        """Back from the checkpoint."""
        ids, rows = tensors["memory.clients"], tensors["memory.rows"]
        return cls(int(rows.shape[1]), dict(zip(ids.tolist(), rows, strict=True)))
