# Two commands do all the set-up, each on its own: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := python -m pip --disable-pip-version-check --quiet
# PyPI's torch brings gigabytes of CUDA, so the CPU build is installed first. With a GPU: make demo TORCH_INDEX=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# In the environment $(1) with the options $(2); where the index is out of reach, PyPI's build comes with the rest.
cpu_torch = $(if $(TORCH_INDEX),-$(1)/bin/$(PIP) install --no-compile --no-deps --retries 1 --index-url $(TORCH_INDEX) $(2) torch)
# A stamp per set of extras, remade when what it was made from changes.
INPUTS := pyproject.toml constraints.txt

# What compares times is alone on the machine, whatever make is asked for.
.NOTPARALLEL:

.PHONY: demo test test-shared test-alone test-long hostile check style types format test-minimum test-newest bench bench-record bench-peers predictors gpu gpu-carry reproduce docs docs-outputs dist clean

demo: $(VENV)/.installed-demo
	$(BIN)/slotool demo --out demo-run --force

# Tests that compare times have the machine to themselves; the others share it, in the order of tests/conftest.py.
ALONE := tests/profiling/test_profiling_interference.py

test: test-shared test-alone

# Several workers share the cores, so threads of OpenMP that wait for each other sleep: spinning, they would keep those off
# whom they wait for.
test-shared: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m "not long" -n 3 --dist loadfile --no-loadscope-reorder \
	  tests --ignore=$(ALONE)

# Campaigns of minutes, and clusters that lose nodes. `make test` has a smaller one of each.
test-long: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m long -n 2 --dist loadfile tests

test-alone: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(ALONE)

# Rooms that use every package of a plain installation.
FEW := tests/artifacts tests/tables tests/graphs/test_graph_format.py tests/rules tests/scheduling tests/simulation \
  tests/reports tests/serving/test_serving_http.py

# The oldest versions that pyproject.toml admits, of what a plain installation needs and the tests of FEW.
test-minimum: .venv-minimum/.installed
	CI=true OMP_NUM_THREADS=1 .venv-minimum/bin/python -m pytest -q $(FEW)

.venv-minimum/.installed: pyproject.toml constraints-min.txt
	$(PYTHON) -m venv .venv-minimum
	$(call cpu_torch,.venv-minimum,-c constraints-min.txt)
	.venv-minimum/bin/$(PIP) install -c constraints-min.txt \
	  -e '.[onnx,grpc,report]' 'tritonclient[http]' pytest hypothesis httpx
	touch $@

# The newest uvicorn, torch and NumPy that fit the rest of constraints.txt: what users get who install today.
NEWEST := uvicorn torch numpy
test-newest:
	rm -rf .venv-newest && $(PYTHON) -m venv .venv-newest
	grep -vE '^($(subst $(eval) ,|,$(NEWEST)))==' constraints.txt > .venv-newest/constraints.txt
	$(call cpu_torch,.venv-newest,)
	.venv-newest/bin/$(PIP) install --upgrade -c .venv-newest/constraints.txt \
	  -e '.[test]' $(NEWEST)
	.venv-newest/bin/python -m pip freeze | grep -E '^($(subst $(eval) ,|,$(NEWEST)))=='
	CI=true OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -q $(FEW) tests/predictors tests/hostile

# Attacks for an hour; `make test` runs the same ones for seconds. Tests behind real proxies are skipped where no haproxy
# or nginx is on PATH: installing them (apt-get install haproxy nginx-light) needs root and is left to you.
HOSTILE_SECONDS ?= 3600
hostile: $(VENV)/.installed-test
	SLOTOOL_HOSTILE_SECONDS=$(HOSTILE_SECONDS) $(BIN)/python -m pytest tests/hostile

check: style types

style: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-check
	$(BIN)/mypy

format: $(VENV)/.installed-check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks

# What finishes within minutes, most telling first, for the results pages: some twenty minutes on an idle machine. Each
# file is written as its benchmark ends, so it may be stopped at any time.
RECORDED := served_request overload serving startup scheduling supernets kernel_checks generate rules profiling
bench-record: $(VENV)/.installed-test
	SLOTOOL_BENCH_TABLES=400 $(BIN)/python -m benchmarks --record $(RECORDED)
	$(BIN)/python -m docs.generate

# The shipped predictors that no command makes alone, fitted anew from datasets/ and from what they hold; each is kept
# where it is not worse on networks held out. Some five minutes of two cores.
predictors: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.refit --write

# The papers' figures at the small scale, for the results pages: some half an hour on an idle machine; it resumes.
reproduce: $(VENV)/.installed-demo
	$(BIN)/python -m benchmarks.reproduction all -o reproduction
	$(BIN)/python -m docs.generate.papers reproduction
	$(BIN)/python -m docs.generate

# Beside what a user would pick instead, wherever that must be installed first.
bench-peers: $(VENV)/.installed-test $(VENV)/.installed-peers
	$(BIN)/python -m benchmarks slo_nn referees serving_peers serving_limits front_ends

# The windows of GPU time on this machine's CUDA device, some 70 minutes; it resumes. Nothing is installed: GPU_PYTHON is
# a Python with a torch for CUDA and what benchmarks/GPU.md lists. GPU_OPTIONS: --window N, --rehearse.
GPU_PYTHON ?= $(PYTHON)
GPU_OPTIONS ?=
gpu:
	$(GPU_PYTHON) -m benchmarks.gpu $(GPU_OPTIONS)

# gpu-carry/: what a bare machine without a network needs beside the checkout. GPU_PYTHON has timm, torchvision and pip.
gpu-carry:
	$(GPU_PYTHON) -m benchmarks.gpu_carry

# The site, in site/; a broken link or reference ends it.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# What a release uploads, in dist/: source archive and wheel.
dist: $(VENV)/.installed-dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

# Write into the pages what is made of code and of recorded benchmarks, then what the examples of README, scenarios,
# tutorials and how-to guides print. `python -m docs.generate` does the first alone, in seconds.
docs-outputs: $(VENV)/.installed-test
	$(BIN)/python -m docs.generate
	$(BIN)/python -m tests.docs
	$(BIN)/python -m tests.docs.notebooks

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Python compiles a module when it is first imported: that of all packages at once takes longer than installing them.
$(VENV)/.installed-%: $(INPUTS) | $(BIN)/python
	$(call cpu_torch,$(VENV),-c constraints.txt)
	$(BIN)/$(PIP) install --no-compile -c constraints.txt -e '.[$*]'
	touch $@ $(if $(filter check,$*),$(VENV)/.installed-test $(VENV)/.installed-docs)

clean:
	rm -rf $(VENV) .venv-minimum .venv-newest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
