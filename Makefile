# make demo            trains on the digits, prints a table, draws runs/demo.png
# make test            the tests of the optimizers on TensorFlow and JAX, a few cases of each
# make test-all        all tests, on TensorFlow, JAX and torch
# make test-versions   the tests of the optimizers with older and newer versions, see tox.toml
# make test-nightly    the same with the nightly build of Keras
# make test-accelerator   counts what an update is compiled to for a GPU that need not be there
# make docs            builds the pages in docs/ into site/
# make lint, make format, make clean
# Each makes the environment that it needs, once, in .venv. Another Python or folder:
# make PYTHON=python3.12 VENV=.venv312 test

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

INSTALL = $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt
PYTEST = $(VENV)/bin/python -m pytest --quiet --numprocesses $(WORKERS) --dist worksteal

.PHONY: demo test test-accelerator test-all test-all-tensorflow test-all-jax test-all-torch test-tensorflow test-jax test-versions \
	test-nightly docs lint format clean

demo: $(VENV)/.demo
	$(VENV)/bin/python -m examples.demo

test: test-tensorflow test-jax

test-all: test-all-tensorflow test-all-jax test-all-torch

test-tensorflow test-jax: test-%: $(VENV)/.test
	KERAS_BACKEND=$* $(PYTEST) --optimizers-only --quick tests keras_adanorm

test-all-tensorflow: $(VENV)/.dev
	KERAS_BACKEND=tensorflow $(PYTEST)

test-all-jax test-all-torch: test-all-%: $(VENV)/.dev
	KERAS_BACKEND=$* $(PYTEST) tests keras_adanorm

test-versions: $(VENV)/.dev
	$(VENV)/bin/tox run --skip-missing-interpreters true

test-nightly: $(VENV)/.dev
	$(VENV)/bin/tox run -e nightly

test-accelerator: $(VENV)/.accelerator
	JAX_PLATFORMS=cpu $(VENV)/bin/python -m pytest --quiet tests/test_accelerator.py

docs: $(VENV)/.docs
	DISABLE_MKDOCS_2_WARNING=true TF_CPP_MIN_LOG_LEVEL=3 $(VENV)/bin/mkdocs build --strict

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .tox .mypy_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# A file is written once all is installed, so that a broken installation is made again.
$(VENV)/.test $(VENV)/.accelerator $(VENV)/.docs $(VENV)/.dev: $(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable ".[$*]"
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable ".[examples]"
	touch $@
