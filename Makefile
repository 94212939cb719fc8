.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env demo console test check lint format bench-append bench-pipeline bench-local bench-delivery bench-service bench-console bench-report mutations reference screenshots verify-assets lock wheel-check clean

# The first Python on the PATH that is new enough; only looked for when the environment is built.
PYTHON = $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
UV := $(BIN)/uv
READY := .venv/.ready
DEMO_LOG := sqlite:///build/demo/demo.db
CHECKED = src tests examples $(wildcard bench)

# uv trusts its own list of certificates unless told to use the machine's, as pip does.
export UV_SYSTEM_CERTS = 1
export VIRTUAL_ENV = $(CURDIR)/.venv
export PIP_DISABLE_PIP_VERSION_CHECK = 1

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## Build .venv from the lock (a no-op when it is up to date)

$(READY): requirements.lock pyproject.toml
	@echo "== environment: .venv"
	@test -n "$(PYTHON)" || { echo "Seriatim needs Python 3.11 or newer on the PATH"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
		|| { rm -rf .venv; echo "python -m venv failed (on Debian: apt-get install python3-venv)"; exit 1; }
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.lock
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement .venv/uv.lock
	@$(UV) pip install --quiet --require-hashes --requirement requirements.lock \
		|| $(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	@$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## Demonstrate Seriatim in about a minute
	@rm -rf build/demo && mkdir -p build/demo
	@$(BIN)/seriatim demo --url $(DEMO_LOG)

console: $(READY) ## Serve the console on the log of the demo, until Ctrl-C
	@test -f build/demo/demo.db || $(MAKE) demo
	@$(BIN)/seriatim console --url $(DEMO_LOG) $(CONSOLE_ARGS)

test: lint wheel-check ## Everything CI runs: ruff, mypy, wheel, pytest; stops at the first failure
	@echo "== pytest: core, every branch"
	@$(BIN)/python -m pytest -q tests/unit/core --cov=seriatim.core --cov-branch \
		--cov-report=term-missing:skip-covered --cov-fail-under=100
	@echo "== pytest: everything else"
	@$(BIN)/python -m pytest -q -n 3 --ignore=tests/unit/core $(PYTEST_ARGS)

check: lint ## For a change in progress: lint, unit tests, the contract suite on memory and SQLite
	@echo "== pytest: unit"
	@$(BIN)/python -m pytest -q -n 2 tests/unit tests/tidy
	@echo "== pytest: contract on memory and SQLite"
	@$(BIN)/python -m pytest -q -n 2 tests/contract -k "memory or sqlite"

lint: $(READY) ## ruff check, ruff format --check, mypy
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy $(CHECKED)

format: $(READY) ## Let ruff fix and format what it can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench-append: $(READY) ## Measure appends, compared with bare inserts and other logs
	@$(BIN)/python -m bench append $(BENCH_ARGS)

bench-pipeline: $(READY) ## Measure the pipeline on Spark, compared with plain code; then bench-local
	@$(BIN)/python -m bench pipeline $(BENCH_ARGS)
	$(if $(BENCH_ARGS),,@$(BIN)/python -m bench local)

bench-local: $(READY) ## Measure projections in this process, compared with plain code and Spark
	@$(BIN)/python -m bench local $(BENCH_ARGS)

bench-delivery: $(READY) ## Measure publisher and registry, compared with plain loops
	@$(BIN)/python -m bench delivery $(BENCH_ARGS)

bench-service: $(READY) ## Measure the service, compared with a no-op and another server
	@$(BIN)/python -m bench service $(BENCH_ARGS)

bench-console: $(READY) ## Measure the pages of the console on 10 M events, compared with their reads
	@$(BIN)/python -m bench console $(BENCH_ARGS)

bench-report: $(READY) ## Write docs/reference/benchmarks.md from the published results
	@$(BIN)/python -m bench report

mutations: $(READY) ## Apply each mutation to a copy of the source; its tests must fail (MUTATION=name for one)
	@$(BIN)/python -m tests.mutations $(MUTATION)

reference: $(READY) ## Write the pages that are generated from the code: docs/reference/http.md, openapi.json
	@$(BIN)/python -m tests.docs.http_pages

verify-assets: $(READY) ## Check the console's scripts, styles and templates: sizes, hosts, inline code
	@$(BIN)/python -m pytest -q tests/tidy/test_assets.py

screenshots: $(READY) ## Take the pictures of the console in docs/assets
	@$(BIN)/python -m tests.docs.screenshots

lock: $(READY) ## Resolve all dependencies again into requirements.lock
	@$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
		--generate-hashes --no-emit-index-url --annotation-style line \
		--custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

wheel-check: $(READY) ## Install the built wheel without extras and use it
	@echo "== wheel"
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel . >build/wheel/build.log 2>&1 \
		|| { cat build/wheel/build.log; exit 1; }
	@$(BIN)/python -m venv --without-pip build/wheel/venv
	@$(UV) pip install --quiet --python build/wheel/venv/bin/python \
		--constraint requirements.lock build/wheel/seriatim-*.whl
	@cd build/wheel && env -u VIRTUAL_ENV -u PYTHONPATH venv/bin/python -P ../../tests/wheel_check.py

clean: ## Remove the environment and everything generated
	@rm -rf .venv build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
