# Every command of the project. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
# Marks of the tests that run Kafka and whole stacks; they would get in each other's way.
PARTS  := broker or e2e or chaos
# Marks of the tests that have a command of their own.
APART  := deep or long or faults or all_wires
# Where a CPU build of torch can be had, name its index here: 5 GB less to install.
POLYNYA_TORCH_INDEX ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo ablation chaos test test-fast test-all-wires test-deep test-long test-faults test-sdks docker-engine conformance conformance-sglang gpu-check lint format bench schemas constraints fault-table clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(READY) ## make the virtual environment with the tested versions

$(READY): pyproject.toml constraints.txt
	@echo "setup: virtual environment in $(VENV) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "setup: Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.11 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	@if [ -n "$(POLYNYA_TORCH_INDEX)" ]; then $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --index-url $(POLYNYA_TORCH_INDEX) torch; fi
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[dev]'
	@touch $(READY)
	@echo "setup: done"

demo: $(READY) ## the main job: a tiny model learns through the real Pi CLI, live: [SEED=n] [STEPS=n] [SCRIPTED=1]
	@$(BIN)/polynya demo $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) $(if $(HARNESS),--harness $(HARNESS)) $(if $(SCRIPTED),--scripted)

ablation: $(READY) ## per_request against prefix_merging, with and without 1/traces, on the same captured calls [STEPS=n] [GROUPS=n]
	@$(BIN)/polynya ablation $(if $(STEPS),--live-steps $(STEPS)) $(if $(GROUPS),--groups $(GROUPS))

test: $(READY) lint ## all tests, from unit to end to end (real Kafka, real CLIs)
	@$(BIN)/polynya harness install
	@echo "test: 1 of 2, what needs no Kafka and no whole stack, on both cores"
	@$(PYTEST) -n 2 --dist loadfile -q -m 'not ($(PARTS)) and not ($(APART))' tests
	@echo "test: 2 of 2, whole stacks, real Kafka, real CLIs"
	@$(PYTEST) -m '($(PARTS)) and not ($(APART))' --durations 20 tests
	@echo "test: all passed"

test-fast: $(READY) ## the tests that need no broker, under a minute
	@$(PYTEST) -n 2 --dist loadfile -m 'not broker and not e2e and not chaos and not ($(APART)) and not component' -q \
		--ignore tests/compose/cpu_engine --ignore tests/conformance --ignore tests/e2e --ignore tests/chaos tests

test-all-wires: $(READY) ## every harness on every API that it speaks (a quarter of an hour)
	@$(BIN)/polynya harness install
	@$(PYTEST) -m all_wires --durations 20 tests

docker-engine: $(READY) ## what the tests of the runtime `docker` need (Debian, as root): installs dockerd, makes their image once
	@.ci/docker-engine

test-deep: $(READY) ## what takes longer: storms of kills, random bodies into the parsers, trainers on a whole stack; bounded at 40 minutes
	@$(BIN)/polynya harness install pi claude_code
	@timeout 2400 $(PYTEST) -m deep --timeout 600 tests

chaos: $(READY) ## a storm of SIGKILLs over a whole fleet, 25 minutes of blows at the most: [SEED=n] [SESSIONS=n] [MINUTES=n]
	@$(BIN)/polynya harness install pi
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(SESSIONS),--sessions $(SESSIONS)) $(if $(MINUTES),--minutes $(MINUTES))

test-long: $(READY) ## what takes longest: 20,000 fuzzed requests, every part killed in turn, Kafka gone and back, the whole demo, the ablation, the examples
	@timeout 5400 $(PYTEST) -m long --timeout 1800 tests

test-faults: $(READY) ## six real harnesses against ten faults of the engine, compared with docs/harness-faults.md (a quarter of an hour)
	@$(BIN)/polynya harness install
	@$(PYTEST) -m faults --durations 20 tests

test-sdks: $(READY) ## the SDK suite with the vendors' newest releases (they want a newer h11 than mitmproxy 11 does, so they stand beside)
	@$(BIN)/uv pip install --quiet --no-deps --upgrade --python $(BIN)/python --target .polynya/sdks \
		anthropic openai google-genai httpx2 httpcore2 'h11>=0.16' truststore opentelemetry-api jiter
	@PYTHONPATH=$(CURDIR)/.polynya/sdks $(PYTEST) -q tests/capture_proxy/sdk

conformance: $(READY) ## the suite that any engine must pass: ENGINE=URL [KIND=sglang|vllm|vllm_chat|openai] WEIGHTS=DIR[:DIR]
	@POLYNYA_CONFORMANCE_URL="$(ENGINE)" POLYNYA_CONFORMANCE_KIND="$(KIND)" POLYNYA_CONFORMANCE_WEIGHTS="$(WEIGHTS)" \
		$(PYTEST) -q tests/conformance

conformance-sglang: $(READY) ## the same against the real SGLang, which is installed and served for it (on the CPU)
	@$(BIN)/python -m tests.conformance.sglang

gpu-check: $(READY) ## a bounded run on a GPU: serve, conformance, one Pi session, a weight update [MODEL=DIR]
	@$(BIN)/python -m tests.conformance.gpu_check $(MODEL)

lint: $(READY) ## ruff, mypy --strict, import-linter, schema compatibility
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m schemas.compatibility

format: $(READY) ## format the code
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check --fix -q .

bench: $(READY) ## measure, side by side; prints a table and writes .bench/latest.json
	@$(BIN)/python -m tests.bench

fault-table: $(READY) ## what each harness does when the engine fails, anew: docs/harness-faults.md
	@$(BIN)/polynya harness install
	@$(BIN)/python -m tests.faults

schemas: $(READY) ## freeze the next version of every changed record
	@$(BIN)/python -m schemas.derive

constraints: $(READY) ## resolve the tested versions anew
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url --extra dev pyproject.toml -o constraints.txt

clean: ## remove what the commands made, but no data
	@rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
