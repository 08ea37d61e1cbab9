"""Plant values that occur nowhere else in clients' data, updates and losses, run every command, and search for them."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.data.arrays import ArrayStore
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import Measured
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.server.server import RoundServer
from rrcluster.simulation.clients import Faults
from rrcluster.types import Coordinates

DATUM, UPDATE, LOSS = 83.6501927, 37.1945831, 5.83172649
CLIENTS, DIGITS = 1999, (6, 7, 9, 12)
BASE = [
    *("--data", "synthetic", "--clients", str(CLIENTS), "--rounds", "4", "--sample-rate", "0.5", "--local-epochs", "1"),
    *("--delta", "1e-4", "--device", "cpu", "--engine", "batched", "--evaluate-every", "2"),
    *("--processes", "1"),  # this one, in which values are planted
]


def needles(value):
    """The value's digits as a program might print them: rounded or cut, plain or scientific, at several precisions."""
    forms = {f"{value:.{digits}g}" for digits in DIGITS} | {
        f"{value:.{digits - 1}e}".split("e")[0] for digits in DIGITS
    }
    cut = f"{value:.15g}"[: min(DIGITS) + 1]
    return {form for form in forms | {cut} if len(form) > min(DIGITS)}


@pytest.fixture
def planted(monkeypatch):
    """Clients whose data, updates and losses are the planted values; what they send is kept for a search."""
    seen = {"values": {DATUM, UPDATE, LOSS}, "counts": set()}
    choices = []  # of the round so far, part by part
    honest_finish, honest_client, honest_measure = RoundServer.finish, ArrayStore.client, BatchedEngine.measure
    honest_tampered = Faults.tampered

    def client(self, which):
        inputs, targets = honest_client(self, which)
        return np.full_like(inputs, DATUM), targets

    def train(self, calls):
        signs = [np.where(call.cohort.clients % 2, 1.0, -1.0)[:, None] for call in calls]
        return [
            call.result((call.start + sign * UPDATE).astype(np.float32))
            for call, sign in zip(calls, signs, strict=True)
        ]

    def measure(self, questions):
        return [answer(self, question) for question in questions]

    def answer(self, question):
        if not hasattr(question.samples, "clients"):
            return honest_measure(self, [question])[0]
        k = len(question.models)
        favourite = question.samples.clients % 7 % k
        losses = np.where(np.arange(k) == favourite[:, None], LOSS, LOSS + 90.0)
        return Measured(losses, np.full_like(losses, np.nan))

    def tampered(self, reports, **rest):
        sent, lying = honest_tampered(self, reports, **rest)
        rows = [row for row in sent.updates if isinstance(row, np.ndarray) and row.dtype.kind == "f"]
        seen["values"] |= {float(np.linalg.norm(row)) for row in rows[:50] if np.abs(row).max() < 1e9}
        choices.extend(sent.choices)
        return sent, lying

    def finish(self, state, guidance, collected, *, rng):
        natural = np.array([choice for choice in choices if choice in range(4)])
        seen["counts"] |= {len(choices), len(natural), *np.bincount(natural, minlength=4).tolist()}
        choices.clear()
        return honest_finish(self, state, guidance, collected, rng=rng)

    monkeypatch.setattr(ArrayStore, "client", client)
    monkeypatch.setattr(BatchedEngine, "train", train)
    monkeypatch.setattr(BatchedEngine, "measure", measure)
    monkeypatch.setattr(Faults, "tampered", tampered)
    monkeypatch.setattr(RoundServer, "finish", finish)
    return seen


def public_texts(folder, told):
    """Everything an observer may read: console lines and files, less what is labelled as diagnostic."""
    texts = {"console": "\n".join(line for line in (told.out + told.err).splitlines() if "diagnostic" not in line)}
    for path in folder.rglob("*"):
        private = "checkpoint" in path.parts or path.name == "diagnostics.jsonl"
        if (
            path.is_file()
            and not private
            and path.suffix in (".json", ".jsonl", ".yaml", ".html", ".csv", ".md", ".tex")
        ):
            texts[path.name] = path.read_text(encoding="utf-8")
    return {where: text.replace(str(folder.parent), "") for where, text in texts.items()}  # pytest numbers its folders


def search(texts, seen, *, counts):
    for where, text in texts.items():
        for value in seen["values"]:
            found = [needle for needle in needles(value) if needle in text]
            assert not found, f"{where} shows {found}"
        for count in seen["counts"] if counts and where not in ("report.html",) else ():
            if count > 99:  # smaller ones are also numbers of rounds and clusters
                assert not re.search(rf"(?<![\d.]){count}(\.0+)?(?!\.?\d)", text), (
                    f"{where} shows the raw count {count}"
                )


RUNS = {
    "joint": ["--mechanism", "joint", "--noise-multiplier", "1"],
    "joint, coins, hostile": [
        *("--mechanism", "joint", "--noise-multiplier", "1", "-B", "150", "--dropout", "0.3", "--hostile", "0.2"),
        "--tensorboard",
    ],
    "identifier, hostile": [
        "--mechanism",
        "identifier",
        "--noise-multiplier",
        "1",
        "--dropout",
        "0.3",
        "--hostile",
        "0.2",
    ],
    "kary": ["--mechanism", "identifier", "--identifier", "kary", "--noise-multiplier", "1", "--json"],
}


@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS.keys())
def test_a_run_shows_nothing_raw(flags, planted, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["run", *BASE, *flags, "--out", str(folder)]) == 0
    told = capsys.readouterr()
    assert len(planted["counts"] - {0}) > 1
    search(public_texts(folder, told), planted, counts="joint" in flags)
    saved = load_file(folder / "models.safetensors")
    assert set(saved) == {"shared", "clustered"}
    assert np.abs(np.abs(saved["clustered"]) - UPDATE).min() > 1e-4
    if "--tensorboard" in flags:
        search_events(folder, planted)


def search_events(folder, seen):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    for tag in reader.Tags()["scalars"]:
        assert tag.startswith(("released/", "diagnostic_not_private/"))
        for event in reader.Scalars(tag) if tag.startswith("released/") else ():
            assert all(abs(event.value - value) > 1e-4 for value in seen["values"])
            assert all(abs(event.value - count) > 1e-6 for count in seen["counts"] if count > 99)


def test_the_search_would_notice(planted, tmp_path):
    planted["counts"].add(987)
    for text in (f"norm {UPDATE:.4f}", f"{LOSS:.8e}", f"x={DATUM!r}", "a cohort of 987.", '"sizes": [987.0,'):
        with pytest.raises(AssertionError, match="shows"):
            search({"rounds.jsonl": text}, planted, counts=True)
    search({"rounds.jsonl": "1987 98.7 37.19 0.987 987.01 987.001"}, planted, counts=True)


def test_a_run_that_breaks_and_is_resumed_shows_nothing_raw(planted, tmp_path, capsys, monkeypatch):
    folder, honest = tmp_path / "run", RoundServer.finish

    def breaking(self, state, *arguments, **rest):
        if state.round_index == 2:
            raise KeyboardInterrupt
        return honest(self, state, *arguments, **rest)

    monkeypatch.setattr(RoundServer, "finish", breaking)
    with pytest.raises(SystemExit):
        main(["run", *BASE, "--noise-multiplier", "1", "--out", str(folder)])
    monkeypatch.setattr(RoundServer, "finish", honest)
    assert main(["run", "--resume", str(folder)]) == 0
    assert main(["run", "--resume", str(folder)]) == 2
    assert main(["report", str(folder), "--json"]) == 0
    assert main(["run", *BASE, "--noise-multiplier", "1", "--dry-run"]) == 0
    search(public_texts(folder, capsys.readouterr()), planted, counts=True)


def chain(error):
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__


def test_no_error_of_the_interface_shows_a_raw_value(planted, rng):
    """Whatever a caller gets wrong about a round of 1013 reports, the message has neither a value nor their number."""
    planted["counts"] |= {1013, 1012, 1014}
    rows, texts = np.full((1013, 3), UPDATE), {}
    common = {"coordinates": Coordinates(0, 3), "num_clusters": 4, "num_clients": CLIENTS, "sample_rate": 0.25}
    for mechanism in ("joint", "identifier"):
        plan = PrivacyPlan.build(
            **common, num_rounds=3, update_clip=1.0, delta=1e-4, noise_multiplier=1.0, mechanism=mechanism
        )
        mistakes = {
            "few choices": (rows, [0] * 1012, {}),
            "wide rows": (np.full((1013, 4), UPDATE), [0] * 1013, {}),
            "no rows": ({UPDATE}, [0], {}),
            "few ids": (rows, [0] * 1013, {"client_ids": list(range(1012))}),
            "few destinations": (rows, [0] * 1013, {"destinations": [1] * 1012}),
            "too many": (rows, [0] * 1013, {"destinations": None}),
        }
        for name, (updates, choices, rest) in mistakes.items():
            try:
                rr.release(updates, choices, plan=plan, rng=rng, **rest)
            except ValueError as error:
                texts[f"{mechanism}, {name}"] = "\n".join(chain(error))
    assert len(texts) == 11  # joint takes cohorts of any size
    search(texts, planted, counts=True)


def test_diagnostics_are_labelled_wherever_they_are_printed(planted, tmp_path, capsys):
    assert main(["run", *BASE, "--noise-multiplier", "1", "--out", str(tmp_path / "run"), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    measured = json.loads((tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()[-1])
    assert {"adjusted_rand", "clusters_alive", "signal_to_noise", "bytes_up", "bytes_down"} <= set(measured)
    released = (tmp_path / "run" / "rounds.jsonl").read_text() + (tmp_path / "run" / "summary.json").read_text()
    for name in set(measured) - {"round"}:
        assert name not in told
        assert f'"{name}"' not in released
    assert {"loss", "choice_sizes"} <= set(told["diagnostic_not_private"])
