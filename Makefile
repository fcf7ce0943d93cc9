# `make demo` and `make test` need Python 3.10 or later with venv, and g++. No GPU, no CUDA toolkit.

PYTHON ?= python3
WORKERS ?= 2
GPU_WORKERS ?= 14
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# No isolation: the build needs setuptools alone, and torch must not be fetched a second time for it.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
SOURCES := pyproject.toml setup.py README.md LICENSE $(shell find codegen templates scanops -type f -not -name '*.py[co]')
TYPED := build/typed
EPOCH = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || echo 315532800))
PREBUILT := $(CURDIR)/build/native

.PHONY: help demo test test-fast tests lint format types linked wheel golden docs pytorch-page site gpu-test test-against clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: $(STAMPS)/package  ## the five scans, generated, built and checked; with no GPU they are emulated
	$(BIN)/python -m examples.demo

test: lint  ## everything that needs no GPU: lint, types and all tests
	+$(MAKE) --no-print-directory --jobs 2 --output-sync=target types tests

tests: $(STAMPS)/tools  ## all tests that need no GPU
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-fast: $(STAMPS)/tools  ## one case of each test that is not slow: the inner loop
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --one-case $(PYTEST_ARGS)

lint: $(STAMPS)/tools  ## ruff, as a check
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(STAMPS)/tools  ## ruff, in place
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# A type checker cannot see the package-dir mapping of pyproject.toml, so the packages are linked into place.
types: $(STAMPS)/tools linked  ## strict mypy on the packages of the wheel, the benchmarks and the tools
	cd $(TYPED) && $(CURDIR)/$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p scanops -p benchmarks -p tools

linked:
	rm -rf $(TYPED) && mkdir -p $(TYPED)/scanops
	ln -s $(CURDIR)/scanops/* $(CURDIR)/codegen $(CURDIR)/templates $(TYPED)/scanops/
	ln -s $(CURDIR)/benchmarks $(CURDIR)/tools $(TYPED)/

wheel: build/wheel/stamp  ## sdist and wheel, under dist/, with the C++ call path for this torch and Python
	mkdir -p dist && cp build/wheel/scanops-* dist/

golden: $(STAMPS)/package  ## render generated/ again
	$(BIN)/python -m tools.golden

docs: $(STAMPS)/package  ## render the pages of docs/ that follow from the operator table
	$(BIN)/python -m tools.pages
	$(BIN)/python -m tools.performance

pytorch-page: $(STAMPS)/tools  ## docs/pytorch.md: try again what goes with what
	$(BIN)/python -m tests.torch_integration.page

site: $(STAMPS)/site linked  ## the documentation site, under build/site; needs neither torch nor a compiler
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(TYPED) $(BIN)/mkdocs build --quiet
	@echo "built $(CURDIR)/build/site/index.html"

gpu-test: $(STAMPS)/tools  ## the tests that need a GPU, in some minutes on 16 cores
	$(BIN)/python -m pytest -m gpu -n $(GPU_WORKERS) --maxschedchunk 1 $(PYTEST_ARGS)

test-against:  ## the tests with another torch, TORCH=2.15.0, and Python, AGAINST=python3.14: a row of docs/versions.md
	$(PYTHON) -m tools.against $(TORCH) --python $(or $(AGAINST),$(PYTHON)) --workers $(WORKERS)

clean:  ## everything that make built
	rm -rf $(VENV) build dist scanops.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "too old a Python; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

# torch comes first, at the pinned version; it warns at every import when numpy is missing.
$(STAMPS)/torch: $(STAMPS)/venv constraints.txt
	$(PIP) torch numpy setuptools
	touch $@

$(STAMPS)/package: $(STAMPS)/torch pyproject.toml
	$(PIP) --no-build-isolation --editable .
	touch $@

$(STAMPS)/tools: $(STAMPS)/package
	$(PIP) --no-build-isolation --editable '.[test,dev]'
	touch $@

# A group is installed without the package, and by a pip that knows groups.
$(STAMPS)/site: $(STAMPS)/venv pyproject.toml constraints.txt
	$(PIP) pip
	$(PIP) --group site
	touch $@

# The wheel is made from the unpacked sdist, so what the sdist lacks, the wheel lacks too.
build/wheel/stamp: $(SOURCES) $(PREBUILT)/stamp | $(STAMPS)/tools
	rm -rf build/wheel && mkdir -p build
	SOURCE_DATE_EPOCH=$(EPOCH) SCANOPS_PREBUILT=$(PREBUILT) $(BIN)/python -m build --no-isolation --outdir build/wheel . > build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	touch $@

# The C++ call path of this torch and Python; `python -m tools.prebuilt` adds others. What was built of other text goes.
$(PREBUILT)/stamp: $(wildcard scanops/runtime/native/source/*) scanops/build_request.py | $(STAMPS)/package
	rm -rf $(PREBUILT) && mkdir -p build && mkdir -m 700 $(PREBUILT)
	SCANOPS_STORE=$(PREBUILT) $(BIN)/python -m scanops.runtime.native.building
	touch $@
