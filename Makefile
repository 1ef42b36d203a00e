# Every public command of this repository. `make` alone lists them.

PYTHON ?= python3
SUITE ?= store

VENV := .venv
BIN := $(VENV)/bin
KERNEL_SOURCES := $(wildcard src/contrail/kernels/*.py src/contrail/kernels/*.pxd)

# Stamps: the environment is made once and again when the metadata changes; kernels are rebuilt when
# a source is newer. The build mode is part of the name, so switching modes rebuilds too.
INSTALLED := $(VENV)/.installed
KERNELS := $(VENV)/.kernels-$(or $(CONTRAIL_KERNELS),auto)

# Two workers, a whole file each, in the order of tests/conftest.py: most of these tests wait for
# other processes. Spark fills the machine by itself: all its tests share one session. What measures,
# or moves the clock of a broker that must keep up, runs alone last.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
ALONE := $(wildcard tests/e2e/test_bench_*.py tests/e2e/test_cold_reads.py \
	tests/history/test_kills_timer.py tests/history/test_kills_client.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check bench bench-compare bench-quick torture docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(KERNELS) ## make .venv and build the kernels, when needed and only then

demo: setup ## a cluster of two brokers, messages of every kind, a kill -9, Spark on them, a report
	@scripts/tools.sh spark
	$(BIN)/python scripts/demo.py

test: setup ## every test but the long campaigns, then the kernels' tests again interpreted
	@scripts/tools.sh java
	scripts/test_step.sh $(BIN)/python tests $(addprefix --ignore=,tests/spark $(ALONE)) $(PARALLEL)
	scripts/test_step.sh $(BIN)/python tests/spark
	CONTRAIL_KERNELS=pure scripts/test_step.sh $(BIN)/python $(wildcard tests/unit tests/property tests/fault) $(PARALLEL)
	scripts/test_step.sh $(BIN)/python $(ALONE)

check: setup ## format, lint, types, import contracts, unit and property tests: about a minute
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q $(wildcard tests/unit tests/property)

bench: setup ## one benchmark suite beside its references: make bench SUITE=store [ARGS=--publish] [FULL=1]
	$(BIN)/python -c 'import matplotlib' 2>/dev/null || \
		CONTRAIL_KERNELS=pure $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m bench $(SUITE) $(ARGS)

bench-compare: setup ## sends and pulls beside another commit, in turn: make bench-compare BASE=HEAD~1 [ARGS=--quick]
	@test -n "$(BASE)" || { echo 'name the commit to compare with: make bench-compare BASE=<commit>' >&2; exit 2; }
	$(BIN)/python -m bench.compare $(BASE) $(ARGS)

bench-quick: setup ## every benchmark suite, small: five minutes in all
	$(BIN)/python -m bench --quick $(ARGS)

torture: setup ## the long campaigns of crashes and damage
	$(BIN)/python -c 'import atheris' 2>/dev/null || \
		CONTRAIL_KERNELS=pure $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m pytest tests -m torture --timeout=0

docs: setup ## check the docs: links resolve, examples run, references are complete
	$(BIN)/python -m pytest -q tests/house/test_docs.py tests/house/test_documented.py

clean: ## remove everything that was built, the environment included
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f src/contrail/kernels/*.so
	find src tests scripts bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Kernels are left to the next rule, which shows what the compiler says; pip would hide it.
$(INSTALLED): pyproject.toml setup.py
	@scripts/tools.sh python $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	CONTRAIL_KERNELS=pure $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(KERNELS): $(INSTALLED) $(KERNEL_SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@touch $@
