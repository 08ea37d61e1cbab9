"""Benchmarks of everyday commands on this machine's cores, as one table: rrcluster, installed peers, ratio and bound.

Sections: `start` (first words, first round, cold and warm, import, demo), `modules` (users' networks, and `edges`,
beside a plain loop of two processes), `w` (workload W beside the plain loop, pfl and Flower) and `everybody` (1000
clients in every round). Contenders take turns. The table has processor time beside wall-clock time, since only the
former is meaningful on a busy machine. It is written to docs/results/bench.json with machine and commit; entries that
got more than a tenth slower in processor time than in the existing file are named. Usage: bench.py [SECTION ...]
[--turns N] [--keep].
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import contenders as peers
from benchmarks.contenders import processor_seconds, seconds, started

HERE = Path(__file__).resolve().parent
ROOT, RESULT = HERE.parents[1], HERE.parents[1] / "docs" / "results" / "bench.json"
RRCLUSTER = [sys.executable, "-m", "rrcluster"]
MOST_FALL = 0.1
TICK = 1 / os.sysconf("SC_CLK_TCK")  # unit of processor time


def row(name, *, clock=None, cpu=None, peer="", peer_clock=None, peer_cpu=None, most=None, least=None, memory=None):
    """One line: seconds of rrcluster and of a peer, and their ratio; `most` seconds or GB, or the `least` ratio."""
    line = {"name": name, "clock": clock, "cpu": cpu, "peer": peer, "peer_clock": peer_clock, "peer_cpu": peer_cpu}
    line |= {"ratio": peer_clock / clock, "cpu_ratio": peer_cpu / max(cpu, TICK)} if peer else {}
    line |= {"most": most, "least": least, "memory_gb": memory}
    print(f"measured: {name}", flush=True)
    return line


def bound(entry):
    """The bound in words, and whether it holds."""
    if entry["least"] is not None:
        return f"at least {entry['least']:g}{'' if entry['ratio'] >= entry['least'] else ', MISSED'}"
    if entry["most"] is None:
        return ""
    value, unit = (entry["clock"], "s") if entry["memory_gb"] is None else (entry["memory_gb"], "GB")
    return f"at most {entry['most']:g} {unit}{'' if value <= entry['most'] else ', MISSED'}"


def first_round(folder, cache, options=(), until=1, lines="rounds.jsonl"):
    """Clock and processor time to the first words and to `until` rounds of `rrcluster run`, and its peak memory."""
    leader, follower = pty.openpty()
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "TERM": "xterm"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [*RRCLUSTER, "run", "--out", str(folder), *options],
        stderr=follower,
        stdout=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    os.close(follower)
    said, times = [], []

    def listen():
        try:
            while os.read(leader, 4096):
                said.append(time.perf_counter() - began)
        except OSError:
            pass

    threading.Thread(target=listen, daemon=True).start()
    cpu = 0.0
    while len(times) < until and process.poll() is None:
        time.sleep(0.01)
        path = folder / lines
        done = path.read_text().count("\n") if path.exists() else 0
        times += [time.perf_counter() - began] * (done - len(times))
        cpu = processor_seconds(process.pid)
    memory = peak(process.pid)
    process.terminate()
    process.wait(60)
    if len(times) < until:
        raise SystemExit(f"rrcluster run ended with {process.returncode} before round {until}")
    return said[0] if said else float("nan"), times, cpu, memory


def peak(root):
    """Peak memory in GB: the largest resident size of a process and its children, shared memory counted once."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if root in (int(folder.name), int(fields["PPid"])):
            shared = "0 kB" if int(folder.name) == root else fields.get("RssShmem", "0 kB")
            total += int(fields.get("VmHWM", shared).split()[0]) - int(shared.split()[0])
    return total / 2**20


def timed(command, environment=None):
    """Clock and processor time of a command and its children."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | (environment or {}), cwd=ROOT)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, used


def start(turns):
    rows = []
    imports = [timed([sys.executable, "-c", "import rrcluster"]) for _ in range(max(3, turns))]
    nothing = [timed([sys.executable, "-c", ""]) for _ in range(max(3, turns))]
    clock, cpu = (min(time[at] for time in imports) - min(time[at] for time in nothing) for at in (0, 1))
    rows.append(row("import rrcluster", clock=clock, cpu=cpu, most=0.1))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for number, (kind, most) in enumerate([("nothing cached", 8), ("calibration cached", 4)]):
            words, times, cpu, _ = first_round(place / f"run-{number}", place / "cache")
            if kind != "nothing cached":
                rows.append(row("run: first words", clock=words, most=0.5))
            rows.append(row(f"run: first round, {kind}", clock=times[0], cpu=cpu, most=most))
        cache = {"XDG_CACHE_HOME": str(place / "cache")}
        made, used = timed([*RRCLUSTER, "sweep", "examples/four-methods.yaml", "--out", str(place / "demo")], cache)
        shown_in, used_to_show = timed([*RRCLUSTER, "report", str(place / "demo")], cache)
        rows.append(row("demo: four methods", clock=made, cpu=used))
        rows.append(row("demo: report", clock=shown_in, cpu=used_to_show))
        rows.append(row("make demo", clock=made + shown_in, cpu=used + used_to_show, most=20))
    return rows


def turns_of(contenders, word, turns):
    """Name -> median clock and mean processor time of a round; the contenders take turns.

    Processor time comes in ticks of 10 ms, so that a median of short rounds would be one of them.
    """
    running = {name: started(command, path) for name, (command, path) in contenders.items()}
    for name in [name for name, process in running.items() if process.poll() is not None]:
        print(f"{name}: did not start; run {' '.join(map(str, contenders[name][0]))} by hand to see why")
        del running[name]
    times = {name: [] for name in running}
    for _ in range(turns):
        for name, process in running.items():
            before = processor_seconds(process.pid)
            clock = seconds(process, word)
            times[name].append((clock, processor_seconds(process.pid) - before))
    for process in running.values():
        process.stdin.close()
        process.wait(30)
    columns = {name: tuple(zip(*of, strict=True)) for name, of in times.items()}
    return {name: (statistics.median(clock), statistics.mean(cpu)) for name, (clock, cpu) in columns.items()}


def modules(turns):
    from benchmarks.own_modules import CONVOLUTIONS, EDGES, LARGE, MODULES

    rows = []
    for name in (*MODULES, EDGES):
        script = [sys.executable, HERE / "own_modules.py"]
        found = turns_of({kind: ([*script, kind], name) for kind in ("ours", "plain")}, "train", turns)
        (clock, cpu), (peer_clock, peer_cpu) = found["ours"], found["plain"]
        peer = {"peer": "plain loop, two processes", "peer_clock": peer_clock, "peer_cpu": peer_cpu}
        least = 15 if name == EDGES else 0.9 if name in (*LARGE, *CONVOLUTIONS) else 1.1
        rows.append(row(f"module: {name}", clock=clock, cpu=cpu, **peer, least=least))
    return rows


def w(turns):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.npz"
        peers.write_workload(path, peers.CLIENTS)
        found = {name: (command, path) for name, command in peers.contenders().items()}
        for word, title in (("train", "W"), ("ifca", "W, IFCA k = 4")):
            medians = turns_of(found, word, turns)
            clock, cpu = medians.pop("rrcluster")
            for peer, (peer_clock, peer_cpu) in medians.items():
                least = 3.3 if word == "train" and peer != "flower" else None
                times = {"clock": clock, "cpu": cpu, "peer_clock": peer_clock, "peer_cpu": peer_cpu}
                rows.append(row(f"{title} / {peer}", peer=peer, least=least, **times))
    return rows


def everybody(turns):
    options = ("--model", "cnn", "--participation", "everybody", "--clients", "1000", "--evaluate-every", "50")
    with tempfile.TemporaryDirectory() as name:
        count = min(turns, 3) + 1
        folder, cache = Path(name) / "run", Path(name) / "cache"
        _, times, cpu, memory = first_round(folder, cache, options, until=count)
    rounds = [after - before for before, after in itertools.pairwise(times)]
    rows = [row("everybody, M = 1000, cnn: a round", clock=statistics.median(rounds), most=7)]
    return [*rows, row("everybody, M = 1000, cnn: memory", memory=memory, cpu=cpu / count, most=1.5)]


SECTIONS = {"start": start, "modules": modules, "w": w, "everybody": everybody}


def falls(rows, before):
    """Entries that got slower by more than a tenth: ratios by processor time; seconds only on the same machine.

    Entries below ten ticks of processor time are left out.
    """
    known = {entry["name"]: entry for entry in before.get("rows", [])}
    named = []
    for entry in rows:
        old = known.get(entry["name"], {})
        if min(entry["cpu"] or 0, old.get("cpu") or 0) < 10 * TICK:
            continue
        if entry.get("cpu_ratio") and old.get("cpu_ratio"):
            change = entry["cpu_ratio"] / old["cpu_ratio"] - 1
        elif before.get("machine") == machine() and not entry["peer"]:
            change = old["cpu"] / entry["cpu"] - 1
        else:
            continue
        if change < -MOST_FALL:
            named.append(f"{entry['name']}: {-change:.0%} slower by processor time than at {before.get('commit', '?')}")
    return named


def machine():
    name = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    return f"{platform.machine()}, {name}, {len(os.sched_getaffinity(0))} cores"


def commit():
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def table(rows):
    print(f"\n{'':42} {'ours (s)':>9} {'cpu':>7} {'peer (s)':>9} {'ratio':>6} {'by cpu':>7}  bound")
    for entry in rows:
        columns = [entry["clock"], entry["cpu"], entry["peer_clock"], entry.get("ratio"), entry.get("cpu_ratio")]
        cells = ["" if value is None else f"{value:.2f}" for value in columns]
        extra = "" if entry["memory_gb"] is None else f"{entry['memory_gb']:.2f} GB; "
        widths = (9, 7, 9, 6, 7)
        figures = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        print(f"{entry['name']:42} {figures}  {extra}{bound(entry)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="leave docs/results/bench.json as it is")
    asked = parser.parse_args()
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    rows = [entry for name in asked.sections or SECTIONS for entry in SECTIONS[name](asked.turns)]
    table(rows)
    load = os.getloadavg()[0]
    print(f"{machine()}, commit {commit()}, load {load:.1f}")
    for line in falls(rows, before):
        print(f"FELL: {line}")
    if not asked.keep:
        others = [entry for entry in before.get("rows", []) if entry["name"] not in {row["name"] for row in rows}]
        about = {"machine": machine(), "commit": commit(), "date": datetime.date.today().isoformat(), "load": load}
        RESULT.write_text(json.dumps({**about, "rows": [*rows, *others]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
