"""The settings a federation can agree on, and how column rules describe the members' tables. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from rrcluster import registry
from rrcluster.data.cells import cell_columns
from rrcluster.data.federated import TableColumns
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.federation.agreement import SampleShape
from rrcluster.runs.config import coerce
from rrcluster.settings import AFFECTS, FIELDS, ColumnSettings, declared_columns, names_file, refuse_files

MEMBERS = "members"  # the name of data that every member supplies
_OWN_COLUMNS = ("client", "test_column", "test_share", "time", "group")  # left to each member
_NOT_TRAINED_TOGETHER = ("local", "oracle")


def register_members() -> None:
    """Register the name of the members' data among this process's data sources."""
    if MEMBERS not in registry.DATASETS:
        facts = {"divided": False}
        registry.DATASETS.register(registry.Entry(MEMBERS, None, "members' own data", facts))


def check_settings(settings: Mapping[str, Any], *, secure: bool) -> None:
    """Refuse settings that are meaningless to a member, or that a member could not honour."""
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
            f"data = {data!r:.60} must be `{MEMBERS}` (every member brings its own), or the name of a dataset "
            "for a rehearsal; an agreement contains no path."
        )
    for name in ("dropout", "hostile", "new_clients"):
        if settings.get(name, 0) != 0:
            raise ConfigError(f"{name} is for simulations, and the clients of a federation are real; leave it out.")
    if settings.get("algorithm") in _NOT_TRAINED_TOGETHER:
        raise ConfigError(f"algorithm = {settings['algorithm']} is a reference point of simulations; choose another.")
    if data == MEMBERS and not settings.get("secure"):
        raise PrivacyError(
            f"data = {MEMBERS} means real clients, whom seeded noise does not protect; set secure: true, or "
            "rehearse on a dataset."
        )
    if data == MEMBERS and (settings.get("participation") == "schedule" or (settings.get("slots") or 1) > 1):
        raise PrivacyError(
            "participation = schedule assigns slots by number, and members number their clients in order: "
            "without one client others would get other slots, which add-remove does not cover; use "
            "participation = everybody."
        )
    if secure and not settings.get("secure"):
        raise PrivacyError("mode = secure draws noise shares from the operating system; set secure: true.")


def check_samples(samples: SampleShape) -> None:
    """Refuse invalid rules for columns, and rules that give other samples than the agreement states."""
    for name in samples.columns:
        if FIELDS.get(name) != "columns":
            raise ConfigError(f"the agreement has no rule {str(name)[:40]!r} for columns; all sides need one version.")
    if samples.columns and table_shape(samples.columns) != samples:
        raise ConfigError("the agreed rules for columns give other samples than the agreement states; do not sign it.")


def table_shape(columns: Mapping[str, Any]) -> SampleShape:
    """The shape of a table's samples, from the declared rules alone: one input per number and per vocabulary value."""
    for name in _OWN_COLUMNS:
        if columns.get(name):
            raise ConfigError(f"{name} is a matter of each member's own table; leave it out of the agreement.")
    rules = agreed_rules(columns).without_dates()
    if not rules.features or rules.target is None:
        raise ConfigError(
            "tables of several members need the same inputs; list features (feature columns) and target in the "
            "settings, or declare input_shape and num_classes for arrays."
        )
    if not rules.classes and not rules.regression:
        raise ConfigError("classes are a public list that all members share; declare classes, or regression: true.")
    width = sum(len(rules.vocabulary[name]) + 1 if name in rules.vocabulary else 1 for name in rules.features)
    if rules.encoding == "cells":  # values and codes
        width *= 2
    return SampleShape((width,), len(rules.classes), columns=dict(columns))


def agreed_cells(columns: Mapping[str, Any]) -> TableColumns | None:
    """Public description of cells that are encoded one by one, by the agreed rules; None for declared columns."""
    return cell_columns(agreed_rules(columns)) if columns.get("encoding") == "cells" else None


def agreed_rules(columns: Mapping[str, Any]) -> ColumnSettings:
    """The rules for columns as settings."""
    refuse_files(columns)
    where = "the rules for columns"
    return declared_columns(**{name: coerce(ColumnSettings, name, columns[name], source=where) for name in columns})


def member_columns(samples: SampleShape, own: ColumnSettings) -> ColumnSettings:
    """The agreed rules for a member's table, with its own options: the client column and the test rows."""
    if not samples.columns:
        raise ConfigError("the agreement has no rules for tables; give --data as an .npz file or module:function.")
    for name in samples.columns:
        if getattr(own, name) not in (getattr(ColumnSettings(), name), None):
            raise ConfigError(f"{name} is part of the agreement; leave it out.")
    rules = {name: value for name, value in samples.columns.items() if name not in _OWN_COLUMNS}
    own_rules = {name: getattr(own, name) for name in (*_OWN_COLUMNS, "types") if getattr(own, name) not in (None, ())}
    return declared_columns(**rules, **own_rules)
