# Every target sets up what it needs in .venv; `make` alone lists them.
#
# PYTHON=python3.12 make test     another interpreter (>= 3.11)
# PYTEST_ARGS='-k feed' make test arguments for pytest

VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
PIP     = $(PY) -m pip --disable-pip-version-check --quiet
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help venv demo test bench lint mutants torture

help: ## print this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.dev ## set-up only: .venv with everything for development

demo: $(VENV)/.demo ## recorded logs, planted faults, an embedded Postgres: verdicts against the ledger
	@$(PY) -m sidecar demo $(DEMO_ARGS)

test: $(VENV)/.dev ## the test suite, against an embedded Postgres
	@$(PY) -m pytest -m "not torture and not docker and not browser" -n 3 --dist worksteal $(PYTEST_ARGS)

bench: $(VENV)/.dev ## speed beside the same work without logic, in one run
	@$(PY) -m benchmarks $(BENCH_ARGS)

lint: $(VENV)/.dev ## style, format, types, import contracts
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(BIN)/lint-imports --no-cache

mutants: $(VENV)/.mutants ## break the core in every small way and see a test fail
	@$(PY) -m mutmut run $(MUTANTS_ARGS)
	@$(PY) -m mutmut results

torture: $(VENV)/.dev ## the long runs
	@$(PY) -m pytest -m torture --timeout 900 $(PYTEST_ARGS)

# One stamp a flavour.  `dev` holds all of `demo`, so after `make test` the demo installs nothing.
$(VENV)/.dev: $(VENV)/.python $(INPUTS)
	@echo "installing what development needs (once)" >&2
	@$(PIP) install --constraint constraints.txt --editable '.[demo,dev]'
	@touch $(VENV)/.demo $@

$(VENV)/.demo: $(VENV)/.python $(INPUTS)
	@echo "installing what the demo needs (once)" >&2
	@$(PIP) install --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/.mutants: $(VENV)/.dev
	@$(PIP) install --constraint constraints.txt --editable '.[demo,dev,mutants]'
	@touch $@

# A folder that was moved, or whose interpreter is gone or too old, is made anew.
.PHONY: force
$(VENV)/.python: force
	@./.ci/venv $(VENV)
