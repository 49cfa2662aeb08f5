# make setup  the environment and the embedded model      make demo  the demonstration
# make test   tests, style, types and import layers       make bench  the speed ratios
# make docs   docs/reference from the code
PYTHON ?= python3
BIN := .venv/bin
OUT ?= runs/demo
RATIOS := adapter_memory cache features http_backend layers local router_latency routing solve trl_step

.PHONY: setup demo test check bench docs clean

setup: .venv/.ready
	@$(BIN)/coterie models fetch

.venv/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/coterie demo --out $(OUT)

test: setup check
	$(BIN)/python -m pytest

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@for name in $(RATIOS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

docs: .venv/.ready
	@$(BIN)/python docs/generate.py

clean:
	rm -rf .venv runs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
