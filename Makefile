# make demo   sets up what is missing, simulates the four-region scenario and writes its report
# make validate   runs the accuracy design on the lab and writes docs/validation.md
# make bench  measures speed and memory beside other simulators and writes docs/benchmarks.md
# make docs   builds this documentation as a site, out/site/index.html
# make gpu    measures what needs a GPU and writes docs/measurements.md
# make test   sets up what is missing and runs every check, in a few minutes
# make renew  makes the generated pages and the frozen lists of names and size again
# make check  looks at the commits that changed the frozen surface or size (tests/project/freeze.py)
# make test-all   runs the slow tests that `make test` leaves out; CI runs both

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Each process has its share of the files, and takes over from another once it is done; make test PARALLEL="-n 8".
PARALLEL := -n logical --dist worksteal --durations 30
# Python compiles what is imported; compiling all of torch and its company takes longer than the demo.
PIP := pip install --disable-pip-version-check --no-compile -c constraints.txt
# The index of torch's CPU builds, a tenth of the size of those for CUDA.
TORCH_CPU := https://download.pytorch.org/whl/cpu
# Where it is set, every process that a test starts compiles all of torch again, two seconds each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs renew check test test-all lab bench validate figures gpu

demo: $(VENV)/ready
	$(BIN)/paceline simulate scenarios/four-regions.yaml --out out/four-regions --force
	$(BIN)/paceline report out/four-regions --out out/four-regions/report.html
	@echo "open out/four-regions/report.html"

# The demo in a minute; its table of errors from the pages that `make validate`, `make gpu` and benchmarks.board write.
figures: demo
	$(BIN)/python -m docs.make.picture out/four-regions
	$(BIN)/python -m docs.make.readme

test: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p paceline -p tests -p benchmarks -p docs.make
	$(BIN)/lint-imports
	$(BIN)/pytest $(PARALLEL)

renew: $(VENV)/ready-dev
	for each in scenario schemes topologies; do $(BIN)/python -m docs.make.$$each || exit; done
	$(BIN)/python -m tests.project.freeze

check: $(VENV)/ready-dev
	$(BIN)/python -m tests.project.freeze --commits

# Without network; a warning, and a link that leads nowhere, fail it.
docs: $(VENV)/ready-dev
	$(BIN)/sphinx-build -q -W --keep-going -j auto docs out/site
	@echo "open out/site/index.html"

# Exactly the tests that `make test` leaves out as slow.
test-all: $(VENV)/ready-dev
	$(BIN)/pytest $(PARALLEL) -m "slow and not lab"

# Up to 40 minutes, on a quiet machine; what is complete is kept in out/validation and not repeated.
validate: $(VENV)/ready
	$(BIN)/python -m benchmarks.validation.campaign

# At most ten minutes. A torch with CUDA that this machine has is used; without one pip brings it.
gpu:
	@command -v nvidia-smi >/dev/null || { echo "make gpu: this machine has no CUDA device" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)-gpu
	$(PYTHON) -c "import sysconfig, torch; torch.version.cuda and print(sysconfig.get_path('purelib'))" 2>/dev/null \
	  > $$($(VENV)-gpu/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/with-cuda.pth || true
	$(VENV)-gpu/bin/pip install --disable-pip-version-check -e .
	PYTHONPATH=. $(VENV)-gpu/bin/python -m benchmarks.gpu

# Whole validations on two hosts, ten minutes more: .venv/bin/pytest -m "lab and slow"
lab: $(VENV)/ready-dev
	$(BIN)/pytest -m "lab and not slow"

# Twenty minutes, on a quiet machine. The peers get an environment of their own, $(VENV)-bench, which shares
# torch with this one; SimGrid is measured where it is installed (Debian: libsimgrid-dev python3-simgrid).
bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.speed.run

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): some minutes the first time, most of them for torch"
	@command -v nvidia-smi >/dev/null || $(BIN)/python -c "import torch" 2>/dev/null \
	  || $(BIN)/$(PIP) --no-deps --retries 0 --timeout 10 --index-url $(TORCH_CPU) torch \
	  || echo "the CPU build of torch cannot be had from $(TORCH_CPU): any other will do, and is larger"
	$(BIN)/$(PIP) -e .
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(BIN)/$(PIP) -e '.[dev,docs]'
	touch $@
