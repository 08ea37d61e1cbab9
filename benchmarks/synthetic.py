"""Does random rebalancing keep clusters from collapsing? The paper's four synthetic scenarios over many seeds.

    python benchmarks/synthetic.py --seeds 100 --out docs/results [--starts far near] [--workers 2]

Prints the table of docs/results/synthetic.md as Markdown and writes the paper's 4 x 3 figure as PNG and PDF.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rrcluster.paper.scenario_panels import draw_scenarios
from rrcluster.paper.synthetic_study import NOISES, STARTS, Comparison, Rate, compare, study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    asked = parser.parse_args()
    began = time.perf_counter()
    with ProcessPoolExecutor(asked.workers) as pool:
        jobs = [(seed, asked.starts, asked.noises) for seed in range(asked.seeds)]
        outcomes = [one for some in pool.map(one_seed, jobs) for one in some]
    print(markdown(compare(outcomes)))
    print(f"\n{len(outcomes)} runs in {time.perf_counter() - began:.0f} s")
    drawing = draw_scenarios()
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "synthetic.png").write_bytes(drawing.png)
    (asked.out / "synthetic.pdf").write_bytes(drawing.pdf)


def one_seed(job):
    seed, starts, noises = job
    return list(study([seed], starts=starts, noises=noises))


def markdown(rows: list[Comparison]) -> str:
    head = "| scenario | first models | noise, rebalancing | IFCA collapsed | RR collapsed | only IFCA / only RR | p | "
    lines = [head + "untrained IFCA / RR | clustering accuracy IFCA / RR |", "|" + " --- |" * 9]
    for row in rows:
        untrained = f"{row.ifca_untrained.share:.0%} / {row.rr_untrained.share:.0%}"
        found = " / ".join(f"{100 * share:.1f}" for share in row.clustering_accuracy)
        lines.append(
            f"| {row.scenario.removeprefix('synthetic-')} | {row.start} | {row.noise} | {rate(row.ifca)} | "
            f"{rate(row.rr)} | {row.ifca_only} / {row.rr_only} | {row.p_value:.2g} | {untrained} | {found} |"
        )
    return "\n".join(lines)


def rate(it: Rate) -> str:
    low, high = it.interval
    return f"{it.share:.0%} ({100 * low:.0f} to {100 * high:.0f})"


if __name__ == "__main__":
    main()
