# make demo   set up, run the main job on the embedded default
# make test   set up, run all tests
# make quick  set up, run the quick tests
# make check  set up, lint, types, import contracts, tests
# make lowest the quick tests with the lowest versions that pyproject.toml allows
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq
EXTRA  ?= dev
# A worker keeps to neighbouring tests, which share what they set up.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
# Flags and configs, exact results, and of each family a prediction and a training.
QUICK  := tests/cli tests/test_config.py tests/test_images.py tests/test_pretrained.py \
	tests/train/test_train_loop.py tests/train/test_train_search.py \
	tests/tokens/test_cli_tokens.py tests/tokens/test_integration.py \
	tests/tokens/test_integration_masked.py tests/tokens/test_cost.py tests/tokens/test_train_runs.py \
	tests/patches/test_patches_golden.py tests/patches/test_patches_predict.py \
	tests/patches/test_patches_pooling.py tests/patches/test_patches_train.py \
	tests/pixels/test_pixels_golden.py tests/pixels/test_pixels_use.py \
	tests/pixels/test_pixels_train.py tests/pixels/test_pixels_onnx.py \
	tests/shots/test_shots_pipeline.py tests/shots/test_shots_learned.py tests/shots/test_pool_index.py

.PHONY: demo test quick lint types contracts check lowest clean
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
	$(PIP) install $(OPTIONS) -e .
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.user
	echo "setting up the test tools (once) ..."
	$(PIP) install $(OPTIONS) -e '.[$(EXTRA)]'
	touch $@

demo: $(VENV)/.user
	$(BIN)/eligo demo
	echo "To call eligo yourself: source $(BIN)/activate"

test: $(VENV)/.dev
	$(PYTEST)

quick: $(VENV)/.dev
	$(PYTEST) $(QUICK)

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/deno lint --quiet

types: $(VENV)/.dev
	$(BIN)/pyright
	$(BIN)/deno check --quiet src/eligo/explorer/page/main.js

contracts: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

check: lint types contracts test

lowest: $(BIN)/python
	$(BIN)/python .ci/lowest.py > $(VENV)/lowest.txt
	$(MAKE) --no-print-directory quick VENV=$(VENV)/lowest EXTRA=test OPTIONS='--no-compile -c $(VENV)/lowest.txt'

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
