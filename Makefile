# The only commands of this project. A fresh machine needs Python 3.11 or later and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev
STAMP_BENCH := $(VENV)/.installed-bench

.PHONY: run test test-long check bench format clean

run: $(STAMP)  ## answer three questions of growing difficulty on the embedded orchestra
	@$(BIN)/python examples/run.py

test: $(STAMP_DEV)  ## every test but the long ones
	$(BIN)/python -m pytest -m "not long"

test-long: $(STAMP_DEV)
	$(BIN)/python -m pytest

check: $(STAMP_DEV)  ## style, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_docs.py

bench: $(STAMP_BENCH)  ## performance, as ratios in one run
	$(BIN)/python bench/all.py

format: $(STAMP_DEV)
	$(BIN)/ruff check --fix . || true
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Batuta needs Python 3.11 or later; $(PYTHON) is older. Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing. Install it: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(STAMP_DEV): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(STAMP)

$(STAMP_BENCH): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	@touch $@ $(STAMP) $(STAMP_DEV)
