# SPDX-License-Identifier: Apache-2.0
# Two commands: `make serve` answers an OpenAI client, `make test` proves the rest. Both set up .venv.

PYTHON ?= python3
MODEL ?= smollm2
PORT ?= 8000

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The package is installed, not linked, so that what runs is what a user gets. It is installed anew when a
# file below changes, appears or goes away.
SOURCES := $(sort pyproject.toml README.md LICENSE $(wildcard CMakeLists.txt) \
	$(shell find src native -type f -not -name '*.pyc'))

# From pyproject.toml: build requirements, and those of the test extra.
BUILD_REQUIRES := t["build-system"]["requires"]
TEST_REQUIRES := t["project"]["optional-dependencies"]["test"]
requires = $(BIN)/python -c 'import tomllib; t = tomllib.load(open("pyproject.toml", "rb")); print(*$(1), sep="\n")'

.PHONY: help serve test test-arm lint format install clean FORCE
.DELETE_ON_ERROR:

help: ## show these lines
	@sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' Makefile
	@echo "  variables: MODEL=$(MODEL) PORT=$(PORT) PYTHON=$(PYTHON)"

serve: $(VENV)/.installed ## install, pull MODEL and serve it on 127.0.0.1:PORT
	@$(BIN)/headrace pull $(MODEL) > /dev/null
	@exec $(BIN)/headrace serve $(MODEL) --host 127.0.0.1 --port $(PORT)

test: lint ## install, then lint, types, import rules and all tests
	$(BIN)/python -m pytest

# Built for a processor that this machine may not be, and run by an emulator: with dot products and without. It shows
# what the kernels compute, never how fast.
ARM_CXX ?= aarch64-linux-gnu-g++
ARM_EMULATOR ?= $(shell command -v qemu-aarch64 || command -v qemu-aarch64-static || echo qemu-aarch64)
CMAKE := $(shell command -v cmake || echo $(BIN)/cmake)

test-arm: $(if $(filter $(BIN)/cmake,$(CMAKE)),$(VENV)/.build-requires) ## the ARM kernels against the reference, cross-compiled, in qemu
	@for tool in $(ARM_CXX) $(ARM_EMULATOR); do command -v $$tool > /dev/null || { \
		echo "error: no '$$tool'. On Debian and Ubuntu: apt install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }; done
	@$(CMAKE) -S . -B build/arm -DHEADRACE_EXTENSION=OFF -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=$(ARM_CXX) -DCMAKE_EXE_LINKER_FLAGS=-static > /dev/null
	$(CMAKE) --build build/arm --target kernels_test --parallel 2
	$(ARM_EMULATOR) -cpu max build/arm/kernels_test dotprod
	$(ARM_EMULATOR) -cpu cortex-a53 build/arm/kernels_test neon

lint: $(VENV)/.installed $(VENV)/.test-requires ## lint, types, import rules, house rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	@for check in tools/check_*.py; do echo "$$check"; $(BIN)/python $$check || exit 1; done

format: $(VENV)/.test-requires ## let ruff lay out and tidy the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

install: $(VENV)/.installed ## make .venv and install the package into it

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Without build isolation: in an isolated build the path of nanobind changes every time, and with it
# everything would be compiled anew.
$(VENV)/.installed: $(VENV)/.build-requires $(VENV)/.sources $(SOURCES)
	@echo "installing headrace into $(VENV) (compiles the kernels: minutes the first time)"
	@touch $@.begun
	$(PIP) install --no-build-isolation .
	@mv $@.begun $@  # dated when it began: a file saved meanwhile is newer

$(VENV)/.test-requires: $(VENV)/.build-requires pyproject.toml
	@echo "installing the test requirements"
	@$(call requires,$(TEST_REQUIRES)) > $@.txt
	$(PIP) install -r $@.txt
	@touch $@

$(VENV)/.build-requires: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: Headrace needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { \
		echo "error: '$(PYTHON)' lacks venv or pip. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@command -v $(CXX) > /dev/null || { \
		echo "error: no C++ compiler '$(CXX)'. Install g++ or clang++, or set CXX" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(call requires,$(BUILD_REQUIRES)) > $@.txt
	$(PIP) install -r $@.txt "cmake>=3.20" ninja "pip>=24.1"
	@touch $@

# Changes only when the list of files does.
$(VENV)/.sources: $(VENV)/.build-requires FORCE
	@printf '%s\n' $(SOURCES) > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
