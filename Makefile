# Everything is set up by what needs it: `make demo` and `make test` work in a fresh clone.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
JAVASCRIPT := tests/clients/javascript
CLIENTS := $(JAVASCRIPT)/node_modules/.package-lock.json
LOCK := --upgrade --universal --python-version 3.11 --generate-hashes --no-header
.DEFAULT_GOAL := help

.PHONY: help demo test stories clients check format lock bench-relay bench-routing bench-live bench-proxies bench-residency bench-restarts slow clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## two real engines on the CPU, the proxy and 12 chats; ONCE=1 stops after the table
	@$(BIN)/slotgate demo $(if $(ONCE),--once) $(if $(LISTEN),--listen=$(LISTEN))

test: $(VENV)/.test ## the test suite, with a real store and real engines
	$(BIN)/pytest --ignore=tests/stories --ignore=tests/clients

stories: $(VENV)/.test $(CLIENTS) ## whole processes and boxes as users run them, and real client libraries
	$(BIN)/pytest tests/stories tests/clients

clients: $(CLIENTS) ## what `make stories` needs to test client libraries in JavaScript

check: $(VENV)/.test ## style, types, import rules, spelling, file sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell proxy scheduler tests deploy docs README.md CHANGELOG.md Makefile
	$(BIN)/python -m tests.file_sizes
	@echo "all fine"

format: $(VENV)/.test ## rewrite the code in its style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

slow: $(VENV)/.test ## the field's own script, 100 rounds, on two real engines
	$(BIN)/python -m tests.bench.field

bench-relay: $(VENV)/.test ## CPU and latency beside nginx, in one run; ends with one JSON line
	$(BIN)/python -m tests.bench.relay

bench-routing: $(VENV)/.test ## routing beside other routers, on emulated cards; SEEDS=N; ends with one JSON line
	$(BIN)/python -m tests.bench.routing $(if $(SEEDS),--seeds=$(SEEDS))

bench-live: $(VENV)/.test ## routing beside nginx in real time, on emulated engines; ends with one JSON line
	$(BIN)/python -m tests.bench.live

bench-proxies: $(VENV)/.test ## four proxies beside one, killed proxies, a killed store; ends with one JSON line
	$(BIN)/python -m tests.bench.proxies

bench-residency: $(VENV)/.test ## model loads beside nginx, on emulated Ollamas; ends with one JSON line
	$(BIN)/python -m tests.bench.residency

bench-restarts: $(VENV)/.test ## workers restarted under 200 streams; ends with one JSON line
	$(BIN)/python -m tests.bench.restarts

lock: $(VENV)/.test ## pin the newest versions that pyproject.toml, tests/requirements.in and package.json allow
	$(BIN)/uv pip compile -q $(LOCK) --extra embedded -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile -q $(LOCK) -c requirements.lock -o tests/requirements.lock tests/requirements.in
	$(BIN)/npm --prefix $(JAVASCRIPT) update --package-lock-only --loglevel=error

clean: ## remove what the other commands made
	rm -rf $(VENV) $(VENV).log $(JAVASCRIPT)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.demo: requirements.lock deploy/demo-model.lock deploy/venv.sh pyproject.toml
	@deploy/venv.sh $(VENV) requirements.lock deploy/demo-model.lock
	@touch $@

$(VENV)/.test: $(VENV)/.demo tests/requirements.lock
	@deploy/venv.sh $(VENV) tests/requirements.lock
	@touch $@

$(CLIENTS): $(JAVASCRIPT)/package-lock.json | $(VENV)/.test
	@echo "installing: the client libraries in JavaScript"
	@$(BIN)/npm --prefix $(JAVASCRIPT) ci --loglevel=error
	@touch $@
