"""All settings of a run, made from flags or a flat mapping (settings.py says what there is), and back."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rrcluster import registry
from rrcluster.errors import ConfigError
from rrcluster.settings import (
    FIELDS,
    REMOVED,
    SECTIONS,
    DataSettings,
    FaultSettings,
    LocalSettings,
    MethodSettings,
    OutputSettings,
    PrivacySettings,
    ServerSettings,
)


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run (or of several that differ in the seed)."""

    data: DataSettings = field(default_factory=DataSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    output: OutputSettings = field(default_factory=OutputSettings)

    def __post_init__(self) -> None:
        if not self.privacy.secure:
            if self.output.seed is None:
                raise ConfigError("seed must be a whole number; only secure = true goes without one.")
            return
        if self.output.seed or self.output.seeds:
            raise ConfigError("secure draws from the operating system and takes no seed; leave seed and seeds out.")
        if self.output.tensorboard:
            raise ConfigError(
                "secure writes no TensorBoard events: they carry the time of every round, which depends on who took "
                "part; leave tensorboard out."
            )
        if self.output.evaluate_every is not None:
            raise ConfigError(
                "secure evaluates nothing on raw client data; leave evaluate_every out, or rehearse without secure."
            )

    @property
    def seed(self) -> int | None:
        """The seed of everything random; None for a secure run, which has none (a default of 0 counts for nothing)."""
        return None if self.privacy.secure else self.output.seed

    @property
    def label(self) -> str:
        """The run's name: the one given, or one made from method and budget."""
        if self.output.name:
            return self.output.name
        method, privacy = self.method, self.privacy
        size = f"-B{method.min_cluster_size}" if method.min_cluster_size else ""
        budget = "" if privacy.target_epsilon is None else f"-eps{privacy.target_epsilon:g}"
        noise = "" if privacy.noise_multiplier is None else f"-noise{privacy.noise_multiplier:g}"
        return f"{self.data.data}-{method.algorithm}-{privacy.mechanism}{size}{budget}{noise}"

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return self.output.out or Path("runs") / self.label

    def resolved(self) -> "RunConfig":
        """Resolve `model = auto`, so that config.yaml does not depend on future defaults."""
        if self.method.model != "auto":
            return self
        usual = registry.DATASETS.fact(self.data.data, "usual_model", "linear")
        return replace(self, method=replace(self.method, model=usual))

    def with_seed(self, seed: int, out: Path) -> "RunConfig":
        """This config for one seed alone, written to `out`."""
        return replace(self, output=replace(self.output, seed=seed, seeds=(), out=out, name=self.label))

    def flat(self) -> dict[str, Any]:
        """All settings as one flat mapping, paths and tuples as plain YAML values."""
        merged: dict[str, Any] = {}
        for section in fields(self):
            merged.update(asdict(getattr(self, section.name)))
        merged["out"] = None if self.output.out is None else str(self.output.out)
        merged["seed"], merged["seeds"] = self.seed, list(self.output.seeds)
        return merged


def from_flat(settings: dict[str, Any], *, source: str = "config", resolved: bool = True) -> RunConfig:
    """A config from a flat mapping, every name and type checked; `source` names the file in errors.

    Not `resolved` is for those who change it further.
    """
    from rrcluster.experiments.coerce import coerce

    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in settings.items():
        if name in REMOVED:
            raise ConfigError(f"{source}: setting {name!r} is gone: {REMOVED[name]}.")
        if name not in FIELDS:
            raise ConfigError(f"{source}: setting {name!r} is not known; {closest(str(name))}")
        sections[FIELDS[name]][name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    config = RunConfig(**{name: SECTIONS[name](**values) for name, values in sections.items()})
    return config.resolved() if resolved else config


def closest(name: str) -> str:
    """What an unknown setting may have been meant as."""
    from difflib import get_close_matches

    near = get_close_matches(name, FIELDS, n=1)
    return f"did you mean {near[0]!r}?" if near else "see `rrcluster run --help` for all settings."
