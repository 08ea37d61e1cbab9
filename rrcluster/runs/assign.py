"""Which client is in which cluster: a table for whoever has the clients' data, and private like that data."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.errors import PrivacyError
from rrcluster.storage import explain_write, replace_file
from rrcluster.types import Array


@dataclass(frozen=True, eq=False)
class Assignment:
    """One row per client. Indexed, compared or given to numpy it is the array of cluster numbers."""

    client: Array  # (M,) ids or names
    cluster: Array  # (M,) the cluster of least score, which under IFCA is the loss
    margin: Array  # (M,) how much worse the second best cluster is; NaN where there is only one

    @classmethod
    def of_scores(cls, client: Array, scores: Array) -> "Assignment":
        """From each client's score (M, k) of each cluster; less is better."""
        ordered = np.sort(scores, axis=1)
        margin = ordered[:, 1] - ordered[:, 0] if scores.shape[1] > 1 else np.full(len(scores), np.nan)
        return cls(np.asarray(client), scores.argmin(axis=1), margin)

    def __repr__(self) -> str:
        """Short: how many clients each cluster has, not who they are."""
        return f"Assignment({len(self)} clients, {np.bincount(self.cluster).tolist()} in clusters 0, 1, ...)"

    @property
    def shape(self) -> tuple[int]:
        """(M,)."""
        return (len(self.cluster),)

    def __len__(self) -> int:
        """M."""
        return len(self.cluster)

    def __iter__(self) -> Iterator[Any]:
        """Cluster after cluster."""
        return iter(self.cluster)

    def __getitem__(self, place: Any) -> Any:
        """The cluster of one client, or of several, by position."""
        return self.cluster[place]

    def __eq__(self, other: object) -> Any:
        """Client by client."""
        return self.cluster == other

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The cluster numbers."""
        return np.array(self.cluster, dtype=dtype) if copy or dtype is not None else self.cluster

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns client, cluster and margin."""
        return import_module("pandas").DataFrame(
            {"client": self.client, "cluster": self.cluster, "margin": self.margin}
        )

    def to_json(self) -> str:
        """The table as JSON, a list of rows."""
        margins = [None if np.isnan(margin) else float(margin) for margin in self.margin]
        rows = zip(self.client.tolist(), self.cluster.tolist(), margins, strict=True)
        return json.dumps(
            [{"client": client, "cluster": cluster, "margin": margin} for client, cluster, margin in rows]
        )

    def write_csv(self, path: str | Path) -> Path:
        """Write the table, readable by its owner alone. Not into a run folder: those are made to be passed on."""
        target = Path(path)
        check_outside_runs(target)
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["client", "cluster", "margin"])
        for client, cluster, margin in zip(self.client.tolist(), self.cluster.tolist(), self.margin, strict=True):
            rows.writerow([client, cluster, "" if np.isnan(margin) else f"{margin:.6g}"])
        with explain_write(target):
            replace_file(target, text.getvalue(), mode=0o600)
        return target


def check_outside_runs(path: Path) -> None:
    """Refuse a file inside a run folder, links resolved."""
    for folder in path.resolve().parents:
        if (folder / "privacy.json").exists() and (folder / "config.yaml").exists():
            raise PrivacyError(
                f"{path} lies inside the run folder {folder}. Who is in which cluster is private, and a run folder is "
                "made to be passed on; write the table somewhere else."
            )
