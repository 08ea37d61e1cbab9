"""How the time of a round grows with the cohort, the population, the number of clusters and the number of processes.

    python research/benchmarks/scaling.py [--quick] [--out docs/results]
    python research/benchmarks/scaling.py --growth     (hosts, members over TLS, secure sums, a Dask cluster)

Every point is a process of its own that runs rounds of `rrcluster` on fashion-mini, 40 images a client, and reports the
median round and its peak memory; the points of a row are measured in turns, round robin, so that a machine that drifts
slows all of them alike. Times are relative to the first point of their row: processor time of one thread, which other
programs hardly change, and for processes the time by the clock.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pickle
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

ROWS = {
    "cohort": [{"cohort": size, "population": 100_000} for size in (10, 100, 1_000, 10_000)],
    "population": [{"population": size} for size in (1_000, 10_000, 100_000, 1_000_000)],
    "clusters": [{"clusters": k} for k in (1, 2, 4, 8, 16)],
    "processes": [{"processes": count, "model": "cnn", "engine": "reference", "clock": "wall"} for count in (1, 2)],
}
USUAL = {
    "cohort": 100,
    "population": 10_000,
    "clusters": 4,
    "processes": 1,
    "model": "linear",
    "engine": "batched",
    "clock": "processor",
}
CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}
TURNS, SECONDS = 3, 5.0  # turns of every point, and how long one of them measures at most
LABELS = {"cohort": "expected cohort", "population": "population", "clusters": "clusters (k)", "processes": "processes"}


def settings(point):
    return {
        "data": "fashion-mini",
        "num_clients": point["population"],
        "sample_rate": min(1.0, point["cohort"] / point["population"]),
        "samples_per_client": 40,
        "num_clusters": point["clusters"],
        "model": point["model"],
        "engine": point["engine"],
        "processes": point["processes"],
        "num_rounds": 1000,
        "mechanism": "joint",
        "noise_multiplier": 1.0,
        "delta": 1e-8,
        "device": "cpu",
    }


def measure(point):
    """In a process of its own: seconds of a median round after the first, and the peak memory; as JSON on stdout."""
    import torch

    from rrcluster.runs.config import from_flat
    from rrcluster.runs.experiment import make_experiment

    torch.set_num_threads(1)
    experiment, clock = make_experiment(from_flat(settings(point))), CLOCKS[point["clock"]]
    began, ticks = time.perf_counter(), [clock()]
    for _ in experiment.rounds():
        ticks.append(clock())
        if len(ticks) > 2 and time.perf_counter() - began > SECONDS:
            break
    experiment.hosts.stop()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": float(np.median(np.diff(ticks)[1:])), "gigabytes": peak, "rounds": len(ticks) - 2}))


def run(point):
    """Start the process of one point; what it measured."""
    command, env = [sys.executable, __file__, "--point", json.dumps(point)], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{point}: failed")
    return json.loads(done.stdout)


def measure_row(points, turns, changes):
    """Best of `turns` medians per point, in turns."""
    found = [[] for _ in points]
    for _ in range(turns):
        for place, point in enumerate(points):
            found[place].append(run(USUAL | point | changes))
            print(f"  {point}: {found[place][-1]}", file=sys.stderr)
    return [
        {
            "point": point,
            "seconds": min(one["seconds"] for one in several),
            "gigabytes": max(one["gigabytes"] for one in several),
        }
        for point, several in zip(points, found, strict=True)
    ]


def table(rows):
    """Markdown: relative times, the first point of each row is 1."""
    lines = ["| varied | value | time of a round, first = 1 | peak memory (GB) |", "| --- | --- | --- | --- |"]
    for name, points in rows.items():
        for one in points:
            relative = one["seconds"] / points[0]["seconds"]
            lines.append(f"| {LABELS[name]} | {one['point'][name]:,} | {relative:.2f} | {one['gigabytes']:.2f} |")
    return "\n".join(lines)


def draw_rows(rows, folder):
    from rrcluster.report.drawing import FAINT, INK, draw, set_title
    from rrcluster.report.figures import save_figures

    def paint(figure):
        panels = figure.subplots(2, 2).flat
        for axes in panels[len(rows) :]:
            axes.set_axis_off()
        for axes, (name, points) in zip(panels, rows.items(), strict=False):
            x = [one["point"][name] for one in points]
            y = [one["seconds"] / points[0]["seconds"] for one in points]
            if name in ("cohort", "processes"):
                power = -1 if name == "processes" else 1
                axes.plot(x, [(value / x[0]) ** power for value in x], ls=":", color=FAINT, label="in proportion")
                axes.legend(loc="upper left" if power > 0 else "lower left", handlelength=1.5)
            axes.plot(x, y, marker="o", color=INK)
            axes.set(xscale="log")
            set_title(axes, LABELS[name])
            axes.set_xticks(x, [f"{value:,}" if value < 1000 else f"$10^{len(str(value)) - 1}$" for value in x])
            axes.minorticks_off()
            if name == "cohort":
                axes.set(yscale="log")
            else:
                axes.set_ylim(0, 1.15 * max(1.2, *y))
        figure.supylabel("time of a round, first point = 1", fontsize=7.5)

    save_figures([draw("scaling", paint, height=3.4, caption="", alt="")], folder)


def processor(pid):
    """Seconds of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def stay_connected(base, address, members):
    """In a process of its own: nodes of so many members, whose daemons answer at once."""
    from rrcluster.federation.certificates import read_node_key
    from rrcluster.federation.children import allow_open_files
    from rrcluster.federation.tls_transport import TlsNode

    class Node(TlsNode):
        async def _ask_daemon(self, content, _):
            return bytes(len(content))

    allow_open_files(2 * members)
    nodes = [Node(address, base / "ca.pem", read_node_key(base / f"{n}.key"), base) for n in range(members)]
    staying = []
    for node in nodes:  # one process makes all their keys: it takes its time
        staying.append(asyncio.create_task(node.stay_connected()))
        await asyncio.sleep(0.02)
    await asyncio.gather(*staying)


def messages_over_tls(members, *, size=72 * 1024, questions=5):
    """Milliseconds of processors for a message of 72 KiB and an answer of that size, of the server and of a node."""
    from rrcluster.federation.certificates import make_authority, new_node_key
    from rrcluster.federation.tls_transport import TlsTransport

    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        base, keys = Path(name), {}
        for member in range(members):
            private, keys[member] = new_node_key()
            (base / f"{member}.key").write_bytes(private)
        make_authority(base, base, name="growth", hosts=["127.0.0.1"])
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        with TlsTransport(keys, base, address, 600.0, 2**24) as transport:
            before = processor(os.getpid())
            command = [sys.executable, __file__, "--nodes", name, address, str(members)]
            nodes = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                assert len(transport.wait_for_nodes(keys, 300)) == members
                connecting = (processor(os.getpid()) - before) / members
                began = {pid: processor(pid) for pid in (os.getpid(), nodes.pid)}
                for _ in range(questions):
                    assert len(transport.ask({member: os.urandom(size) for member in keys})) == members
                server, node = ((processor(pid) - then) / members / questions for pid, then in began.items())
            finally:
                nodes.kill()
                nodes.wait()
    return [f"{1000 * seconds:.2f}" for seconds in (connecting, server, node)]


def secure_sum_of(members, *, width=4 * 7850):
    """Processor seconds of a round of members in this process: all, the server's share, and seconds by the clock."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from rrcluster.federation.secagg.secure_client import Attempt, SecureClient
    from rrcluster.federation.secagg.secure_server import secure_sum
    from rrcluster.federation.secagg.terms import Terms

    keys = [Ed25519PrivateKey.generate() for _ in range(members)]
    identities = tuple(key.public_key().public_bytes_raw() for key in keys)
    most = members // 20
    terms = Terms.for_clients(
        identities, settings=b"", width=width, least_survivors=members // 2 + most, most_colluders=most
    )
    attempt, values = Attempt(terms, 0, 0), np.random.default_rng(0).integers(-1000, 1000, size=(members, width))
    clients, of_clients = [SecureClient(attempt, place, key) for place, key in enumerate(keys)], 0.0

    def answer(stage, client, message):
        if stage == "advertise":
            return client.advertise()
        if stage == "mask":
            assert client.open(message) == ()
            return client.mask(values[client.place], task_digest=b"models")
        return getattr(client, stage)(message)

    def ask(stage, messages):
        nonlocal of_clients
        began = time.process_time()
        answers = {place: answer(stage, clients[place], message) for place, message in messages.items()}
        of_clients += time.process_time() - began
        return answers

    began, ticks = time.perf_counter(), time.process_time()
    total = secure_sum(attempt, ask, charge=lambda: None, blame=print, task_digest=b"models")
    whole = time.process_time() - ticks
    assert (total == values.sum(axis=0)).all()
    hood = terms.neighbourhood_size
    return [f"{members:,}", hood, f"{whole:.1f}", f"{whole - of_clients:.1f}", f"{time.perf_counter() - began:.1f}"]


def sleeping(host, seconds, part):
    """A part whose clients take so long: what a host with a core of its own would."""
    from rrcluster.simulation.hosts import PartAnswer

    time.sleep(seconds)
    width = host.side.mechanism.coordinates.width * host.side.mechanism.num_clusters
    return PartAnswer(np.ones(width, dtype=np.int64), None, None, part.memory.of([]), len(part.ids), 0)


def hosts_that_sleep(number, *, parts=64, seconds=0.25):
    """Seconds of a round of 64 parts on so many hosts, of which each part takes a quarter of a second."""
    from rrcluster.processes import local_executor
    from rrcluster.runs.config import from_flat
    from rrcluster.runs.experiment import make_experiment
    from rrcluster.simulation.clients import ClientMemory
    from rrcluster.simulation.hosts import Hosts, collected, parts_of

    experiment = make_experiment(from_flat(settings(USUAL | {"model": "cnn", "population": 640})))
    hosts = Hosts(experiment.hosts.host, executor=local_executor(number))
    cut = parts_of(np.arange(640), ClientMemory(0), 640 // parts)
    list(hosts.map(sleeping, 2.0, cut[: 2 * number]))  # every process has started, and knows its host
    ticks, began = time.process_time(), time.perf_counter()
    collected(hosts.map(sleeping, seconds, cut))
    return time.perf_counter() - began, time.process_time() - ticks


class Weighed:
    """An executor that notes how many bytes go to its workers and come back."""

    def __init__(self, inner):
        self.inner, self.sent, self.back = inner, 0, 0

    def submit(self, function, *arguments):
        self.sent += len(pickle.dumps(arguments))
        future = self.inner.submit(function, *arguments)
        future.add_done_callback(self._note)
        return future

    def _note(self, future):
        self.back += len(pickle.dumps(future.result()))


def seconds_of_family():
    """Of the processor: this process, its children that have ended, and those of its session that run."""
    spent, ticks = sum(os.times()[:4]), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            ours = int(words[3]) == os.getsid(0) and int(path.parent.name) != os.getpid()
            ticks += (int(words[11]) + int(words[12])) * ours
    return spent + ticks / os.sysconf("SC_CLK_TCK")


def cluster_beside_pool(*, rounds=12):
    """The CNN with 1,000 clients on two local processes and on two workers of a LocalCluster: time, bytes a round."""
    import rrcluster as rr
    from rrcluster.processes import cluster_executor, local_executor

    wanted = {"data": "fashion-mini", "model": "cnn", "num_clients": 1000, "sample_rate": 0.3, "num_clusters": 4}
    wanted |= {"samples_per_client": 40, "epsilon": 4, "delta": 1e-4, "device": "cpu", "num_rounds": rounds}
    with tempfile.TemporaryDirectory() as name, cluster_executor("local:2") as (executor, _):
        marks, weighed = {}, Weighed(executor)
        for turn, cluster in enumerate((weighed, executor)):  # the first warms up, and weighs
            for place, where in (("pool", local_executor(2)), ("cluster", cluster)):
                ticks = []
                rr.run(
                    **wanted,
                    executor=where,
                    out=f"{name}/{place}{turn}",
                    on_round=lambda *_, ticks=ticks: ticks.append((time.perf_counter(), seconds_of_family())),
                )
                marks[place] = np.diff(np.array(ticks), axis=0)
        same = (Path(name) / "pool1/models.safetensors").read_bytes() == (
            Path(name) / "cluster1/models.safetensors"
        ).read_bytes()
        width = rr.load(f"{name}/pool1").models.clustered.size
    clock, cpu = (np.median(marks["cluster"][:, n]) / np.median(marks["pool"][:, n]) for n in (0, 1))
    sent, back = (count / rounds for count in (weighed.sent, weighed.back))
    print(f"cluster beside the local pool, two workers each: {clock:.2f} by the clock, {cpu:.2f} by processors")
    print(f"equal models: {same}; k d = {width}; {sent / width:.1f} k d bytes a round sent, {back / width:.1f} back")


def growth():
    """How cost grows with hosts, members and secure sums; prints tables."""
    print("members, ms to connect, server's ms a message and member, a node's")
    for members in (10, 100, 1000):
        print(members, *messages_over_tls(members), flush=True)
    print("members, neighbourhood, processor seconds, of them the server's, by the clock")
    for members in (100, 300, 1000):
        print(*secure_sum_of(members), flush=True)
    cluster_beside_pool()
    print("hosts, seconds a round by the clock, of the first process's processor")
    for number in (1, 2, 4, 8, 16):
        print(number, *(f"{seconds:.2f}" for seconds in hosts_that_sleep(number)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--row", choices=ROWS, action="append", help="only this one; its figures are kept for the others"
    )
    parser.add_argument("--clock", choices=CLOCKS, help="by which time; processor: of the first process")
    parser.add_argument("--quick", action="store_true", help="one turn instead of three")
    parser.add_argument("--draw", action="store_true", help="draw the figure again; nothing is measured")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--growth", action="store_true", help="with hosts, members, secure sums; prints tables")
    parser.add_argument("--nodes", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nodes:
        asyncio.run(stay_connected(Path(given.nodes[0]), given.nodes[1], int(given.nodes[2])))
    if given.growth:
        growth()
        return
    if given.point:
        measure(given.point)
        return
    kept = given.out / "scaling.json"
    known = json.loads(kept.read_text()) if kept.exists() else {"rows": {}}
    if given.draw:
        draw_rows({name: known["rows"][name] for name in ROWS if name in known["rows"]}, given.out)
        return
    when = date.today().isoformat()
    for name in given.row or ROWS:
        known["rows"][name] = measure_row(
            ROWS[name], 1 if given.quick else TURNS, {"clock": given.clock} if given.clock else {}
        )
    known |= {"date": when, "machine": f"{os.cpu_count()} cores, {platform.machine()}"}
    given.out.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(known, indent=1) + "\n")
    rows = {name: known["rows"][name] for name in ROWS if name in known["rows"]}
    print(f"{known['machine']}, {when}\n{table(rows)}")
    draw_rows(rows, given.out)


if __name__ == "__main__":
    main()
