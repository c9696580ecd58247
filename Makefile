# Every target sets up what it needs; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup check test oldest format demo fuzz bench coverage traffic docs pictures screenshot clean
SMOKE := tests/test_layers.py tests/ir tests/array tests/fusion/test_paper_examples.py tests/nest tests/schedule tests/test_cli.py tests/torch_frontend/test_views.py
# Tests of a file share what they compute, and so a process.
PARALLEL := -n auto --dist loadfile
OLDEST_TORCH := 2.11.0

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(STAMP) ## Make .venv with the package (editable) and the development tools

check: $(STAMP) ## Check lint, format and types, then run a smoke set: about two minutes
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(PARALLEL) $(SMOKE)

test: $(STAMP) ## Check lint, format and types, then run the tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(PARALLEL)

oldest: ## Run the tests of the PyTorch front end on the oldest PyTorch that is supported
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[tests]' torch==$(OLDEST_TORCH)
	$(VENV)-oldest/bin/python -m pytest -q $(PARALLEL) tests/torch_frontend tests/fuzz/test_models.py

format: $(STAMP) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

demo: $(STAMP) ## Fuse attention, LayerNorm+matmul and RMSNorm+SwiGLU, compile, check and time them; write their pages
	$(BIN)/blockbuster demo

fuzz: $(STAMP) ## Run the long fuzzing, and the sweeps of the tests in full: hours
	BLOCKBUSTER_TESTS=full $(BIN)/python -m pytest -m "long or not long" -q -s tests

bench: $(STAMP) ## Measure fusion, what numerical safety costs, and compiled programs and models on this CPU
	$(BIN)/python benchmarks/fusion_time.py
	$(BIN)/python benchmarks/safety_price.py
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/torch_calls.py
	$(BIN)/python benchmarks/library_steps.py

coverage: $(STAMP) ## Measure how much of each model in the zoo is fused: docs/coverage.md
	$(BIN)/python benchmarks/coverage.py

traffic: $(STAMP) ## Predict the bytes that each model in the zoo moves: docs/traffic.md
	$(BIN)/python benchmarks/traffic.py

docs: $(STAMP) pictures ## Make the documentation as a site: build/site/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

pictures: $(STAMP) ## Draw the pictures and charts of the documentation: docs/pictures
	$(BIN)/python docs/make_pictures.py

screenshot: $(STAMP) ## Show the explorer in Chromium, for the README: docs/screenshots
	$(BIN)/python docs/make_screenshot.py

clean: ## Remove .venv, caches and build results
	rm -rf $(VENV) $(VENV)-oldest build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
