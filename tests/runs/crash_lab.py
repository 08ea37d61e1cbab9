"""Kill small runs at random instants, resume them until they finish, and check what they leave. A script: forks a lot.

    python crash_lab.py FOLDER --mode seeded --interruptions 100 --seed 0

Every attempt is a process of its own, killed with SIGKILL, or stopped by a disk that takes no more:

time     killed by its parent after a random time
line     kills itself at a random line of rrcluster's code, each as likely as any other that a whole run executes
sync     kills itself just before or just after a random flush to the disk (a charge, a checkpoint, a folder)
write    kills itself in the middle of a random write: half of a charge, half of a checkpoint
disk     no file may grow beyond a random size (RLIMIT_FSIZE): a charge or a checkpoint fails half-written

The attempts note every release just before it is made, outside of the run folder, so that charges can be compared with
releases. After every attempt the accountant is asked what the charges in the ledger cost, and whatever states an
epsilon of the folder (privacy.json, summary.json, the tables and the page of `report`) must not state less. It prints
what happened as JSON, with the least margin between the two, and fails with a traceback where a promise is broken.
"""

import argparse
import collections
import csv
import hashlib
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

ROUNDS = 25
SETTINGS = {
    "data": "synthetic",
    "num_clients": 40,
    "num_clusters": 2,
    "num_rounds": ROUNDS,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "accountant": "rdp",
    "device": "cpu",
}
SLOTS = {"participation": "schedule", "slots": 5}
MODES = {
    "seeded": {"evaluate_every": 5},
    "secure": {"secure": True, "reserve_rounds": 200},
    "seeded-slots": {"evaluate_every": 5} | SLOTS,
    "secure-slots": {"secure": True} | SLOTS,
}
KINDS = {"line": 5, "time": 5, "sync": 2, "write": 2, "disk": 2}  # and how often
REFUSED = 3  # exit status of an attempt that ended with an error of ours


def attempt(folder, settings, fault, notes):
    """In a child: run or resume until finished, under a fault. Never returns."""
    status = 1
    try:
        from rrcluster.errors import RRClusterError
        from rrcluster.runs import run

        run._SECONDS_BETWEEN_CHECKPOINTS = 0.05
        note_releases(notes)
        FAULTS[fault[0]](*fault[1:])
        try:
            known = (folder / "config.yaml").exists()
            run.finish(run.resume(folder) if known else run.start(run.build_experiment(**settings, out=str(folder))))
            status = 0
        except RRClusterError as error:
            status = 0 if "this run has finished" in str(error) else REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def note_releases(notes):
    """Write down the round and a digest of every release just before it is made, in a file that no fault touches."""
    from rrcluster.privacy.joint import JointMechanism
    from rrcluster.server.server import RoundServer

    real_finish, real_release, write = RoundServer.finish, JointMechanism.release_sum, os.write
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    now = []

    def finish(self, state, *args, **kwargs):
        now[:] = [state.round_index]
        return real_finish(self, state, *args, **kwargs)

    def release_sum(self, noisy_sum):
        digest = hashlib.blake2b(noisy_sum.total.tobytes(), digest_size=8).hexdigest()
        write(descriptor, f"{now[0]} {digest}\n".encode())
        return real_release(self, noisy_sum)

    RoundServer.finish, JointMechanism.release_sum = finish, release_sum


def die_at_sync(number, after):
    real, calls = os.fsync, itertools.count(1)

    def fsync(descriptor):
        mine = next(calls) == number
        if not mine or after:
            real(descriptor)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync


def die_at_write(number):
    real, calls = os.write, itertools.count(1)

    def write(descriptor, content):
        if next(calls) == number:
            real(descriptor, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(descriptor, content)

    os.write = write


def trace_lines(seen):
    """Call `seen(file, line)` before every line of rrcluster's own code, in this thread and those it starts."""
    own = str(Path(sys.modules["rrcluster"].__file__).parent)

    def line(frame, event, _):
        if event == "line":
            seen(frame.f_code.co_filename[len(own) + 1 :], frame.f_lineno)
        return line

    def call(frame, *_):
        return line if frame.f_code.co_filename.startswith(own) else None

    threading.settrace(call)
    sys.settrace(call)


def die_at_line(file, number, turn):
    left = [turn]

    def seen(*place):
        if place == (file, number):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    trace_lines(seen)


def note_lines(path):
    """Write down how often each line was executed, when the attempt ends."""
    hits = collections.Counter()
    trace_lines(lambda *place: hits.update([place]))
    real_exit = os._exit

    def leave(status):
        sys.settrace(None)
        path.write_text(json.dumps([[*place, times] for place, times in sorted(hits.items())]))
        real_exit(status)

    os._exit = leave


def fill_disk(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


FAULTS = {
    "none": lambda: None,
    "count": note_lines,
    "time": lambda _: None,
    "line": die_at_line,
    "sync": die_at_sync,
    "write": die_at_write,
    "disk": fill_disk,
}


def choose(rng, folder, whole, executed, kinds):
    """A fault, at random; `whole` is how long an attempt without one takes, `executed` which lines, how often."""
    (kind,) = rng.choices(list(kinds), kinds.values())
    if kind == "line":
        file, number, times = rng.choice(executed)
        return kind, file, number, rng.randint(1, times)
    if kind == "time":
        return kind, rng.uniform(0, whole / 3)  # most of a first attempt is accounting
    if kind == "sync":
        return kind, rng.randint(1, 40), rng.random() < 0.5
    if kind == "write":
        return kind, rng.randint(1, 25)
    ledger = folder / "ledger.jsonl"
    grown = ledger.stat().st_size if ledger.exists() else 0
    return kind, rng.choice([grown + rng.randint(0, 2000), rng.randint(500, 4000)])


def under(fault, folder, settings, notes):
    """Make one attempt under a fault: its exit status, negative for a signal, and how long it took."""
    began, child = time.perf_counter(), os.fork()
    if child == 0:
        attempt(folder, settings, fault, notes)
    if fault[0] == "time":
        time.sleep(fault[1])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), time.perf_counter() - began


def lines(path):
    """Whole lines of a JSON-lines file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def released(notes):
    """The round of every release, in order."""
    return [int(line.split()[0]) for line in notes.read_text().splitlines()] if notes.exists() else []


def check_repeats(notes):
    """A round that was repeated was the identical release."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    assert len(set(lines)) == len(set(released(notes))), lines


def check_charges(folder, notes, mode):
    """Never less charged than released: every release (secure) or every released round (else) is in the ledger."""
    charged = collections.Counter(line["round"] for line in lines(folder / "ledger.jsonl"))
    made = collections.Counter(released(notes))
    if mode != "secure":
        check_repeats(notes)
        made = collections.Counter(dict.fromkeys(made, 1))
        assert set(charged.values()) <= {1}, charged
    assert not made - charged, (made, charged)
    return charged.total() - made.total()


def check_end(folder, notes, mode, reference):
    """A finished run: the promised files, all rounds, and (seeded) what an uninterrupted run leaves, bit for bit."""
    assert {path.name for path in folder.iterdir()} == {path.name for path in reference.iterdir()}
    assert [line["round"] for line in lines(folder / "rounds.jsonl")] == list(range(ROUNDS))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds_done"]) == ("finished", ROUNDS)
    charges = lines(folder / "ledger.jsonl")
    assert summary["releases_charged"] == len(charges)
    if "secure" in mode:
        assert mode == "secure" or len(charges) == ROUNDS
        assert summary["epsilon"] >= json.loads((reference / "summary.json").read_text())["epsilon"]
        return
    assert charges == lines(reference / "ledger.jsonl")
    for name in ("rounds.jsonl", "privacy.json"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name
    assert models(folder) == models(reference)
    timeless = [[{**line, "seconds": 0} for line in lines(path / "diagnostics.jsonl")] for path in (folder, reference)]
    assert timeless[0] == timeless[1]


def check_stated(folder, mode):
    """Whatever has happened, no epsilon that the folder states is less than what its ledger costs."""
    from rrcluster.privacy.accounting import epsilon
    from rrcluster.privacy.cost import folder_cost
    from rrcluster.privacy.events import PoissonGaussian

    if not (folder / "privacy.json").exists():
        return None
    cost = folder_cost(folder)
    slots = MODES[mode].get("slots", 1)
    event = PoissonGaussian(SETTINGS["noise_multiplier"], SETTINGS["sample_rate"] if slots == 1 else 1.0)
    charges = [line["round"] for line in lines(folder / "ledger.jsonl")]
    charged = epsilon(event, num_rounds=-(-len(charges) // slots), delta=SETTINGS["delta"], accountant="rdp")
    stated = [cost.epsilon, *printed(folder)]
    if (folder / "summary.json").exists():
        stated.append(json.loads((folder / "summary.json").read_text())["epsilon"])
    assert min(stated) >= charged, (stated, charged)
    return len(stated), min(stated) - charged


def printed(folder):
    """Every epsilon in the table and in the statement that `rrcluster report` prints; none before there is a run."""
    from rrcluster.report.folders import find_runs
    from rrcluster.report.page import statement_section
    from rrcluster.report.tables import results_table, to_csv

    if not (folder / "config.yaml").exists():
        return []
    groups = find_runs([folder])
    table = list(csv.reader(to_csv(results_table(groups)).splitlines()))
    (column,) = (place for place, name in enumerate(table[0]) if name.lower().startswith("epsilon"))
    page = re.findall(r"epsilon = ([0-9.]+) at delta", statement_section(groups, ["run"]))
    assert page
    return [float(row[column]) for row in table[1:]] + [float(text) for text in page]


def models(folder):
    """Every bit of the models (the file's own metadata come in any order)."""
    from safetensors.numpy import load_file

    return {name: tensor.tobytes() for name, tensor in load_file(folder / "models.safetensors").items()}


def interrupt(base, mode, interruptions, kinds, rng):
    """Interrupt runs until there were enough interruptions; a finished run is checked and a new one started."""
    settings, told = SETTINGS | MODES[mode], collections.Counter()
    reference, counted, least = base / "reference", base / "lines.json", math.inf
    status, whole = under(("none",), reference, settings, base / "reference.notes")
    assert status == 0, status
    if "line" in kinds:
        assert under(("count", counted), base / "counted", settings, base / "counted.notes")[0] == 0
    executed = json.loads(counted.read_text()) if "line" in kinds else []
    number = 0
    while told["interruptions"] < interruptions or (base / f"run-{number}").exists():
        folder, notes = base / f"run-{number}", base / f"run-{number}.notes"
        fault = choose(rng, folder, whole, executed, kinds) if told["interruptions"] < interruptions else ("none",)
        status, _ = under(fault, folder, settings, notes)
        assert status in (0, REFUSED, -signal.SIGKILL), (status, fault)
        check_charges(folder, notes, mode)
        stated = check_stated(folder, mode)
        if stated is not None:
            told["epsilons_compared"] += stated[0]
            least = min(least, stated[1])
        if status:
            told["interruptions"] += 1
            told[fault[0]] += 1
            continue
        check_end(folder, notes, mode, reference)
        told["runs"] += 1
        told["releases"] += len(released(notes))
        told["charges"] += len(lines(folder / "ledger.jsonl"))
        number += 1
    return {**told, "lines_executed": len(executed), "least_margin": least}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=MODES, nargs="+", required=True)  # several, one after another, import once
    parser.add_argument("--interruptions", type=int, default=100)
    parser.add_argument("--sample-rate", type=float, default=SETTINGS["sample_rate"])  # 1: accounted in closed form
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    SETTINGS["sample_rate"] = given.sample_rate
    import rrcluster.runs.run
    from rrcluster.privacy.statement import statement

    kinds = {kind: KINDS[kind] for kind in given.kinds}
    for mode in given.mode:  # children inherit the imports, and what their plan costs
        statement(rrcluster.runs.run.build_experiment(**SETTINGS | MODES[mode]).plan)
        (given.folder / mode).mkdir(parents=True, exist_ok=True)
        told = interrupt(given.folder / mode, mode, given.interruptions, kinds, random.Random(given.seed))
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
