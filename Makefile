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
# Tests that failed in parallel run once more, one at a time; one that fails again fails the run.
RETRY  = [ $$? -eq 1 ] && $(BIN)/python -m tests.support.rerun
POSTGRES_15 := /usr/lib/postgresql/15/bin

# The parts of `check`, which run in parallel.
GATE   := types format lint imports migrations current

.PHONY: help run test check $(GATE) reproduce bench proof screenshots schema twins examples lines lock debian clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "HelixQueue needs Python 3.11 or newer; select one with make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(USABLE): pyproject.toml | $(MADE)
	@echo "installing HelixQueue and its dependencies into $(VENV): once, about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

# CI installs the locked versions and compares their hashes first; the second command then finds every
# dependency in place. The lock holds for one interpreter and platform; elsewhere it is not used.
LOCKED := $(shell [ "$(CI)" = true ] && $(PYTHON) -c 'import platform as p; print(p.system(), p.machine(), *p.python_version_tuple()[:2])')
$(READY): pyproject.toml requirements.lock | $(MADE)
ifeq ($(LOCKED),Linux x86_64 3 11)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
else
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
endif
	@touch $(USABLE) $@

lock: $(READY) ## Write requirements.lock after a change of dependencies in pyproject.toml
	$(BIN)/python -m tests.support.lock

run: $(USABLE) ## Run databases, service and a demo workload in ./helix-demo until Ctrl-C
	@$(BIN)/helixq up --demo

# What the server's version can change: SQL of every function and statement, plans, migrations, row-level
# security. Left out: arguments, words, tokens and guards, which the same SQL text decides on both.
ON_15 := --deselect tests/postgres/test_schema.py::test_generated_files_match_the_migrated_schema \
  $(patsubst %,tests/engine/test_%.py,model submit claim settle operator_calls queues limits lanes \
  retention tokens failover plans held_snapshot storage table_guards tenant_isolation devices) \
  $(patsubst %,tests/postgres/test_%.py,migrate schema build_index calls reads bounded_reads \
  bounded_fences bounded_names doctor arrays client_rights transaction_bounds) tests/intake/test_frozen.py \
  tests/runs/test_run_state.py tests/outputs/test_registration.py
# What a pooler in transaction mode can change: state of a session between two transactions, that is the
# tenant, prepared statements and locks of each call. Left out: what a single statement decides.
POOLED := $(patsubst %,tests/engine/test_%.py,submit claim settle operator_calls queues limits tokens \
  tenant_isolation) tests/service/test_tenant_isolation.py tests/postgres/test_pooler.py

test: check ## Run all checks, then all tests, and some again on PostgreSQL 15 and behind pgbouncer
	@rm -f .flaky
	$(PYTEST) || { $(RETRY); }
	@if [ -x $(POSTGRES_15)/postgres ]; then \
	  echo "== engine on PostgreSQL 15"; \
	  export HELIX_TEST_POSTGRES=$(POSTGRES_15); $(PYTEST) $(ON_15) || { $(RETRY); }; \
	else \
	  echo "== skipped: engine on PostgreSQL 15 (apt-get install postgresql-15)"; \
	fi
	@if command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; then \
	  echo "== engine and tenant isolation behind pgbouncer in transaction mode"; \
	  export HELIX_TEST_POOLER=pgbouncer; $(PYTEST) $(POOLED) || { $(RETRY); }; \
	else \
	  echo "== skipped: engine behind pgbouncer (apt-get install pgbouncer)"; \
	fi
	@if [ -s .flaky ]; then echo "== passed on the second run only; find out why:"; cat .flaky; fi

check: $(READY) debian ## Check format, lint, types, imports, migrations and sync twins
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
current: $(READY)
	$(BIN)/python -m tests.support.twins --check

reproduce: $(READY) ## Show four faults of a naive scheduler beside HelixQueue, in less than a minute
	$(BIN)/pytest -q -s -p no:randomly tests/reproduce

bench: $(READY) ## Run the benchmarks and write docs/benchmarks.md
	$(BIN)/python -m benchmarks.engine --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.workers --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.fences --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.intake --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.service --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.flood --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.proof --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.ledgers --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.reads --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.observe --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.outputs --write docs/benchmarks.md

proof: $(READY) ## Run the long tests: races, models, fuzzing and load at full size
	HELIX_PROOF=1 $(BIN)/pytest tests/race tests/crash tests/identity tests/engine/test_model.py tests/fence/test_fence_model.py \
	  tests/worker/test_liveness.py tests/transport/test_many_clients.py tests/service/test_replicas.py tests/service/test_fuzz.py \
	  tests/intake tests/outputs tests/cli/test_identities.py

screenshots: $(READY) ## Write a picture of each page of the dashboard (LINK=... of a fresh `make run`) to ./screenshots
	$(BIN)/python -m tests.support.screenshots "$(LINK)" screenshots

schema: $(READY) ## Regenerate tests/postgres/schema.sql and operate/expected_schema.json from the SQL files
	$(BIN)/python -m tests.support.schema_dump

twins: $(READY) ## Regenerate the sync twins of the async modules
	$(BIN)/python -m tests.support.twins

examples: $(READY) ## Record the examples of the OpenAPI document from a running service
	HELIX_EXAMPLES=write $(BIN)/pytest -q -n 0 tests/service/test_recorded_examples.py

lines: ## Count the lines of Python in src that are written by hand
	@grep -rL --include '*.py' '^# Generated from ' src | xargs cat | wc -l

DEBIAN := postgresql-15 pgbouncer nginx prometheus redis-server chromium fonts-inter fonts-jetbrains-mono
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
