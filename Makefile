# One sentence after ## is what `make help` prints.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
RECORDED ?= results/runs/recording-smoke

BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_VLLM := $(VENV)/.ready-vllm
READY_TRITON := $(VENV)/.ready-triton
# What the installed environment was made from: Python and YAML files are read in place and need no new set-up.
MADE_FROM := pyproject.toml constraints.txt CMakeLists.txt scripts/set_up.py $(wildcard kernels/cpu/src/*)

.PHONY: help setup test lint format sanitize emulate readers smoke reproduce reproduce-table3 gpu-prepare gpu-check ci-regression clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=python3.12 VENV=folder ARGS=\"arguments for chunkbench run or pytest\""

setup: $(READY) $(READY_VLLM) ## Make the environment .venv, or bring it up to date; costs nothing when it is

test: $(READY) $(READY_VLLM) $(READY_TRITON) ## Run the tests
	$(BIN)/python -m pytest -q $(ARGS)

lint: $(READY) ## Check style, types, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror kernels/cpu/src/*

format: $(READY) ## Put the Python and C++ files into the common style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i kernels/cpu/src/*

sanitize: $(READY) ## Run the native module's tests with address and undefined-behaviour sanitizers (needs GCC)
	$(BIN)/python scripts/test_native.py sanitize $(ARGS)

emulate: $(READY) ## Run the native module's tests with AVX-512 emulated, on any CPU (needs SIMDe's headers)
	$(BIN)/python scripts/test_native.py emulate $(ARGS)

readers: ## Install Chromium and LaTeX, with which tests read the reports (Debian's; needs root)
	@command -v chromium > /dev/null && command -v pdflatex > /dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium texlive-latex-recommended; }

smoke: $(READY) $(READY_VLLM) ## Run every implementation on small shapes, in seconds
	$(BIN)/chunkbench run experiments/smoke.yaml $(ARGS)

reproduce-table3: $(READY) $(READY_VLLM) ## Measure the paper's Table 3 on this machine, set-up included
	$(BIN)/chunkbench run experiments/table3.yaml $(ARGS)

reproduce: $(READY) $(READY_VLLM) ## Measure all that this machine can of the paper and write one report, set-up included
	$(BIN)/chunkbench reproduce $(ARGS)

gpu-prepare: $(READY) ## On a GPU host with a network: install the GPU's baselines and have all kernels compiled ahead
	@$(PYTHON) scripts/set_up.py $(VENV) --extras gpu
	$(BIN)/chunkbench run experiments/gpu-kernels.yaml --budget 1s $(ARGS)
	@touch $(VENV)/.gpu-prepared

gpu-check: ## On a GPU host, without a network: check all kernels, then measure Table 3 and the bars, in 8 minutes
	$(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON)) scripts/gpu_check.py $(ARGS)

ci-regression: $(RECORDED)/1/cases.jsonl ## Gate the smoke experiment against a recording made here; speed is reported only
	$(BIN)/chunkbench gate experiments/smoke.yaml --against $(RECORDED) --processes 2 --again 0 \
		--fail-on incorrect,missing $(ARGS)

$(RECORDED)/1/cases.jsonl: experiments/smoke.yaml | $(READY) $(READY_VLLM)
	rm -rf $(RECORDED)
	$(BIN)/chunkbench gate experiments/smoke.yaml --record $(RECORDED) --processes 2

clean: ## Remove the environment, build results and caches; measurements stay
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): $(MADE_FROM)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "chunkbench needs Python 3.11 or later; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) scripts/set_up.py $(VENV) --stamp $@

# Without the stamp (a failed download) the next set-up tries again; nothing but vLLM's rows waits for it.
$(READY_VLLM): $(READY)
	@$(PYTHON) scripts/set_up.py $(VENV) --extras vllm --stamp $@

# 180 MB that measurements on a CPU have no use for.
$(READY_TRITON): $(READY)
	@$(PYTHON) scripts/set_up.py $(VENV) --extras triton --stamp $@
