# Every target makes .venv when it is missing and installs what it needs; nothing else is asked of you.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart test lint bench docs clean

quickstart: $(VENV)/.base ## the main job on real text: pack, verify, look
	@$(BIN)/python examples/quickstart.py

test: $(VENV)/.dev ## the whole test suite
	@$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

lint: $(VENV)/.dev ## style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright

bench: $(VENV)/.dev ## the tables of docs/, printed
	@for b in benchmarks/[a-z]*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

docs: $(VENV)/.dev ## regenerate what docs/ shows from code, then run every code block
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m pytest -q tests/test_docs.py

clean: ## forget the environment and the quickstart's output
	rm -rf $(VENV) quickstart-out

$(VENV)/bin/python:
	@echo "padless: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "padless: installing (once)"
	@$(PIP) -e '.[torch,hf,optimal,fast]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.base
	@echo "padless: installing the test tools (once)"
	@$(PIP) -e '.[all,dev]' -r requirements-test.txt
	@touch $@
