"""All settings of a run, made from flags or a flat mapping (sections.py says what there is), and back."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rrcluster.data.catalogue import SOURCES
from rrcluster.errors import ConfigError
from rrcluster.experiments.sections import (
    FIELDS,
    SECTIONS,
    DataConfig,
    FaultConfig,
    MethodConfig,
    OutputConfig,
    PrivacyConfig,
    TrainingConfig,
)


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run (or of several that differ in the seed)."""

    data: DataConfig = field(default_factory=DataConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        if not self.privacy.secure:
            if self.output.seed is None:
                raise ConfigError("seed must be a whole number; only secure = true goes without one.")
            return
        if self.output.seed or self.output.seeds:
            raise ConfigError("secure draws from the operating system and takes no seed; leave seed and seeds out.")
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

    def settled(self) -> "RunConfig":
        """With every `auto` that a later version could read otherwise replaced by what it means today: the network."""
        if self.method.model != "auto":
            return self
        model = SOURCES[self.data.data].usual_model
        return replace(self, method=replace(self.method, model=model))  # type: ignore[arg-type]  # a plain string there

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


def from_flat(settings: dict[str, Any], *, source: str = "config", settled: bool = True) -> RunConfig:
    """A config from a flat mapping, every name and type checked; `source` names the file in errors.

    Not `settled` is for those who change it further.
    """
    from rrcluster.experiments.coerce import coerce

    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in settings.items():
        if name not in FIELDS:
            raise ConfigError(f"{source}: setting {name!r} is not known; {closest(str(name))}")
        sections[FIELDS[name]][name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    config = RunConfig(**{name: SECTIONS[name](**values) for name, values in sections.items()})
    return config.settled() if settled else config


def closest(name: str) -> str:
    """What an unknown setting may have been meant as."""
    from difflib import get_close_matches

    near = get_close_matches(name, FIELDS, n=1)
    return f"did you mean {near[0]!r}?" if near else "see `rrcluster run --help` for all settings."
