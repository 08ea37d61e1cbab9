"""Arms of a study, each run over several seeds: what the studies under research/benchmarks/ share."""

import json
from statistics import fmean

from rrcluster.runs.sweep import FINISHED, Job, Outcome, run_jobs


def jobs(study, arms, *, seeds, device, out):
    made = []
    for place, (name, settings) in enumerate(arms):
        for seed in seeds:
            folder = out / study / f"{place:04d}" / f"seed-{seed}"
            values = {"arm": name, "epsilon": settings["epsilon"], "seed": seed}
            made.append(
                Job(f"{name}, {seed}", values, {**settings, "seed": seed, "device": device, "out": str(folder)}, folder)
            )
    return made


def measured(folder):
    """The last evaluation of a run: that of the models handed out; and what the run cost."""
    lines = [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    stated = json.loads((folder / "privacy.json").read_text())
    return {
        "accuracy": 100 * lines[-1]["accuracy"],
        "worst decile": 100 * lines[-1]["worst_decile"],
        "clusters in use": lines[-1]["clusters_alive"],
        "in their own cluster": lines[-1]["clustering_accuracy"],
        "noise multiplier": stated["noise"]["noise_multiplier"],
        "epsilon stated": stated["epsilon"],
        "epsilon, cohorts seen": stated["participation"]["towards"][1]["epsilon"],
    }


def table(done):
    """One row per arm and epsilon, over its seeds."""
    rows = []
    for key, runs in done.items():
        arm, epsilon = json.loads(key)
        accuracies = [run["accuracy"] for _, run in sorted(runs)]
        clustered = [run["in their own cluster"] for _, run in sorted(runs)]
        rows.append(
            {
                "arm": arm,
                "epsilon": epsilon,
                "accuracy": round(fmean(accuracies), 2),
                "seeds": [seed for seed, _ in sorted(runs)],
                "accuracies": [round(value, 2) for value in accuracies],
                "worst decile": round(fmean(run["worst decile"] for _, run in runs), 2),
                "clusters in use": [run["clusters in use"] for _, run in sorted(runs)],
                "in their own cluster": [round(value, 4) for value in clustered],
                "groups found in": sum(value > 0.9 for value in clustered),
                **{name: runs[0][1][name] for name in ("noise multiplier", "epsilon stated", "epsilon, cohorts seen")},
            }
        )
    return rows


def run(study, arms, given, run_jobs=run_jobs):
    """Run the arms, and write and print their table."""
    todo, done = jobs(study, arms, seeds=given.seeds, device=given.device, out=given.out), {}
    given.out.mkdir(parents=True, exist_ok=True)
    for step in run_jobs(todo):
        if not isinstance(step, Outcome):
            continue
        if step.status != FINISHED:
            print(f"{step.job.name}: {step.status}: {step.reason}", flush=True)
            continue
        values = step.job.values
        runs = done.setdefault(json.dumps([values["arm"], values["epsilon"]]), [])
        runs.append((values["seed"], measured(step.job.folder)))
        (given.out / f"{study}.json").write_text(json.dumps(table(done), indent=1) + "\n")
    for row in table(done):
        found = f"{row['groups found in']} of {len(row['seeds'])}"
        print(f"{row['arm']}, epsilon {row['epsilon']:g}: {row['accuracy']:.1f}, groups found in {found}")
