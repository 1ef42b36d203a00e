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

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup page demo test test-all check bench bench-compare bench-quick torture docs console-shots status clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(KERNELS) page ## make .venv, build the kernels and the console's page, when needed and only then

page: $(INSTALLED)
	@$(BIN)/python scripts/console_page.py --any-node

demo: setup ## a cluster of two brokers, messages of every kind, kills, Spark, a slave, an election, a report
	@scripts/tools.sh spark
	$(BIN)/python scripts/demo.py

test: setup ## every test but whole matrices and long campaigns, in the steps of tests/plan.toml
	@scripts/tools.sh java
	@scripts/tools.sh browser
	$(BIN)/python -m scripts.run_tests test

test-all: setup ## one part of tests/plan.toml with its whole matrices, recorded: make test-all PART=store
	@test -n "$(PART)" || { echo 'name a part of tests/plan.toml: make test-all PART=store' >&2; exit 2; }
	@scripts/tools.sh java
	$(BIN)/python -m scripts.run_tests all $(PART)

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

torture: setup ## the long campaigns, or one of them: make torture CAMPAIGN=bit_flips SEED=7
	$(BIN)/python -c 'import atheris' 2>/dev/null || \
		CONTRAIL_KERNELS=pure $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m scripts.torture "$(CAMPAIGN)" "$(SEED)"

docs: setup ## check the docs: links resolve, examples run, references are complete
	$(BIN)/python -m pytest -q tests/house/test_docs.py tests/house/test_documented.py tests/house/test_status.py

console-shots: setup ## pictures of every page of the console in both themes, for the docs
	$(BIN)/python -m scripts.console_shots

status: setup ## write docs/status.md and the ledger from the clauses of docs/status and the marks on tests
	$(BIN)/python -m scripts.status

clean: ## remove everything that was built, the environment included
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .torture
	rm -f src/contrail/kernels/*.so
	rm -rf src/contrail/console/static ui/node_modules
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
