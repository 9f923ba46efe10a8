# make demo    trains on the digits, prints a table, draws runs/demo.png
# make test    all tests on TensorFlow, then the optimizers' on JAX and torch
# make lint    ruff
# make clean   removes what was made, the environment too
# Each makes the environment that it needs, once: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

INSTALL = $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt
PYTEST = $(VENV)/bin/python -m pytest --quiet --numprocesses $(WORKERS) --dist worksteal

.PHONY: demo test test-tensorflow test-jax test-torch lint format clean

demo: $(VENV)/.examples
	$(VENV)/bin/python -m examples.demo

test: test-tensorflow test-jax test-torch

test-tensorflow: $(VENV)/.test
	KERAS_BACKEND=tensorflow $(PYTEST)

test-jax test-torch: test-%: $(VENV)/.test
	KERAS_BACKEND=$* $(PYTEST) tests keras_adanorm

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/.test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# A marker is written once all is installed, so that a broken installation is made again.
$(VENV)/.examples: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable ".[examples]"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable ".[test,dev]"
	touch $@ $(VENV)/.examples
