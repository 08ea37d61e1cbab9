"""A round's messages: what the server tells clients, and what they report. Models travel as float32, as engines use."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from rrcluster.client import ClientKeys
from rrcluster.clusters.choice import ChoiceRules
from rrcluster.clusters.survey import survey_size
from rrcluster.clusters.survey_question import SurveyQuestion
from rrcluster.errors import ProtocolError
from rrcluster.federation.wire import Letter
from rrcluster.privacy.mechanism import Mechanism
from rrcluster.privacy.reports import Reports, as_numpy
from rrcluster.secagg.masks import digest
from rrcluster.server import Guidance
from rrcluster.types import Array, Models

_Shape = tuple[str, tuple[int | None, ...]]


def task(
    name: str,
    guidance: Guidance,
    mechanism: Mechanism,
    facts: dict[str, Any],
    *,
    keys: ClientKeys | None,
    **more: Array,
) -> Letter:
    """What clients of a round are told; `keys` only in seeded runs, where the simulator must be matched."""
    rules = guidance.rules
    arrays: dict[str, Array] = {
        "shared": guidance.models.shared.astype(np.float32),
        "clustered": guidance.models.clustered.astype(np.float32),
        "prices": np.asarray(rules.prices, dtype=np.float64),
        "transition": np.asarray(rules.transition, dtype=np.float64),
    }
    if mechanism.loss_bound is not None:
        arrays["average shared"] = guidance.average.shared.astype(np.float32)
        arrays["average clustered"] = guidance.average.clustered.astype(np.float32)
    if (question := guidance.question) is not None:
        arrays |= {"start": question.start.astype(np.float32), "basis": question.basis, "centres": question.centres}
    own_facts = {
        "round": guidance.round_index,
        "temperature": rules.temperature,
        "num_open": rules.num_open,
        "keys": None if keys is None else asdict(keys),
    }
    return Letter(name, {**own_facts, **facts}, {**arrays, **more})


def task_digest(letter: Letter, *apart: str) -> bytes:
    """The digest of what a task tells, but for arrays that differ from member to member: all must be told the same."""
    arrays = [part for name in sorted(set(letter.arrays) - set(apart)) for part in _named_bytes(name, letter)]
    return digest(letter.name.encode(), json.dumps(dict(letter.facts), sort_keys=True).encode(), *arrays)


def _named_bytes(name: str, letter: Letter) -> tuple[bytes, bytes]:
    values = np.ascontiguousarray(letter.arrays[name])
    return f"{name} {values.dtype} {values.shape}".encode(), values.tobytes()


def read_task(
    letter: Letter, name: str, mechanism: Mechanism, *, stage: str | None = None, **more: _Shape
) -> tuple[Guidance, ClientKeys | None]:
    """What the server told; ProtocolError unless every part has the shape that the agreed settings give it.

    `stage` is what the agreed survey asks in the round.
    """
    if stage == "start" and "centres" not in letter.arrays:
        stage = None  # the survey could not tell groups: clients choose and train as without one
    k, width = mechanism.num_clusters, mechanism.coordinates
    models: dict[str, _Shape] = {"shared": ("f4", (width.shared,)), "clustered": ("f4", (k, width.clustered))}
    wanted = models | {"prices": ("f8", (k,)), "transition": ("f8", (k, k))}
    if mechanism.loss_bound is not None:
        wanted |= {f"average {part}": shape for part, shape in models.items()}
    if stage is not None:
        sketched, _ = survey_size(width.clustered, k)
        wanted |= {
            "start": ("f4", (width.clustered,)),
            "basis": ("f8", (sketched, None)),
            "centres": ("f8", (None, None)),
        }
    arrays, facts = letter.expect(name, **wanted, **more).arrays, letter.facts
    try:
        rules = ChoiceRules(
            arrays["prices"],
            float(facts["temperature"]),
            arrays["transition"],
            None if facts["num_open"] is None else int(facts["num_open"]),
        )
        keys = facts["keys"]
        client_keys = (
            None if keys is None else ClientKeys(**{part: (int(key[0]), int(key[1])) for part, key in keys.items()})
        )
        round_index = int(facts["round"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise ProtocolError(f"the message {name} lacks facts that were agreed on.") from None
    _check_sensible(name, arrays, rules)
    question = None
    if stage is not None:
        start, basis, centres = (arrays[part] for part in ("start", "basis", "centres"))
        question = SurveyQuestion(stage, start, basis, centres, mechanism.update_clip)
        _check_question(question, k)
    average = "average " if mechanism.loss_bound is not None else ""
    return (
        Guidance(
            round_index,
            Models(arrays["shared"], arrays["clustered"]),
            Models(arrays[f"{average}shared"], arrays[f"{average}clustered"]),
            rules,
            question,
        ),
        client_keys,
    )


def _check_sensible(name: str, arrays: Mapping[str, Array], rules: ChoiceRules) -> None:
    """Refuse guidance that no server makes which follows the protocol, before it costs an attempt."""
    finite = all(np.isfinite(values).all() for values in arrays.values())
    sensible = 0 <= rules.temperature < math.inf
    opened = rules.num_open is None or 1 <= rules.num_open <= len(rules.prices)
    coins = finite and (rules.transition >= 0).all() and np.allclose(rules.transition.sum(axis=1), 1.0)
    if not (finite and sensible and opened and coins):
        raise ProtocolError(f"the message {name} holds models or rules that no server makes by the settings.")


def _check_question(question: SurveyQuestion, num_clusters: int) -> None:
    """Refuse what no survey asks; stage, scale and a sketch's width are the agreement's already."""
    (width, r), stage, centres = question.basis.shape, question.stage, question.centres
    directions = survey_size(len(question.start), num_clusters)[1]
    fits = directions <= r <= width if stage == "spread" else r == directions
    least, most = {"centres": (directions, directions), "start": (1, num_clusters)}.get(stage, (0, 0))
    if not fits or not least <= len(centres) <= most or centres.shape[1] != r:
        raise ProtocolError(f"the question {stage} of a survey has another shape than agreed.")
    if not (np.isfinite(centres).all() and np.allclose(question.basis.T @ question.basis, np.eye(r), atol=1e-8)):
        raise ProtocolError(f"the question {stage} looks at directions that are not perpendicular, of length 1.")


def report_letter(reports: Reports) -> Letter:
    """What clients report in plain mode. Raw and private: to a server that is trusted with it."""
    arrays: dict[str, Array] = {
        "updates": np.asarray(as_numpy(reports.updates), dtype=np.float32),
        "choices": np.asarray(reports.choices, dtype=np.int64),
        "clients": np.asarray(reports.client_ids, dtype=np.int64),
    }
    if reports.destinations is not None:
        arrays["destinations"] = np.asarray(reports.destinations, dtype=np.int64)
    if reports.evaluations is not None:
        arrays["evaluations"] = np.asarray(reports.evaluations, dtype=np.float64)
    return Letter("report", {}, arrays)


def read_report(letter: Letter, mechanism: Mechanism) -> dict[str, Array]:
    """The arrays of a report; values are the mechanism's to check."""
    n = len(letter.arrays.get("clients", ()))
    wanted: dict[str, _Shape] = {
        "updates": ("f4", (n, mechanism.coordinates.width)),
        "choices": ("i8", (n,)),
        "clients": ("i8", (n,)),
    }
    if mechanism.flips_coins:
        wanted["destinations"] = ("i8", (n,))
    if mechanism.loss_bound is not None:
        wanted["evaluations"] = ("f8", (n, 2))
    return dict(letter.expect("report", **wanted).arrays)
