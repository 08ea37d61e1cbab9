"""Make the runs behind docs/gallery.md and draw its figures, as `rrcluster report` draws them; about ten minutes.

python research/benchmarks/gallery.py FOLDER        (runs that are in FOLDER already are not repeated)
"""

import sys
from pathlib import Path

from PIL import Image

import rrcluster as rr
from rrcluster.report.figures import draw_figures, save_figures
from rrcluster.report.folders import find_runs

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
POPULATION = {"data": "fashion-mini", "num_clients": 1000, "num_rounds": 30, "delta": 1e-3, "evaluate_every": 2}
METHODS = {
    "fedavg": {"algorithm": "fedavg"},
    "ifca": {"algorithm": "ifca", "exploration": 0.0},
    "default": {"algorithm": "ifca"},
    "rr-cluster": {"algorithm": "ifca", "exploration": 0.0, "min_cluster_size": 20},
}
SIZES = (0, 8, 16, 24)
SEEDS = (0, 1, 2)


def run(folder, **settings):
    if not (folder / "summary.json").exists():
        rr.run(out=folder, progress=False, **POPULATION, **settings)


def main(folder):
    for seed in SEEDS:
        for epsilon in (2, 8):
            for name, method in METHODS.items():
                run(folder / "methods" / f"{name}-{epsilon}" / f"seed-{seed}", seed=seed, epsilon=epsilon, **method)
        for size in SIZES:
            settings = {"algorithm": "ifca", "exploration": 0.0, "min_cluster_size": size}
            run(folder / "sizes" / f"b{size}" / f"seed-{seed}", seed=seed, epsilon=8, **settings)
    GALLERY.mkdir(exist_ok=True)
    drawn = save_figures(draw_figures(find_runs([folder / "methods"])), GALLERY)
    over_sizes = save_figures(draw_figures(find_runs([folder / "sizes"])), folder / "figures")
    for path in (*drawn, *over_sizes):
        if path.suffix == ".pdf":
            path.unlink()
    (folder / "figures" / "min-cluster-size.png").rename(GALLERY / "min-cluster-size.png")
    for path in GALLERY.glob("*.png"):
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        small.save(path, optimize=True)  # a third of the bytes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
