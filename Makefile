# Every target sets up what it needs; a second call is quick because set-up leaves a stamp.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test fast format lint types layers setup clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/smle demo --output demo

format: $(READY)
	$(BIN)/ruff format src tests examples
	$(BIN)/ruff check --fix src tests examples

lint: $(READY)
	$(BIN)/ruff format --check src tests examples
	$(BIN)/ruff check src tests examples

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

# The inner loop: everything but the slow tests.
fast: lint types layers
	$(BIN)/pytest -q -m "not slow" -x

# Slow tests run without coverage, which would make the pure Python checker several times slower.
test: lint types layers
	$(BIN)/pytest -q -m slow
	$(BIN)/pytest -q -m "not slow" --cov --cov-report=term:skip-covered --cov-fail-under=85

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache
