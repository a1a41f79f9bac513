# Three commands do all on a fresh machine: `make demo`, `make test` and `make decision`.
PYTHON ?= python3
BIN := .venv/bin

DECISIONS := how_many_phones which_deadline which_method when_to_train chips_or_links overnight_tuning

.PHONY: demo decision decisions quick test test-rest test-all test-nightly durations check format lint types tests golden flower-versions studies-quick studies-page \
	methods-page validation performance docs clean

demo: .venv/demo  ## Install, run the quickstart, print its table and draw its plot
	rm -rf runs/quickstart
	$(BIN)/edgesim run scenarios/quickstart.toml --out runs/quickstart
	$(BIN)/edgesim plot runs/quickstart --out runs/quickstart/accuracy

DECISION := scenarios/decisions/chips_or_links.toml

decision: .venv/demo  ## Install, run the study of an example decision, write its report and the README's picture of it
	$(BIN)/edgesim study run $(DECISION) --workers 2
	$(BIN)/edgesim report $(DECISION) --out runs/decision.html
	$(BIN)/edgesim study plot $(DECISION) --kind targets --width double --out runs/decision.png

decisions: .venv/demo  ## Run the studies of all example decisions and write their reports, runs/NAME.html
	for name in $(DECISIONS); do \
		$(BIN)/edgesim study run scenarios/decisions/$$name.toml --workers 2 && \
		$(BIN)/edgesim report scenarios/decisions/$$name.toml --out runs/$$name.html || exit 1; \
	done

# CONTRIBUTING.md says what each of these shows, and how long it takes.
test: .venv/dev tests  ## Install with the development tools and run the short tests

quick: .venv/dev  ## Run a sample of the short tests, one in four of every file
	EDGESIM_TEST_SIZE=quick $(PYTEST)

test-rest: .venv/dev  ## Run what `make test` leaves out
	EDGESIM_TEST_SIZE=rest $(PYTEST)

test-all: .venv/dev  ## Run every test at full size
	EDGESIM_TEST_SIZE=all $(PYTEST)

test-nightly: .venv/dev  ## Search for hours: random examples by the thousand, mutated scenarios, damaged files
	EDGESIM_TEST_SIZE=nightly $(PYTEST) --timeout 0

durations: .venv/dev  ## Run the short tests and write how long each file of them takes, tests/durations.csv
	EDGESIM_TEST_SIZE=short $(PYTEST) -p tests.durations

check: .venv/dev lint types tests  ## What has to hold before a commit

# Tests start many processes, each of which would compile the package anew if none of them kept its bytecode.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = $(BIN)/python -m pytest -q -n 2 --dist worksteal

tests:
	EDGESIM_TEST_SIZE=short $(PYTEST)

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

# The oldest supported version of Flower, and the newest that there is.
FLOWER_VERSIONS ?= "flwr==1.38.0" flwr

flower-versions: .venv/dev  ## Run the tests of Flower apps with the oldest and the newest version of Flower
	for version in $(FLOWER_VERSIONS); do \
		folder=$$(mktemp -d) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $$folder $$version && \
		PYTHONPATH=$$folder EDGESIM_TEST_SIZE=all $(BIN)/python -m pytest -q tests/flower && rm -r $$folder || exit 1; \
	done

golden: .venv/dev  ## Compare the golden tables with what their studies give now; the tests do so too
	$(BIN)/edgesim check --workers 2

# A study that fails, such as one whose data set is not there, keeps none from its turn; the target fails in the end.
studies-quick: .venv/dev  ## Run the quick size of every study that comes with edgesim, and print its table
	@failed=; for study in scenarios/studies/*.toml; do \
		$(BIN)/edgesim study run $$study --workers 2 && $(BIN)/edgesim study table $$study || failed="$$failed $$study"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

studies-page: .venv/dev  ## Write the tables of docs/explanation/studies.md from the runs of studies-quick; its head stays
	sed '/^## /,$$d' docs/explanation/studies.md > runs/studies.md
	for study in scenarios/studies/*.toml; do \
		$(BIN)/edgesim study table $$study --markdown >> runs/studies.md || exit 1; \
	done
	mv runs/studies.md docs/explanation/studies.md

# What was run before is not run again. METHODS_WORKERS: how many runs at a time.
METHODS_WORKERS ?= 2
ALL_METHODS := scenarios/studies/all_methods.toml

methods-page: .venv/demo  ## Run every method on one scenario and write docs/explanation/methods_compared.md
	$(BIN)/edgesim study run $(ALL_METHODS) --size full --workers $(METHODS_WORKERS)
	$(BIN)/python docs/gen/methods_compared.py

validation: .venv/dev  ## Write docs/explanation/validation.md from what edgesim gives now
	$(BIN)/python -m tests.validation.page

# It takes an hour on an idle machine; EDGESIM_RIVALS names other simulators (docs/howto/speed.md).
performance: .venv/dev  ## Write docs/explanation/performance.md from what benchmarks measure now
	$(BIN)/python -m benchmarks --page docs/explanation/performance.md --csv docs/data/performance.csv

docs: .venv/docs  ## Build the documentation as a site, site/index.html; warnings are errors
	DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# torch and torchvision must come from one pip call, so that they fit each other.
.venv/demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ .venv/demo

.venv/docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@ .venv/demo

# What tests in a browser need beside Chromium. The package brings axe-core; playwright is of the development tools.
.venv/browser: .venv/dev ## Fetch axe-core, which finds what people who cannot see or point would stumble over
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ axe-playwright-python
	touch $@

clean:
	rm -rf .venv runs site .pytest_cache .mypy_cache .ruff_cache .hypothesis
