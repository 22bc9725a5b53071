# make demo   set up, run the main job on the embedded default
# make test   set up, run all tests
# make quick  set up, run the quick tests
# make check  set up, lint, types, tests
# make lowest the quick tests with the lowest versions that pyproject.toml allows
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq
# Every command's flags, the configs, and of each family exact results, a prediction and a training.
QUICK  := tests/cli tests/test_config.py

.PHONY: demo test quick lint types check lowest clean
.DEFAULT_GOAL := help
.SILENT:

help:
	sed -n '1,5s/^# //p' Makefile

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"eligo needs Python >= 3.11, {sys.executable} is {sys.version.split()[0]}; try make PYTHON=python3.12")'
	echo "setting up $(VENV) (once, a minute or two) ..."
	$(PYTHON) -m venv $(VENV)

# A build of torch offered by pip's configured find-links (a CPU build, say) is taken first:
# without it the registry's newest comes, with gigabytes of GPU libraries.
$(VENV)/.user: pyproject.toml | $(BIN)/python
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install --no-index --no-deps 'torch>=2.11,<2.14' 2>/dev/null || true
	$(PIP) install $(CONSTRAINTS) -e .
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.user
	echo "setting up the test tools (once) ..."
	$(PIP) install $(CONSTRAINTS) -e '.[dev]'
	touch $@

demo: $(VENV)/.user
	$(BIN)/eligo demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto

quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto $(QUICK)

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/pyright

check: lint types test

lowest: $(BIN)/python
	$(BIN)/python .ci/lowest.py > $(VENV)/lowest.txt
	$(MAKE) --no-print-directory quick VENV=$(VENV)/lowest CONSTRAINTS='-c $(VENV)/lowest.txt'

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
