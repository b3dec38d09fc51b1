# `make demo` and `make test` do everything on a fresh machine with Python 3.11 to 3.14.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One stamp for what the library needs to run, and one for each extra: a target installs what it needs, once.
READY := $(VENV)/.ready
# Wheels only: a package that would have to be compiled is an error at once, not ten minutes of compiling.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --constraint constraints.txt

.PHONY: help demo explore test test-all test-random coverage lint size docs links certify bench report release-build release-check clean

help:
	@echo "make demo        set up, then fit the paper's gamma sample (summary; model and picture in build/)"
	@echo "make explore     set up, then open a page to play with machines, fits, networks and theta functions"
	@echo "make test        set up, then lint, types, layers, tests and doctests"
	@echo "make test-all    make test and make docs, and what takes long: paper runs, clusters, the code in documents, browsers"
	@echo "make test-random the tests with cases that hypothesis draws afresh"
	@echo "make coverage    the tests with the share of lines that they run; fails below the floor in pyproject.toml"
	@echo "make lint        the checks without the tests"
	@echo "make size        how much code each part has, beside its budget"
	@echo "make docs        the documentation, in build/docs; runs the examples"
	@echo "make links       the links of the documentation to other sites, which need a network"
	@echo "make certify     theta functions on 10,000 fresh hard cases against FLINT: values, moments, gradients"
	@echo "make bench       speed and accuracy against NumPy, FLINT, Gaussian mixtures, a spline flow and tanh, in build/"
	@echo "make report      the paper's experiments beside the paper's numbers, quick: build/paper-quick/report.html"
	@echo "make release-check  builds, metadata, and the wheel alone in a new environment; TAG=v0.1.0 checks the tag too"
	@echo "make clean       remove the environment and everything that was built"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and 'constraints.txt has versions for Python 3.11 to 3.14: make PYTHON=python3.12')"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(READY)-%: $(READY)
	$(PIP) --editable ".[$*]"
	touch $@

demo: $(READY)
	mkdir -p build
	$(BIN)/rtbm fit --output build/gamma.rtbm --picture build/gamma.png

explore: $(READY)-explore
	$(BIN)/rtbm explore

lint: $(READY)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/size.py

size: $(READY)
	$(BIN)/python tests/size.py

test: lint
	$(BIN)/python -m pytest -m "not slow"

test-all: lint docs
	$(BIN)/python -m pytest

test-random: $(READY)-test
	$(BIN)/python -m pytest -m "not slow" --hypothesis-profile random

coverage: $(READY)-test
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n 0 -m "not slow"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --sort cover

release-build: $(READY)-release
	$(BIN)/python tests/release_check.py --build-only $(if $(TAG),--tag $(TAG))

release-check: $(READY)-release
	$(BIN)/python tests/release_check.py $(if $(TAG),--tag $(TAG))

docs: $(READY)-docs
	rm -rf build/docs
	$(BIN)/python -m sphinx -W --keep-going -q docs build/docs
	@echo "open build/docs/index.html"

links: $(READY)-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b linkcheck docs build/links

certify: $(READY)-test
	$(BIN)/python tests/certify.py

report: $(READY)-bench
	$(BIN)/python -m experiments all --quick

bench: $(READY)-bench
	mkdir -p build
	$(BIN)/python benchmarks/theta.py --output build/theta.json
	$(BIN)/python benchmarks/machine.py --output build/machine.json
	$(BIN)/python benchmarks/density.py --output build/density.json
	$(BIN)/python benchmarks/learning.py --output build/learning.json
	$(BIN)/python benchmarks/layer.py --output build/layer.json
	$(BIN)/python benchmarks/features.py --output build/features.json
	$(BIN)/python benchmarks/files.py --output build/files.json

clean:
	rm -rf $(VENV) build docs/gallery docs/reference/generated .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
