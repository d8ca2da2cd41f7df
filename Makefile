# HelixQueue. Needs Python 3.11 or newer and make; everything else is installed into .venv.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Whoever only runs it waits for no checkers, fuzzers and schemas.
MADE   := $(VENV)/.made
USABLE := $(VENV)/.usable
READY  := $(VENV)/.ready
CORES  := $(shell nproc 2>/dev/null || echo 2)
# Processes for the tests: one more than cores, because many a test waits for a lease to run out.
JOBS   ?= $(shell echo $$(($(CORES) + 1)))
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadgroup --durations 15
POSTGRES_15 := /usr/lib/postgresql/15/bin

# What `check` is made of, side by side.
GATE   := types format lint imports migrations

.PHONY: help run test check $(GATE) bench proof schema debian clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "HelixQueue needs Python 3.11 or newer; name one with make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(USABLE): pyproject.toml | $(MADE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

$(READY): pyproject.toml | $(MADE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(USABLE) $@

run: $(USABLE) ## Run everything, with a lab at work: databases, service, workers that die and freeze
	@$(BIN)/helixq up --demo

test: check ## Everything: the gate, then every test on every PostgreSQL that is here
	$(PYTEST)
	@if [ -x $(POSTGRES_15)/postgres ]; then \
	  echo "== the engine on PostgreSQL 15"; \
	  HELIX_TEST_POSTGRES=$(POSTGRES_15) $(PYTEST) tests/engine tests/postgres \
	    --ignore tests/postgres/test_cli.py \
	    --deselect tests/postgres/test_schema.py::test_generated_files_match_the_migrated_schema; \
	else \
	  echo "== not run: the engine on PostgreSQL 15 (apt-get install postgresql-15)"; \
	fi
	@if command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; then \
	  echo "== the engine, and the service's walls between tenants, behind pgbouncer, transaction mode"; \
	  HELIX_TEST_POOLER=pgbouncer $(PYTEST) tests/engine tests/service/test_other_tenants.py \
	    --ignore tests/engine/test_model.py; \
	else \
	  echo "== not run: the engine behind pgbouncer (apt-get install pgbouncer)"; \
	fi

check: $(READY) debian ## The gate: format, lint, types, imports, migrations
	@$(MAKE) --no-print-directory --jobs $(CORES) --output-sync=target $(GATE)

types: $(READY)
	$(BIN)/mypy
format: $(READY)
	$(BIN)/ruff format --check .
lint: $(READY)
	$(BIN)/ruff check .
imports: $(READY)
	$(BIN)/lint-imports
migrations: $(READY)
	$(BIN)/squawk src/helixqueue/engine/sql/*.sql

bench: $(READY) ## Measure engine, workers, fences, service and reads, and write docs/benchmarks.md
	$(BIN)/python -m benchmarks.engine --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.workers --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.fences --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.service --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.reads --write docs/benchmarks.md

proof: $(READY) ## Long soaks: races for a minute each, models, fuzzing and crowds at their full size
	HELIX_PROOF=1 $(BIN)/pytest tests/race tests/crash tests/engine/test_model.py tests/fence/test_fence_model.py \
	  tests/worker/test_liveness.py tests/transport/test_crowd.py tests/service/test_replicas.py tests/service/test_fuzz.py

schema: $(READY) ## Regenerate tests/postgres/schema.sql and operate/expected_schema.json from the SQL files
	$(BIN)/python -m tests.support.schema_dump

DEBIAN := postgresql-15 pgbouncer nginx
# What only Debian has. CI installs it, so that no test is skipped there; elsewhere what is missing
# is skipped with a word how to get it.
debian:
ifeq ($(CI),true)
	@dpkg -s $(DEBIAN) >/dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $(DEBIAN) >/dev/null; }
endif

clean: ## Remove what make made
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
