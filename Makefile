# Two commands for a new user: `make demo` and `make test`. Both need Python 3.11+ and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= demo-out
# Agents that tests start by the hundred load what has been compiled, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test soak mutants lint types unit reference site clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sbon needs Python 3.11 or newer: set PYTHON=/path/to/python3.11")'
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing sbon and what it needs (a minute on the first run)"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[analysis]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing sbon with its development tools (a minute on the first run)"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/sbon testbed demo --out $(OUT)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy --num-workers 2

# Agents and Spark in processes of their own mostly wait, so that they run beside what computes; first, so that one worker has them.
# One worker more than cores, as many wait; each takes seven seconds of a core to read all tests. What times what it starts has the machine
# to itself, at the end.
WORKERS = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() + 1)')
FIRST = tests/analysis tests/system/differential tests/system/e2e tests/first_hour tests/system/integration
LAST = tests/paper tests/system/simulation
SUBJECTS = $(filter-out $(FIRST) $(LAST),$(patsubst %/,%,$(sort $(dir $(wildcard tests/*/test_*.py)))))
TOGETHER = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not alone and not beside" $(FIRST) $(SUBJECTS) $(LAST)
MARKED = $(BIN)/python -m pytest -m $(1) $$(grep -rl --include='test_*.py' 'mark\.$(1)' tests)

unit: $(VENV)/.installed-dev
	$(TOGETHER)
	$(call MARKED,beside)
	$(call MARKED,alone)

# mypy takes what the others leave of the machine, in one process, because its workers give up if they do not start soon.
# The tests that run beside the others report when those are done; mypy at the end.
test: lint
	@said=$$(mktemp -d); \
	$(call MARKED,beside) > "$$said/beside" 2>&1 & beside=$$!; \
	nice -n 19 $(BIN)/mypy > "$$said/types" 2>&1 & types=$$!; \
	trap 'kill $$beside $$types; rm -r "$$said"; exit 130' INT TERM; \
	nice -n 5 $(TOGETHER); together=$$?; \
	wait $$beside; beside=$$?; cat "$$said/beside"; \
	$(call MARKED,alone); alone=$$?; \
	wait $$types; types=$$?; echo 'types:'; cat "$$said/types"; rm -r "$$said"; \
	[ $$together = 0 ] && [ $$beside = 0 ] && [ $$alone = 0 ] && [ $$types = 0 ]

# Takes two hours or more: what `make test` samples, in full.
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --soak -n $(WORKERS) --dist worksteal -m "not alone" tests
	$(BIN)/python -m pytest --soak -m alone tests || [ $$? -eq 5 ]
	$(BIN)/sbon testbed exactly-once --seeds 2000

# Applies deliberate bugs to copies of the tree, one by one, and fails for each that no test notices: a quarter of an hour on two cores.
# Some of them: make mutants MUTANTS="links 'streams/*nonce*'"; all options: python -m tests.mutants.run --help
MUTANTS ?=
mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutants.run $(MUTANTS)

# Writes docs/reference/ anew, from the code: after a change of settings, options, functions, commands, telemetry or scenarios, or of their texts.
reference: $(VENV)/.installed-dev
	$(BIN)/python -m sbon_testbed.reference

# Makes a web site of README, docs/ and the other pages in site/: open site/index.html.
site: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -b html . site
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > site/index.html

clean:
	rm -rf $(VENV) $(OUT) site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
