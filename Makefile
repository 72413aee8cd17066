# `make help` prints the sentence after ##.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# All implementations of the smoke experiment would take ten minutes on a machine with a large last-level cache.
OURS := --only chunk_attn --only paged_attn --only paged_attn_star

# Many container images tell Python not to write byte code. Then each of the hundreds of processes of the tests compiles
# its libraries again.
export PYTHONDONTWRITEBYTECODE :=
BIN := $(VENV)/bin
# Two processes with a thread each; tests/conftest.py says which tests stay together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --no-loadscope-reorder
READY := $(VENV)/.ready
READY_SERVING := $(VENV)/.ready-serving
READY_DEV := $(VENV)/.ready-dev
VENV_VLLM := $(dir $(VENV)).venv-vllm
READY_VLLM := $(VENV_VLLM)/.ready-vllm
READY_OPENVINO := $(dir $(VENV)).venv-openvino/.ready-openvino
READY_LLAMA := $(dir $(VENV)).venv-llama/.ready-llama
READY_LLAMA_NATIVE := $(dir $(VENV)).venv-llama-native/.ready-llama-native
# A change of these files needs a new set-up. Python and YAML files are read in place and need none.
MADE_FROM := pyproject.toml constraints.txt CMakeLists.txt chunkbench/pins.py scripts/set_up.py $(wildcard kernels/cpu/src/*)

.PHONY: help setup serving test docs release lint format sanitize emulate torture nightly readers processors smoke reproduce reproduce-table3 reproduce-table4 reproduce-table4-smollm2 measure-vllm-plugin vllm-environment openvino-environment llama-environment llama-native-environment measure-cpu-servers gpu-prepare gpu-check ci-regression clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=python3.12 VENV=folder ARGS=\"arguments for chunkbench run or pytest\""

setup: $(READY) ## Make or update the environment .venv; does nothing if it is up to date

test: $(READY_DEV) ## Run the tests
	$(PYTEST) $(ARGS)

serving: $(READY_SERVING) ## Set up if needed, and install what demo, serve, load and serving experiments need, with a small trained model

docs: $(VENV)/.ready-docs ## Build the pages as a site in build/site: search, API, recorded reports; loads nothing from other hosts
	$(BIN)/python scripts/build_docs.py

release: $(VENV)/.ready-release ## Build a release of the last commit into dist/: wheels, sources, site, notes, checksums; uploads nothing
	$(BIN)/python scripts/release.py $(ARGS)

lint: $(READY_DEV) ## Check style, types, and the imports between folders
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror kernels/cpu/src/* tests/torture/*.cpp

format: $(READY_DEV) ## Format the Python and C++ files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i kernels/cpu/src/* tests/torture/*.cpp

sanitize: $(READY_DEV) ## Run the native module's tests with address and undefined-behaviour sanitizers (needs GCC)
	$(BIN)/python scripts/test_native.py sanitize $(ARGS)

emulate: $(READY_DEV) ## Run the native module's tests with AVX-512 emulated, on any CPU (needs SIMDe's headers)
	$(BIN)/python scripts/test_native.py emulate $(ARGS)

torture: $(READY_SERVING) $(READY_DEV) ## Do harm and count what survives: kills, full disks, bad input, long use; less than three hours, or one PART=name [MINUTES= SEED= COUNT=]
	$(BIN)/python -m scripts.torture $(if $(PART),--part "$(PART)") $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT))

nightly: $(READY_DEV) $(VENV)/.ready-release $(READY_VLLM) $(READY_OPENVINO) $(READY_LLAMA) $(VENV)/.ready-clients ## Run all tests, also the slow ones: full products, soaks, clusters, builds of revisions, a release; then make torture
	$(PYTEST) -m "" $(ARGS)
	$(BIN)/python -m scripts.torture

readers: ## Install Chromium and LaTeX, which tests use to read the reports (Debian packages; needs root)
	@command -v chromium > /dev/null && command -v pdflatex > /dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium texlive-latex-recommended; }

processors: ## Install a compiler for Arm and an emulator of its CPUs, for `make torture PART=processors` (Debian packages; needs root)
	@command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user; }

smoke: $(READY) ## Run every implementation on small shapes; takes seconds
	$(BIN)/chunkbench run experiments/smoke.yaml $(ARGS)

reproduce-table3: $(READY) ## Set up if needed, then measure the paper's Table 3 on this machine
	$(BIN)/chunkbench run experiments/table3.yaml $(ARGS)

reproduce: $(READY_SERVING) $(READY_VLLM) ## Set up if needed, then measure all experiments of the paper that run here; write one report
	$(BIN)/chunkbench reproduce $(ARGS)

vllm-environment: $(READY_VLLM) ## Make the environment .venv-vllm: vLLM, which Table 4 compares with, and our plug-in for it (3 GB)

openvino-environment: $(READY_OPENVINO) ## Make the environment .venv-openvino: OpenVINO GenAI behind our HTTP server (1 GB)

llama-environment: $(READY_LLAMA) ## Make the environment .venv-llama: llama.cpp's server, as a wheel for any CPU with AVX2

llama-native-environment: $(READY_LLAMA_NATIVE) ## Make the environment .venv-llama-native: the same server, compiled for this CPU (10 to 25 minutes)

reproduce-table4: $(READY_SERVING) $(READY_VLLM) ## Set up if needed, then measure the paper's Table 4 on this machine
	$(BIN)/chunkbench run table4 $(ARGS)

reproduce-table4-smollm2: $(READY_SERVING) $(READY_VLLM) ## The same with a small trained model and real text; 40 minutes
	$(BIN)/chunkbench run table4-smollm2 $(ARGS)
	$(BIN)/chunkbench run table4-smollm2-caching $(ARGS)

measure-vllm-plugin: $(READY_SERVING) $(READY_VLLM) ## Set up if needed, then compare vLLM with its own attention and with our kernels
	$(BIN)/chunkbench run vllm-plugin $(ARGS)

measure-cpu-servers: $(READY_SERVING) $(READY_VLLM) $(READY_OPENVINO) $(READY_LLAMA) ## Set up if needed, then compare the servers that people run on CPUs; two hours
	$(BIN)/chunkbench run cpu-servers $(ARGS)
	$(BIN)/chunkbench run cpu-servers-unshared $(ARGS)

gpu-prepare: $(VENV)/.ready-gpu ## On a GPU host with a network: install the GPU baselines and compile all kernels
	@rm -rf $(VENV)/gpu-prepare
	$(BIN)/chunkbench run experiments/gpu-kernels.yaml --budget 1s --out $(VENV)/gpu-prepare $(ARGS) || [ $$? = 3 ]
	@grep -q '"status":"\(ok\|noisy\)"' $(VENV)/gpu-prepare/cases.jsonl && touch $(VENV)/.gpu-prepared

gpu-check: ## On a GPU host, also without a network: say what works, check all kernels, measure Table 3 and the bars; 8 minutes
	$(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON)) scripts/gpu_check.py $(ARGS)

ci-regression: $(READY) ## Compare our kernels in the smoke experiment with the commit before; speed never fails it
	@git rev-parse --quiet --verify HEAD~1 >/dev/null || echo "this commit has no parent here: compared with itself"
	$(BIN)/chunkbench regress --base $$(git rev-parse --quiet --verify HEAD~1 || echo HEAD) experiments/smoke.yaml \
		$(OURS) --processes 2 --budget 2s --fail-on incorrect,missing $(ARGS)

clean: ## Remove the environment, build results and caches; keep measurements
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): $(MADE_FROM)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "chunkbench needs Python 3.11 or later; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) scripts/set_up.py $(VENV)

$(VENV)/.ready-%: $(READY)
	@$(PYTHON) scripts/set_up.py $(VENV) $*

$(READY_VLLM) $(READY_OPENVINO) $(READY_LLAMA) $(READY_LLAMA_NATIVE): $(MADE_FROM)
	@$(PYTHON) scripts/set_up.py $(@D) $(patsubst .ready-%,%,$(@F))
