# Each target does its own set-up: a virtual environment in .venv with the package and what the target needs.
# PYTHON names the interpreter (3.11 or newer); JAXMD_CUDA (off, auto, on) says what happens to the CUDA module.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml $(wildcard ffi/*)

# Where a GPU answers: JAX's CUDA plugin, a CUDA module even if no toolkit is installed, and one process on the GPU.
ifeq ($(shell nvidia-smi >/dev/null 2>&1 && echo yes),yes)
EXTRAS := dev,cuda13
JAXMD_CUDA ?= on
WORKERS := 0
else
EXTRAS := dev
JAXMD_CUDA ?= auto
WORKERS := 2
endif
export JAXMD_CUDA

.PHONY: help demo test slow lint doctor clean

help:
	@echo "make demo    the main job on real input (examples/quickstart.py)"
	@echo "make test    the test suite without its slow part"
	@echo "make slow    the slow part of the test suite"
	@echo "make lint    ruff and mypy"
	@echo "make doctor  what is installed, and whether it computes correctly"
	@echo "make clean   remove what the other targets made"

demo: $(VENV)/.installed
	$(BIN)/python examples/quickstart.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS)

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS) --slow -m slow

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

doctor: $(VENV)/.installed
	$(BIN)/python -m jaxmd

# Installed in place: an edited .py file takes effect at once, an edited ffi/ file at the next make.
$(VENV)/.installed: $(VENV)/.created $(SOURCES)
	@echo "make: installs packages and compiles jaxmd, some minutes the first time"
	$(BIN)/python -m pip install --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11 or newer is wanted (make PYTHON=python3.12 ...)"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "make: no C++ compiler (c++) found; install g++ or clang, or set CXX"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find jaxmd tests examples -name __pycache__ -prune -exec rm -rf {} +
	rm -f jaxmd/_cpu*.so jaxmd/_cuda*.so
