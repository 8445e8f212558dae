# `make demo` and `make test` need python3 (3.11 or later, with venv) and make, nothing else.
# What needs root, Go, PyTorch or a server has a target of its own: test-net, test-cluster, test-torch.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TESTS  ?= tests
PYTEST := $(BIN)/python -m pytest
# Bytecode is kept even where the environment forbids it: tests start hundreds of Pythons, and each
# would compile the library again (1.4 s of CPU for 0.3 s), and pytest every test's asserts.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-hostile test-net test-torch test-cluster test-cluster-heart test-cluster-faults test-cluster-lifecycle test-crosscheck lint types docs notebooks wheel bench clean

help:
	@echo "make demo          run a four-node gang on this machine, measure it, tear it down"
	@echo "make test          every test that needs only python3"
	@echo "make test-hostile  kill callers, supervisors and ranks at random moments (minutes)"
	@echo "make test-net      real networks between namespaces (root, iproute2)"
	@echo "make test-torch    the torch workload on gloo (installs PyTorch, 4.7 GB)"
	@echo "make test-crosscheck  the catalog against data in the clouds' own packages"
	@echo "make test-cluster  a real Kubernetes cluster on this machine (root, Go)"
	@echo "make test-cluster-heart  the part of it that .ci/run runs"
	@echo "make test-cluster-faults  every write of a launch failing in every way, on that cluster (long)"
	@echo "make lint types docs notebooks wheel bench"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "gpufabric needs Python 3.11 or later; $$($(PYTHON) --version) is here: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "python3 cannot make a virtual environment here (Debian: apt install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.run: $(BIN)/python pyproject.toml
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.run pyproject.toml
	@$(BIN)/python -m pip install --quiet --editable ".[all]" --group test
	@touch $@

$(VENV)/.dev: $(VENV)/.test pyproject.toml
	@$(BIN)/python -m pip install --quiet --group lint --group docs --group notebooks --group wheel
	@touch $@

demo: $(VENV)/.run
	@$(BIN)/python -m gpufabric demo

# Almost half of a test is waiting, so there are more workers than cores.
test: $(VENV)/.test
	$(PYTEST) -q -n 4 -m "not slow and not root and not torch and not cluster" $(TESTS)
	@echo "Kubernetes: against the in-process fake; make test-cluster runs the same on a real server"
	@echo "left out: long attacks and many random examples (make test-hostile), root (make test-net), Go (make test-cluster), PyTorch (make test-torch), clouds' own data (make test-crosscheck)"

test-hostile: $(VENV)/.test
	$(PYTEST) -q -m "slow and not cluster" $(TESTS)

test-net: $(VENV)/.test
	$(PYTEST) -q -m root $(TESTS)

CROSS := .venv-crosscheck
$(CROSS)/.crosscheck: pyproject.toml
	@$(PYTHON) -m venv $(CROSS)
	@$(CROSS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(CROSS)/bin/python -m pip install --quiet --editable . --group test --group crosscheck
	@$(CROSS)/bin/python -m pip install --quiet --no-deps xpk
	@touch $@

test-crosscheck: $(CROSS)/.crosscheck
	$(CROSS)/bin/python -m pytest -q $(TESTS)/unit/catalog -k crosscheck

CLUSTER  := $(PYTHON) tests/cluster/cluster.py
# Runs tests on a cluster that is ended afterwards, also where they fail or are interrupted.
ON_CLUSTER = trap '$(CLUSTER) down' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM HUP; $(CLUSTER) up
# Most of a test is waiting, so there are more workers than cores; a test waits for its turn in a fixture.
CLUSTER_RUN   = GPUFABRIC_TEST_CLUSTER=required $(PYTEST) -q -n 4 -o timeout_func_only=true --durations=15
CLUSTER_TESTS = $(CLUSTER_RUN) tests/kubernetes tests/cluster

test-cluster: $(VENV)/.test
ifdef GPUFABRIC_TEST_KUBECONFIG
	$(CLUSTER_TESTS) -m "not slow"
else
	@$(ON_CLUSTER) && $(CLUSTER_TESTS) -m "not slow"
endif

# The heart of test-cluster, in minutes: what every backend keeps, gangs, live use, what serves, controllers, logins.
CLUSTER_HEART = $(addprefix tests/kubernetes/,test_contract.py test_gangs.py test_live.py test_client.py test_server.py test_reading.py test_serve.py) \
	$(addprefix tests/cluster/,test_login.py test_jobs.py test_controllers.py test_live_faults.py)

test-cluster-heart: $(VENV)/.test
	@$(ON_CLUSTER) && $(CLUSTER_RUN) $(CLUSTER_HEART) -m "not slow"

test-cluster-faults: $(VENV)/.test
	@$(ON_CLUSTER) && $(CLUSTER_TESTS) -m slow

test-cluster-lifecycle: $(VENV)/.test
	GPUFABRIC_TEST_CLUSTER=lifecycle $(PYTEST) -q -m cluster tests/cluster/test_lifecycle.py

TORCH := .venv-torch
$(TORCH)/.torch: pyproject.toml
	@$(PYTHON) -m venv $(TORCH)
	@$(TORCH)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(TORCH)/bin/python -m pip install --quiet --editable . --group test torch==2.13.0
	@touch $@

test-torch: $(TORCH)/.torch
	$(TORCH)/bin/python -m pytest -q -m torch $(TESTS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -q -n -W --keep-going -b html docs docs/_build/html
	$(BIN)/sphinx-build -q -n -W --keep-going -b doctest docs docs/_build/doctest

notebooks: $(VENV)/.dev
	$(BIN)/python notebooks/run.py

wheel: $(VENV)/.dev
	rm -rf build/wheel && $(BIN)/python -m build --quiet --wheel --outdir build/wheel .
	rm -rf build/empty && $(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet build/wheel/*.whl
	cd build && empty/bin/python -m gpufabric demo --nodes 2 > /dev/null
	@echo "the wheel installs into an empty environment and runs"

bench: $(VENV)/.test
	@for program in benchmarks/bench_*.py; do echo "== $$program"; $(BIN)/python $$program || exit 1; done

clean:
	rm -rf $(VENV) .venv-torch build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
