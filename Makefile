# HelixQueue needs Python 3.11 or newer and make; everything else is installed into .venv.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# USABLE installs what `make run` needs, READY also the tools for tests and checks.
MADE   := $(VENV)/.made
USABLE := $(VENV)/.usable
READY  := $(VENV)/.ready
CORES  := $(shell nproc 2>/dev/null || echo 2)
# Test processes: one more than cores, because many tests wait for a lease to expire.
JOBS   ?= $(shell echo $$(($(CORES) + 1)))
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadgroup --durations 15
POSTGRES_15 := /usr/lib/postgresql/15/bin

# The parts of `check`, which run in parallel.
GATE   := types format lint imports migrations

.PHONY: help run test check $(GATE) bench proof schema debian clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "HelixQueue needs Python 3.11 or newer; select one with make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(USABLE): pyproject.toml | $(MADE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

$(READY): pyproject.toml | $(MADE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(USABLE) $@

run: $(USABLE) ## Run databases, service and a demo workload in ./helix-demo until Ctrl-C
	@$(BIN)/helixq up --demo

test: check ## Run all checks, then all tests on every installed PostgreSQL
	$(PYTEST)
	@if [ -x $(POSTGRES_15)/postgres ]; then \
	  echo "== engine on PostgreSQL 15"; \
	  HELIX_TEST_POSTGRES=$(POSTGRES_15) $(PYTEST) tests/engine tests/postgres \
	    --ignore tests/postgres/test_cli.py \
	    --deselect tests/postgres/test_schema.py::test_generated_files_match_the_migrated_schema; \
	else \
	  echo "== skipped: engine on PostgreSQL 15 (apt-get install postgresql-15)"; \
	fi
	@if command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; then \
	  echo "== engine and tenant isolation behind pgbouncer in transaction mode"; \
	  HELIX_TEST_POOLER=pgbouncer $(PYTEST) tests/engine tests/service/test_tenant_isolation.py \
	    --ignore tests/engine/test_model.py; \
	else \
	  echo "== skipped: engine behind pgbouncer (apt-get install pgbouncer)"; \
	fi

check: $(READY) debian ## Check format, lint, types, imports and migrations
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

bench: $(READY) ## Run the benchmarks and write docs/benchmarks.md
	$(BIN)/python -m benchmarks.engine --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.workers --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.fences --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.service --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.reads --write docs/benchmarks.md

proof: $(READY) ## Run the long tests: races, models, fuzzing and load at full size
	HELIX_PROOF=1 $(BIN)/pytest tests/race tests/crash tests/engine/test_model.py tests/fence/test_fence_model.py \
	  tests/worker/test_liveness.py tests/transport/test_crowd.py tests/service/test_replicas.py tests/service/test_fuzz.py

schema: $(READY) ## Regenerate tests/postgres/schema.sql and operate/expected_schema.json from the SQL files
	$(BIN)/python -m tests.support.schema_dump

DEBIAN := postgresql-15 pgbouncer nginx
# Debian packages for some tests. CI installs them; elsewhere tests without their program are skipped
# with a message.
debian:
ifeq ($(CI),true)
	@dpkg -s $(DEBIAN) >/dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $(DEBIAN) >/dev/null; }
endif

clean: ## Remove generated files
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
