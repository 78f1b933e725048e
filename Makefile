# make test and make tune need nothing but this file, Python 3.11 or newer and make: they set up .venv themselves.
PYTHON ?= python3
TUNE_ARGS ?=
GPU_ARGS ?=
GPU_CACHE ?= .cupy-cache
# make gpu-check KIND=2: what needs several devices, on two of them, and nothing else.
KIND ?=

VENV := .venv
VENV_TORCH := .venv-torch
VENV_JAX := .venv-jax
BIN := $(VENV)/bin

# The CUDA version that device 0's driver supports, as a package extra; empty where no device answers.
CUDA := $(shell nvidia-smi -i 0 2>/dev/null | sed -n 's/.*CUDA[^0-9]*Version: *\(1[23]\)\..*/,cuda\1/p')

READY_TEST := $(VENV)/.ready-test,notebooks
READY_TUNE := $(VENV)/.ready-tune$(CUDA)
READY_TORCH := $(VENV)/.ready-test,torch
READY_JAX := $(VENV)/.ready-test,jax

.DELETE_ON_ERROR:
# The environment is made by one process; the checks of `make test` run side by side, since mypy takes one core for a minute.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: docs test test-all test-torch test-jax lint tune bench gpu-check clean check-style check-format check-types check-tests check-torch check-jax

CHECKS := check-style check-format check-types

# --keep-going: a style error does not hide the tests' result; any failure still fails the target.
test: $(READY_TEST)
	@$(MAKE) --no-print-directory --keep-going --jobs 2 SIDE_BY_SIDE=yes $(CHECKS) check-tests MARKS="-m 'not slow'"

# The same, and the tests marked slow.
test-all: $(READY_TEST)
	@$(MAKE) --no-print-directory --keep-going $(CHECKS) check-tests docs

# The tests that need torch, slow ones too, with a torch that runs on the host: in a .venv-torch of their own, since it is
# large, and brings types that mypy would read in the other one.
test-torch:
	@$(MAKE) --no-print-directory VENV=$(VENV_TORCH) check-torch

# The tests that need JAX, which runs on the host; in a .venv-jax of their own.
test-jax:
	@$(MAKE) --no-print-directory VENV=$(VENV_JAX) check-jax

# The site, in build/site/; a warning fails it.
docs: $(READY_TEST)
	$(BIN)/mkdocs build --strict --quiet

lint: $(READY_TEST)
	@$(MAKE) --no-print-directory --keep-going $(CHECKS)

tune: $(READY_TUNE)
	$(BIN)/fmm-tune $(TUNE_ARGS)

bench: $(READY_TUNE)
	$(BIN)/python -m benchmarks cpu

# Runs in the active Python, which holds CuPy, and fails where no device answers: a check that checks nothing is no pass.
# GPU_ARGS="--time-limit S": a piece of it; the same command goes on, until nothing is left.
# GPU_CACHE: a folder for compiled kernels, which can be taken along to the next machine with such a device.
gpu-check: export CUPY_CACHE_DIR ?= $(abspath $(GPU_CACHE))
gpu-check:
	@$(PYTHON) -c 'import sys; from tests.support.cuda_device import no_device; sys.exit(no_device())'
	$(PYTHON) -m benchmarks.gpu_check $(if $(KIND),--gpus $(KIND)) $(GPU_ARGS)

check-style: $(READY_TEST)
	$(BIN)/ruff check .

check-format: $(READY_TEST)
	$(BIN)/ruff format --check .

check-types: $(READY_TEST)
	$(BIN)/mypy

# MARKS: pytest's -m option; empty for every test.
MARKS :=
# Each process takes the next test of its own share, then from the other's share.
SHARED := --numprocesses logical --maxprocesses 8 --dist worksteal

# Compiling modules takes half of a short process, and the tests start many. Where nothing is to be written beside the
# modules, the compiled ones go into the tests' cache.
COMPILED := $(if $(PYTHONDONTWRITEBYTECODE),env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX='$(abspath .test-cache/python)')

check-tests: $(READY_TEST)
	$(COMPILED) $(BIN)/python -m pytest $(MARKS) $(SHARED)

# Those that ask for a CUDA device are `make gpu-check`'s.
check-torch: $(READY_TORCH)
	$(COMPILED) $(BIN)/python -m pytest -m 'not gpu' $(SHARED) $$(grep -rl --include='test_*.py' 'importorskip("torch' tests)

check-jax: $(READY_JAX)
	$(BIN)/python -m pytest $$(grep -rl --include='test_*.py' 'importorskip("jax' tests)

clean:
	rm -rf $(VENV) $(VENV_TORCH) $(VENV_JAX) .test-cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras, written after the installation: an interrupted one is repeated. (Python compiles modules
# when they are loaded; most never are.)
$(VENV)/.ready-%: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$*]'
	@touch '$@'

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fmm needs Python 3.11 or newer; PYTHON=$(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	@touch $@
