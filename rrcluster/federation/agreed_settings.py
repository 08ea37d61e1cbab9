"""Which settings a federation can agree on, and how those of columns describe the members' tables. Without torch."""

from collections.abc import Mapping
from typing import Any

from rrcluster import registry
from rrcluster.data.cells import cell_columns
from rrcluster.data.federated import TableColumns
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.federation.agreement import SampleShape
from rrcluster.runs.config import coerce
from rrcluster.settings import AFFECTS, FIELDS, ColumnSettings, declared_columns, names_file, refuse_files

MEMBERS = "members"  # the name of data that every member brings itself
_OWN_COLUMNS = ("client", "test_column", "test_share", "time", "group")  # a member's own business
_NOT_TRAINED_TOGETHER = ("local", "oracle")


def register_members() -> None:
    """Make the name of the members' data known to the settings of this process."""
    if MEMBERS not in registry.DATASETS:
        facts = {"divided": False}
        registry.DATASETS.register(registry.Entry(MEMBERS, None, "members' own data", facts))


def check_settings(settings: Mapping[str, Any], *, secure: bool) -> None:
    """Refuse settings that mean nothing to a member, or that a member could not honour."""
    for name, value in settings.items():
        if name not in FIELDS or FIELDS[name] == "columns":
            raise ConfigError(f"the agreement has no setting {str(name)[:40]!r}; all sides need the same version.")
        if AFFECTS[name] != "result":
            raise ConfigError(
                f"{name} says where or how a side runs, which each decides for itself; leave it out of the agreement."
            )
        if name == "start_from" and value is not None:
            raise ConfigError("start_from is a folder of one machine, which members cannot check; leave it out.")
    data = settings.get("data")
    if not isinstance(data, str) or names_file(data):
        raise ConfigError(
            f"data = {data!r:.60} must be `{MEMBERS}` (every member brings its own), or the name of a dataset for a "
            "rehearsal; an agreement holds no path."
        )
    for name in ("dropout", "hostile", "new_clients"):
        if settings.get(name, 0) != 0:
            raise ConfigError(f"{name} is for simulations, and the clients of a federation are real; leave it out.")
    if settings.get("algorithm") in _NOT_TRAINED_TOGETHER:
        raise ConfigError(f"algorithm = {settings['algorithm']} is a reference point of simulations; choose another.")
    if data == MEMBERS and not settings.get("secure"):
        raise PrivacyError(
            f"data = {MEMBERS} are real, and seeded noise protects nobody; set secure: true, or rehearse on a dataset."
        )
    if data == MEMBERS and (settings.get("participation") == "schedule" or (settings.get("slots") or 1) > 1):
        raise PrivacyError(
            "participation = schedule gives slots to numbers, and members number their clients in order, so that "
            "without one client others would have other slots, which add-remove does not cover; use participation = "
            "everybody."
        )
    if secure and not settings.get("secure"):
        raise PrivacyError("mode = secure draws noise shares from the operating system; set secure: true.")


def check_samples(samples: SampleShape) -> None:
    """Refuse rules for columns that are none, or that give other samples than were agreed on."""
    for name in samples.columns:
        if FIELDS.get(name) != "columns":
            raise ConfigError(f"the agreement has no rule {str(name)[:40]!r} for columns; all sides need one version.")
    if samples.columns and table_shape(samples.columns) != samples:
        raise ConfigError("the agreed rules for columns give other samples than the agreement states; do not sign it.")


def table_shape(columns: Mapping[str, Any]) -> SampleShape:
    """What tables give, by the declared rules alone: one input per number and per value of a vocabulary."""
    for name in _OWN_COLUMNS:
        if columns.get(name):
            raise ConfigError(f"{name} is a matter of each member's own table; leave it out of the agreement.")
    declared = agreed_rules(columns).without_dates()
    if not declared.features or declared.target is None:
        raise ConfigError(
            "tables of several members need the same inputs; list features (feature columns) and target in the "
            "settings, or declare input_shape and num_classes for arrays."
        )
    if not declared.classes and not declared.regression:
        raise ConfigError("classes are a public list that all members share; declare classes, or regression: true.")
    width = sum(len(declared.vocabulary[name]) + 1 if name in declared.vocabulary else 1 for name in declared.features)
    if declared.encoding == "cells":  # values and codes
        width *= 2
    return SampleShape((width,), len(declared.classes), columns=dict(columns))


def agreed_cells(columns: Mapping[str, Any]) -> TableColumns | None:
    """What is public of cells that decide for themselves, by the agreed rules; None where columns are declared."""
    return cell_columns(agreed_rules(columns)) if columns.get("encoding") == "cells" else None


def agreed_rules(columns: Mapping[str, Any]) -> ColumnSettings:
    """The rules for columns as settings."""
    refuse_files(columns)
    where = "the rules for columns"
    return declared_columns(**{name: coerce(ColumnSettings, name, columns[name], source=where) for name in columns})


def member_columns(samples: SampleShape, own: ColumnSettings) -> ColumnSettings:
    """The agreed rules for a member's table, with what is its own: the client's column, and rows to test on."""
    if not samples.columns:
        raise ConfigError("the agreement has no rules for tables; give --data as an .npz file or module:function.")
    for name in samples.columns:
        if getattr(own, name) not in (getattr(ColumnSettings(), name), None):
            raise ConfigError(f"{name} was agreed on by everybody; leave it out.")
    agreed = {name: value for name, value in samples.columns.items() if name not in _OWN_COLUMNS}
    own_rules = {name: getattr(own, name) for name in (*_OWN_COLUMNS, "types") if getattr(own, name) not in (None, ())}
    return declared_columns(**agreed, **own_rules)
