# Two commands matter: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
.DELETE_ON_ERROR:
.PHONY: demo test chromium lint types results datasets flags install clean

demo: .venv/.installed
	$(BIN)/vitling demo --overwrite

test: .venv/.installed-dev lint types chromium
	$(BIN)/pytest -n 2 --dist loadfile

# Some tests open the report in Chromium. They are skipped where it is missing and cannot be installed.
chromium:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium for the tests of the report."; \
	  for attempt in 1 2 3; do \
	    { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; } >/dev/null 2>&1 && break; \
	  done; \
	  command -v chromium >/dev/null || echo "Chromium could not be installed."; \
	fi

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-dev
	$(BIN)/mypy

results: .venv/.installed
	$(BIN)/python -m benchmarks.pages.results results docs/results.md
	$(BIN)/python -m benchmarks.pages.claims results docs/claims.toml docs/claims.md README.md
	$(BIN)/python -m benchmarks.pages.coverage results docs/coverage.md
	$(BIN)/python -m benchmarks.pages.recipe results docs/recipe.md

datasets: .venv/.installed
	$(BIN)/python -m benchmarks.pages.datasets docs/datasets.md

flags: .venv/.installed
	$(BIN)/python -m benchmarks.pages.flags docs/flags.md

install: .venv/.installed

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing vitling and PyTorch into .venv; the first time this takes minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing vitling, PyTorch and the test tools into .venv; the first time this takes minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ .venv/.installed

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache
