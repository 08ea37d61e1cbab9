"""W on this machine's cores: ours beside the plain loop, and beside Flower and pfl where they are installed.

One interleaved run: every contender is started once, and then they take turns, one round each, while the others wait.
Ratios of the medians are printed; they carry over to other machines better than seconds do. Beside the time on the
clock stands the processor time of all processes of a contender, waiting left out: on a busy machine only that means
anything, and it is kind to who waits much (Flower). Usage: compare_cpu.py [TURNS [CLIENTS]]. Peers are looked for in
$RRCLUSTER_PEERS (default research/benchmarks/peers; make_peer_environments.sh makes them). Results: README.md.
"""

import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from rrcluster.data.build import load_federated
from rrcluster.errors import DataError
from rrcluster.models import make_model

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("RRCLUSTER_PEERS", HERE / "peers"))
CLIENTS, SAMPLES, MODELS = 100, 60, 4


def contenders():
    """Name -> command; peers only where their environment is there."""
    found = {"rrcluster": [sys.executable, HERE / "contend_rrcluster.py"]}
    found["plain loop"] = [sys.executable, HERE / "contend_plain.py"]
    for name in ("pfl", "flower"):
        python = PEERS / name / "bin" / "python"
        if python.exists():
            found[name] = [python, HERE / f"contend_{name}.py"]
        else:
            print(f"{name}: not installed in {PEERS}; research/benchmarks/make_peer_environments.sh installs it")
    return found


def write_workload(path, clients):
    """60 images for each client; from the bundled images, some twice, where the full data is not there."""
    try:
        cohort = load_federated("fashion-mnist", num_clients=1000, seed=0).cohort(np.arange(clients))
    except DataError:
        cohort = load_federated("fashion-mini", num_clients=1000, seed=0).cohort(np.arange(clients))
    rows = np.arange(SAMPLES) % cohort.inputs.shape[1]
    model = make_model("cnn", input_shape=(1, 28, 28), num_classes=10)
    starts = np.stack([model.init(rng=np.random.default_rng(seed)) for seed in range(MODELS)])
    np.savez(path, inputs=cohort.inputs[:, rows], targets=cohort.targets[:, rows], starts=starts)


def started(command, path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    process = subprocess.Popen(
        [*map(str, command), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    while (line := process.stdout.readline()).strip() != "ready":
        if not line:
            process.wait()
            break
    return process


def seconds(process, word):
    process.stdin.write(word + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def processor_seconds(root):
    """Of a process and all below it, since they started."""
    children, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            used[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found, total = [root], 0.0
    while found:
        process = found.pop()
        total += used.get(process, 0.0)
        found += children.get(process, [])
    return total


def main(turns=7, clients=CLIENTS):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.npz"
        write_workload(path, clients)
        running = {name: started(command, path) for name, command in contenders().items()}
        for name in [name for name, process in running.items() if process.poll() is not None]:
            print(f"{name}: did not start; run research/benchmarks/contend_{name}.py by hand to see why")
            del running[name]
        times = {name: {"train": [], "ifca": []} for name in running}
        for _ in range(turns):
            for word in ("train", "ifca"):
                for name, process in running.items():
                    before = processor_seconds(process.pid)
                    clock = seconds(process, word)
                    times[name][word].append((clock, processor_seconds(process.pid) - before))
        for process in running.values():
            process.stdin.close()
            process.wait(30)
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {turns} turns, {clients} clients")
    print("by the clock")
    show({name: {word: [one[0] for one in of] for word, of in by.items()} for name, by in times.items()}, clients)
    print("by processor time")
    show({name: {word: [one[1] for one in of] for word, of in by.items()} for name, by in times.items()}, clients)


def show(times, clients):
    medians = {name: {word: statistics.median(of) for word, of in by.items()} for name, by in times.items()}
    ours = medians["rrcluster"]
    print(f"{'':12} {'clients/s':>10} {'ours is':>8} {'IFCA k=4':>10} {'ours is':>8} {'IFCA costs':>11}")
    for name, of in medians.items():
        faster = [of[word] / ours[word] for word in ("train", "ifca")]
        rates = [clients / of[word] for word in ("train", "ifca")]
        ratio = of["ifca"] / of["train"]
        print(f"{name:12} {rates[0]:10.1f} {faster[0]:7.2f}x {rates[1]:10.1f} {faster[1]:7.2f}x {ratio:10.2f}x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
