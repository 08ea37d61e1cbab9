# Everything runs in .venv in this folder; the first target that needs it makes it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: install demo test lint slow bench bench-gpu scaling docs clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

# A private clustering on the bundled images: four methods at the same (epsilon, delta), a table and a page.
demo: $(READY)
	rm -rf runs/demo
	$(BIN)/rrcluster run examples/demo.yaml --algorithm fedavg --out runs/demo/1-dp-fedavg
	$(BIN)/rrcluster run examples/demo.yaml --algorithm ifca --exploration 0 --out runs/demo/2-dp-ifca
	$(BIN)/rrcluster run examples/demo.yaml --algorithm ifca --exploration 0 -B 40 --out runs/demo/3-rr-cluster
	$(BIN)/rrcluster run examples/demo.yaml --algorithm ifca --out runs/demo/4-exploration
	$(BIN)/rrcluster report runs/demo

test: lint
	$(BIN)/python -m pytest -q -m "not slow" -n 2

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

bench: $(READY)
	$(BIN)/python benchmarks/round_time.py
	$(BIN)/python benchmarks/compare_cpu.py

# Needs fashion-mnist and a CUDA build of torch in .venv.
bench-gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py

# How the time of a round grows: about a quarter of an hour; writes docs/results/scaling.{png,pdf,json}.
scaling: $(READY)
	$(BIN)/python benchmarks/scaling.py

# The site, in site/: needs nothing from elsewhere once it is built.
docs: .venv/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv runs site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
