"""How the time of a round grows with the cohort, the population, the number of clusters and the number of processes.

    python research/benchmarks/scaling.py [--quick] [--out docs/results]

Every point is a process of its own that runs rounds of `rrcluster` on fashion-mini, 40 images a client, and reports the
median round and its peak memory; the points of a row are measured in turns, round robin, so that a machine that drifts
slows all of them alike. Times are relative to the first point of their row: processor time of one thread, which other
programs hardly change, and for processes the time by the clock.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

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
    import numpy as np
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
    given = parser.parse_args()
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
