"""Estimators with scikit-learn's interface: `fit(X, y, groups=clients)`, `predict(X, groups=clients)`."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.data.frames import from_frame
from rrcluster.errors import ConfigError, DataError, install_extra
from rrcluster.runs.load import TrainedModels, load
from rrcluster.runs.predictions import Predictions
from rrcluster.runs.run import run
from rrcluster.settings import COLUMN_RULES
from rrcluster.types import Array

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils import ClassifierTags, RegressorTags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
except ImportError:
    raise ConfigError(f"estimators need scikit-learn; {install_extra('sklearn')}.") from None

_CLIENT, _TARGET = "(client)", "(target)"  # columns beside the features
_FILES = ("models.safetensors", "summary.json")


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """The common part of both estimators."""

    def __init__(
        self,
        epsilon: float = 4.0,
        *,
        delta: float | None = None,
        random_state: int = 0,
        folder: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon, self.delta, self.random_state, self.folder = epsilon, delta, random_state, folder
        self.settings = settings

    def __sklearn_tags__(self) -> Any:
        tags = BaseEstimator.__sklearn_tags__(self)
        tags.input_tags.allow_nan = tags.input_tags.string = tags.target_tags.required = True
        return tags

    def _trained(self, X: Any, y: Any, groups: Any, about: Mapping[str, Any]) -> Any:
        """Train on columns of cells; without `groups` every row is a separate client."""
        table = _columns(self, X) | {_TARGET: y}
        table[_CLIENT] = np.arange(len(y)) if groups is None else _listed(groups)
        check_consistent_length(table[_TARGET], table[_CLIENT])
        chosen: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta, "seed": self.random_state}
        chosen |= {"algorithm": "mixed-effects", "references": False} | dict(self.settings or {})
        rules: dict[str, Any] = {name: chosen.pop(name) for name in COLUMN_RULES & chosen.keys()}
        data = from_frame(table, _CLIENT, _TARGET, encoding="cells", test_share=0.0, **about, **rules)
        with tempfile.TemporaryDirectory() as place:
            out = self.folder or str(Path(place) / "run")
            made = run(data=data, out=out, progress=False, **chosen)
            self.files_ = {name: (made.folder / name).read_bytes() for name in _FILES}
        self.epsilon_, self.labelled_ = made.epsilon, data
        return self

    @property
    def models_(self) -> TrainedModels:
        """The models of the run."""
        check_is_fitted(self, "files_")
        with tempfile.TemporaryDirectory() as place:
            for name, content in self.files_.items():
                (Path(place) / name).write_bytes(content)
            return load(place)

    def _scored(self, X: Any, groups: Any) -> Predictions:
        check_is_fitted(self, "files_")
        table = _columns(self, X, reset=False)
        table |= {} if groups is None else {_CLIENT: _listed(groups)}
        scored = self.models_.predict(table, labelled=self.labelled_ if groups is not None else None)
        assert isinstance(scored, Predictions)
        return scored


class RRClusterClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Classifies rows; trained with client-level differential privacy and personalised to clients.

    `groups` names the client of each row; without it every row is a separate client. `settings` are those of
    `rrcluster.run`; the classes are those of y, which no guarantee covers unless they are public. A training row has no
    part in its own prediction (`TrainedModels.predict`). `epsilon_` is the cost of training; `folder` keeps the run
    with its statement.
    """

    def __sklearn_tags__(self) -> Any:
        tags = _Estimator.__sklearn_tags__(self)
        # as noisy as few clients make it
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(poor_score=True)
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> "RRClusterClassifier":
        """Train on rows X, a frame or an array, and their classes y."""
        _, labels = validate_data(self, X, y, dtype=None, ensure_all_finite="allow-nan")
        check_classification_targets(labels)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError("y holds one class, which leaves nothing to tell apart; give rows of all classes.")
        names = [str(name) for name in self.classes_]
        self._trained(X, [names[place] for place in places], groups, {"classes": names})
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """(n, classes) probabilities, in the order of `classes_`."""
        return self._scored(X, groups).outputs

    def predict(self, X: Any, groups: Any = None) -> Array:
        """(n,) the most probable class."""
        places = self.predict_proba(X, groups).argmax(axis=1)
        return np.asarray(self.classes_[places])

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> float:
        """Accuracy on rows X of these clients, whose classes are y."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class RRClusterRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Predicts numbers for rows; otherwise like `RRClusterClassifier`."""

    def __sklearn_tags__(self) -> Any:
        tags = _Estimator.__sklearn_tags__(self)
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags(poor_score=True)
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> "RRClusterRegressor":
        """Train on rows X, a frame or an array, and their numbers y."""
        _, numbers = validate_data(self, X, y, dtype=None, ensure_all_finite="allow-nan", y_numeric=True)
        self._trained(X, np.asarray(numbers, dtype=np.float64), groups, {"regression": True})
        return self

    def predict(self, X: Any, groups: Any = None) -> Array:
        """(n,) numbers."""
        return self._scored(X, groups).outputs

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> float:
        """R2 on rows X of these clients, whose numbers are y."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))


def _columns(estimator: Any, X: Any, *, reset: bool = True) -> dict[str, Any]:
    """The features by name; those of an array are x0, x1, ..."""
    rows = validate_data(estimator, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
    names = getattr(estimator, "feature_names_in_", [f"x{place}" for place in range(rows.shape[1])])
    has_names = hasattr(X, "columns") and hasattr(estimator, "feature_names_in_")
    columns = [X[name] for name in names] if has_names else list(rows.T)
    return {str(name): _listed(column) for name, column in zip(names, columns, strict=True)}


def _listed(cells: Any) -> Any:
    """A column as a list; object columns as text, cell by cell."""
    values = np.asarray(cells)
    if values.dtype != object:
        return values
    return [None if cell is None or cell != cell else str(cell) for cell in values.tolist()]
