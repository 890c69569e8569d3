# Horchestra's commands for people who work on it and for who wants to see it run. `make help` lists them.
# Everything they make lives under .horchestra/; `make clean` removes what can be made again.

SHELL := /bin/bash
.DEFAULT_GOAL := help
STATE := .horchestra
VENV := $(STATE)/venv
PYTHON := $(VENV)/bin/python
# The first interpreter that is new enough; Debian 12's own will do.
SYSTEM_PYTHON := $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,$(shell command -v $(name))))
INSTALLED := $(VENV)/.installed
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet pyproject.toml
STUBS := --python_out=. --pyi_out=. --grpc_python_out=.

.PHONY: help deps demo demo-down test test-fast test-long lint bench proto lock clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Install what is missing: Debian packages, the virtual environment
	@$(SYSTEM_PYTHON) -m tests.lab.packages
	@$(MAKE) --silent $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	@test -x $(PYTHON) || $(SYSTEM_PYTHON) -m venv $(VENV)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements.lock
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: deps ## Controller, registry and one systemd node with the example running on it
	@$(PYTHON) -m tests.lab.demo up

demo-down: ## Remove the demo with everything in it
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m tests.lab.demo down; fi

test: lint ## What CI runs: lint, then every test but the long ones
	@$(PYTHON) -m tests.lab.caches
	@$(PYTHON) -m pytest -m 'not long'

test-fast: ## Unit and conformance tests, without nodes, in under a minute
	@$(PYTHON) -m pytest -m 'not node and not long' tests/unit tests/conformance

test-long: ## What takes longer; run it before saying that something is done
	@$(PYTHON) -m tests.lab.caches all
	@$(PYTHON) -m pytest -m long

lint: ## Style, types, layers, and stubs that match node.proto
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/mypy --package tests.lab --package tests.bench
	@$(VENV)/bin/lint-imports
	@$(MAKE) --no-print-directory proto-check

bench: ## Measure, as ratios within one run; BENCH="reads pull" measures only these
	@$(PYTHON) -m tests.lab.caches
	@$(PYTHON) -m tests.bench $(BENCH)

proto: ## Generate the stubs of proto/node.proto
	@$(PYTHON) -m grpc_tools.protoc --proto_path=. $(STUBS) proto/node.proto

.PHONY: proto-check
proto-check:
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	  $(PYTHON) -m grpc_tools.protoc --proto_path=. $(subst =.,=$$fresh,$(STUBS)) proto/node.proto && \
	  for stub in node_pb2.py node_pb2.pyi node_pb2_grpc.py; do \
	    cmp -s proto/$$stub $$fresh/proto/$$stub || { echo "proto/$$stub does not match proto/node.proto: run make proto"; exit 1; }; \
	  done

lock: ## Pin every dependency by hash, after a change of pyproject.toml
	@$(VENV)/bin/$(LOCK) --extra controller --extra agent --extra dev --output-file requirements.lock
	@$(VENV)/bin/$(LOCK) --extra agent --constraints requirements.lock --output-file requirements-agent.lock

clean: demo-down ## Remove caches and leftovers of test runs; the virtual environment stays
	@if [ -x $(PYTHON) ]; then $(PYTHON) -c 'from tests.lab.estate import remove_leftovers; remove_leftovers()'; fi
	@rm -rf $(STATE)/cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
