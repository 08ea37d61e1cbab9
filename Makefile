# Everything runs in .venv in this folder; the first target that needs it makes it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP_INSTALL := pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python -m $(PIP_INSTALL)

FLOWER := .venv-flower/bin/python
FLOWER_READY := .venv-flower/.ready

.PHONY: install lock demo test federation test-flower test-three-nodes campaign lint slow slow-flower bench bench-gpu scaling docs clean

install: $(READY)

# Every file has to have a hash of requirements/, but torch: which of its files is right depends on the machine (CPU or
# CUDA, sometimes a file on its own disk). What torch needs is installed before it, so its step downloads nothing else
# (a CUDA build adds NVIDIA's libraries). pip and setuptools come first: those of an old Python have known holes.
$(READY): pyproject.toml constraints.txt requirements/bootstrap.txt requirements/dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --require-hashes --no-deps --requirement requirements/bootstrap.txt
	$(PIP) --require-hashes --no-deps --requirement requirements/dev.txt
	$(PIP) --constraint constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(PIP) --no-deps --no-build-isolation --editable . --editable research
	touch $@

# After a change of constraints.txt or of the dependencies: hashes of every pinned file, from the package index.
lock: $(READY)
	$(BIN)/python tools/lock.py

# Bundled images in four made groups, then a bundled table of real people: four methods each at the same (epsilon,
# delta), a table and a page. Offline.
demo: $(READY)
	rm -rf runs/demo runs/demo-people
	$(BIN)/rrcluster sweep examples/four-methods.yaml --out runs/demo --report
	$(BIN)/rrcluster sweep examples/real-people.yaml --out runs/demo-people --report

test: lint
	$(BIN)/python -m pytest -q -m "not slow" -n 2

# Eight members over TLS on this machine: plain rounds beside the simulator's, secure ones, a node killed and all
# connections lost on the way, a table of seconds and bytes. About two minutes.
federation: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python research/benchmarks/federation.py

test-flower: $(FLOWER_READY)
	$(FLOWER) -m pytest -q -m "not slow" tests/federation/test_flower*.py

# Of these the one that continuous integration runs: three members, plain rounds beside the simulator's.
test-three-nodes: $(FLOWER_READY)
	$(FLOWER) -m pytest -q --durations=1 tests/federation/test_flower.py -k test_plain_rounds

# Sixty kills, three cut cables and a flood over TLS, in plain mode: about 25 minutes; prints what came of it.
campaign: $(READY)
	OMP_NUM_THREADS=1 PYTHONPATH=tests/federation $(BIN)/python tests/federation/campaign_lab.py $$(mktemp -d)/c 60 1

# Flower's SuperLink behind nginx: two minutes.
slow-flower: $(FLOWER_READY)
	$(FLOWER) -m pytest -q -m slow tests/federation/test_flower*.py

# Flower's pins clash with four of ours, so it has an environment of its own on top of .venv: what .venv has not, or in
# another version, is installed there, and everything else comes from .venv.
$(FLOWER_READY): $(READY) requirements/flower.txt
	$(PYTHON) -m venv --clear .venv-flower
	$(FLOWER) -m $(PIP_INSTALL) --require-hashes --no-deps --requirement requirements/bootstrap.txt
	$(FLOWER) -m $(PIP_INSTALL) --require-hashes --no-deps --requirement requirements/flower.txt
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(FLOWER) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth
	touch $@

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

# Start, networks that people bring, W beside its peers, everybody in every round: one table, compared with the last
# (docs/results/bench.json). A few minutes; seconds mean something on an idle machine only.
bench: $(READY)
	$(BIN)/python research/benchmarks/bench.py

# Needs fashion-mnist and a CUDA build of torch in .venv.
bench-gpu: $(READY)
	$(BIN)/python research/benchmarks/gpu.py

# How the time of a round grows: about a quarter of an hour; writes docs/results/scaling.{png,pdf,json}.
scaling: $(READY)
	$(BIN)/python research/benchmarks/scaling.py

# The site: open site/index.html. It asks for nothing from elsewhere, and its search works from disk too.
docs: .venv/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.docs-ready: $(READY) requirements/docs.txt
	$(PIP) --require-hashes --no-deps --requirement requirements/docs.txt
	touch $@

clean:
	rm -rf .venv .venv-flower runs site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
