# Every target sets up what it needs; a second call is quick because set-up leaves a stamp.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

PYTEST = $(BIN)/pytest -q -n $(WORKERS) --dist worksteal
AUDIT := audit-tests audit-studies audit-examples audit-coverage audit-floors audit-pythons

# What every version has to do: tables in, rules, proofs, models of other libraries, files and commands.
CORE := tests/tables tests/rules tests/solvers tests/regions tests/advice tests/certificates tests/heads tests/doors tests/graphs tests/test_package.py
FOR_TESTS := hypothesis jsonschema lightgbm polars pytest pytest-xdist xgboost-cpu
PYTHONS ?= python3.10 python3.12 python3.13

.PHONY: demo test audit $(AUDIT) format lint types layers setup checker smoke sbom licenses clean docs

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/smle demo --output demo
	@echo "To type smle yourself: . $(BIN)/activate"

format: $(READY)
	$(BIN)/ruff format src studies tests examples packaging
	$(BIN)/ruff check --fix src studies tests examples packaging

lint: $(READY)
	$(BIN)/ruff format --check src studies tests examples packaging
	$(BIN)/ruff check src studies tests examples packaging

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

# What CI runs. Without coverage, which makes the pure Python checker several times slower.
test: lint types layers
	$(PYTEST) -m "not audit"

# The rest, before a release and at night. Each part can be run alone; `make -k audit` goes on after one that fails.
audit: $(AUDIT)

# Long sweeps, all mutations, compilers.
audit-tests: $(VENV)/.audit
	$(PYTEST) -m audit --ignore=tests/studies

# Quick runs of every bench and of the reproduction, clusters, verifiers, fuzzing.
audit-studies: $(VENV)/.audit build/verifiers/.ready
	SMLE_VERIFIERS=$(CURDIR)/build/verifiers/bin/python $(PYTEST) -m audit tests/studies

# New examples for every law that hypothesis draws examples for, five times.
audit-examples: $(READY)
	for run in 1 2 3 4 5; do $(PYTEST) -m hypothesis --hypothesis-profile=explore || exit 1; done

audit-coverage: $(READY)
	$(PYTEST) -m "not audit" --cov --cov-report=term:skip-covered --cov-fail-under=95

# The lowest versions that pyproject.toml allows, in an environment of their own. They may warn about each other.
audit-floors: build/floors/.ready
	build/floors/bin/python -m pytest -q -n $(WORKERS) -W default -m "not audit" $(CORE) tests/end_to_end

build/floors/.ready: pyproject.toml constraints.txt packaging/floors.py
	$(PYTHON) packaging/floors.py build/floors $(FOR_TESTS)
	touch build/floors/.ready

# Other versions of Python, with the newest packages and without torch: what needs it is skipped, and listed.
audit-pythons:
	for python in $(PYTHONS); do \
	    $$python -c pass 2> /dev/null || { echo "$$python is not there: not tried."; continue; }; \
	    place=build/$$($$python -c "import sys; print('python%d.%d' % sys.version_info[:2])"); \
	    $$python -m venv $$place && \
	    $$place/bin/python -m pip install --quiet --disable-pip-version-check -e ".[onnx,parquet]" $(FOR_TESTS) && \
	    $$place/bin/python -m pytest -q -n $(WORKERS) -W default -m "not audit" $(CORE) || exit 1; \
	done

$(VENV)/.audit: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[audit]"
	touch $(VENV)/.audit

# Verifiers that need other versions of what smle needs.
build/verifiers/.ready:
	$(PYTHON) -m venv build/verifiers
	build/verifiers/bin/python -m pip install --quiet --disable-pip-version-check vibecheck-nn==1.1.0 pynever==1.3.2
	touch build/verifiers/.ready

# The checker alone, for auditors: one file that runs with Python only, and a wheel of the same sources.
checker: $(READY)
	$(BIN)/python packaging/archive.py build/smle-check.pyz
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build packaging/smle-check

# Both wheels and the archive, each tried in an empty environment, with the README as it is typed. Minutes: torch is installed.
smoke: checker
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build .
	$(BIN)/python packaging/smoke.py build

# Warnings are errors, broken links among them.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $(VENV)/.docs

# What the environment is made of. The tools live in an environment of their own, so that they do not list themselves.
TOOLS := build/supply-chain

$(TOOLS)/.ready: constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt cyclonedx-bom pip-licenses
	touch $(TOOLS)/.ready

sbom: $(READY) $(TOOLS)/.ready
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	    --output-file build/sbom.cdx.json $(BIN)/python

licenses: $(READY) $(TOOLS)/.ready
	$(TOOLS)/bin/pip-licenses --python=$(BIN)/python --format=markdown --with-urls --output-file=build/licenses.md

clean:
	rm -rf $(VENV) build demo .mypy_cache .ruff_cache .pytest_cache
