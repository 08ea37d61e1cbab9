"""Workload W on this machine's cores: ours beside the plain loop, and beside Flower and pfl where they are installed.

W: 100 clients x 60 FashionMNIST images, 5 local epochs of SGD without momentum, batch 20, learning rate 0.05, the
26,010-parameter CNN. With `ifca`, each client first evaluates four models on all of its images and trains the best.

    contenders.py [TURNS [CLIENTS]]     one interleaved run: the contenders take turns, one round each
    contenders.py ours|plain PATH       one of them, driven by `answer`: prints `ready`, then reads words from stdin and
                                        answers each with the seconds its round took

Ratios of the medians are printed; they carry over to other machines better than seconds do. Beside the time on the
clock stands the processor time of all processes of a contender, waiting left out: on a busy machine only that means
anything, and it flatters contenders that wait much (Flower). Peers are looked for in $RRCLUSTER_PEERS (default
research/benchmarks/peers; make_peer_environments.sh makes them), and import this file, so that nothing but torch and
numpy is imported at its top. Results: README.md.
"""

import contextlib
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

EPOCHS, BATCH, RATE, MODELS = 5, 20, 0.05, 4


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def load(path):
    """(clients, samples, 1, 28, 28) float32, (clients, samples) int64, (models, parameters) float32."""
    with np.load(path) as file:
        return file["inputs"], file["targets"], file["starts"]


@torch.no_grad()
def put(vector, module):
    """A flat vector into a module."""
    pieces = torch.split(torch.from_numpy(vector), [part.numel() for part in module.parameters()])
    for parameter, piece in zip(module.parameters(), pieces, strict=True):
        parameter.copy_(piece.reshape(parameter.shape))


def answer(train, ifca):
    """Drive the two rounds of a contender."""
    print("ready", flush=True)
    for word in sys.stdin:
        began = time.perf_counter()
        {"train": train, "ifca": ifca}[word.strip()]()
        print(time.perf_counter() - began, flush=True)


PROCESSES = 2


def work(path, which, jobs, results):
    torch.set_num_threads(1)
    inputs, targets, starts = load(path)
    clients = range(which, len(inputs), PROCESSES)
    data = {i: torch.from_numpy(inputs[i]).contiguous(memory_format=torch.channels_last) for i in clients}
    answers = {i: torch.from_numpy(targets[i]) for i in clients}
    module = network().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    loss_of = torch.nn.CrossEntropyLoss()

    def best(i):
        with torch.no_grad():
            losses = []
            for start in starts:
                put(start, module)
                losses.append(loss_of(module(data[i]), answers[i]).item())
        return min(range(len(starts)), key=losses.__getitem__)

    def train(i, start):
        put(start, module)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(answers[i])).split(BATCH):
                optimiser.zero_grad(set_to_none=True)
                batch = data[i][chosen].contiguous(memory_format=torch.channels_last)
                loss_of(module(batch), answers[i][chosen]).backward()
                optimiser.step()
        return torch.cat([part.detach().reshape(-1) for part in module.parameters()])

    results.put(0)
    while (job := jobs.get()) is not None:
        total = sum(train(i, starts[best(i) if job == "ifca" else 0]) for i in clients)
        results.put(total.numpy())


def plain(path):
    """The plain loop: two spawned workers of one thread, one channels-last module reused, data preloaded."""
    context = multiprocessing.get_context("spawn")
    jobs, results = [context.Queue() for _ in range(PROCESSES)], context.Queue()
    for which, queue in enumerate(jobs):
        context.Process(target=work, args=(path, which, queue, results), daemon=True).start()

    def collect():
        return sum(results.get() for _ in range(PROCESSES))

    def round_of(kind):
        for queue in jobs:
            queue.put(kind)
        collect()

    collect()
    answer(lambda: round_of("train"), lambda: round_of("ifca"))


def trained(host, starts, part):
    """The summed updates of some clients, each trained from the first model, or from the one of least loss."""
    from rrcluster.engine import protocol as calls
    from rrcluster.engine.protocol import LocalSettings

    local = LocalSettings(RATE, EPOCHS, BATCH)
    ids, chooses = part
    engine, cohort = host.side.engine, host.data.cohort(ids)
    chosen = calls.losses(engine, starts, cohort).argmin(axis=1) if chooses else np.zeros(len(ids), dtype=int)
    return calls.train(engine, starts[chosen], cohort, local=local, key=(0, 0)).sum(axis=0)


def ours(path, name="auto"):
    """The rrcluster contender: the engine of `engine = auto`, or the one named, on as many hosts as there are cores."""
    import rrcluster as rr
    from rrcluster.engine.pick_engine import pick_engine
    from rrcluster.engine.reference import CPU
    from rrcluster.methods import METHODS
    from rrcluster.models import make_model
    from rrcluster.processes import cores
    from rrcluster.simulation.hosts import Hosts

    inputs, targets, starts = load(path)
    data = rr.from_arrays(inputs, targets, num_classes=10)
    model, method = make_model("cnn", input_shape=(1, 28, 28), num_classes=10), METHODS["ifca"]
    engine = pick_engine(name, model=model, device=CPU)
    host = Hosts.here(data, method=method, split=method.split(model), engine=engine).host
    hosts = Hosts(host, processes=cores())

    def train(*, chooses):
        firsts = range(0, len(targets), engine.part)
        parts = [(np.arange(first, min(first + engine.part, len(targets))), chooses) for first in firsts]
        sum(hosts.map(trained, starts, parts))

    train(chooses=False)  # starts the processes, as the other contenders have
    answer(lambda: train(chooses=False), lambda: train(chooses=True))


HERE = Path(__file__).parent
PEERS = Path(os.environ.get("RRCLUSTER_PEERS", HERE / "peers"))
CLIENTS, SAMPLES = 100, 60


def contenders():
    """Name -> command; peers only where their environment is installed."""
    found = {"rrcluster": [sys.executable, HERE / "contenders.py", "ours"]}
    found["plain loop"] = [sys.executable, HERE / "contenders.py", "plain"]
    for name in ("pfl", "flower"):
        python = PEERS / name / "bin" / "python"
        if python.exists():
            found[name] = [python, HERE / f"contend_{name}.py"]
        else:
            print(f"{name}: not installed in {PEERS}; research/benchmarks/make_peer_environments.sh installs it")
    return found


def write_workload(path, clients):
    """60 images for each client, from the bundled images (some of them twice) if the full data is missing."""
    from rrcluster.data.build import load_federated
    from rrcluster.errors import DataError
    from rrcluster.models import make_model

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
    """Processor time of a process and its descendants since their start."""
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
            print(f"{name}: did not start; run {' '.join(map(str, contenders()[name]))} by hand to see why")
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
    if sys.argv[1:2] in (["ours"], ["plain"]):
        {"ours": ours, "plain": plain}[sys.argv[1]](*sys.argv[2:])
    else:
        main(*map(int, sys.argv[1:]))
