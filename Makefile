# `make demo` and `make test` are all that a newcomer needs; every target sets up what it uses.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUST   := $(shell find src -name '*.rs') Cargo.toml Cargo.lock pyproject.toml

.PHONY: all format lint types build test demo bench experiments verdicts numbers soak docs wheel wheels newest deny audit clean

all: format lint types build test

$(VENV)/builder: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tamis needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --group build
	touch $@

$(VENV)/tools: $(VENV)/builder
	$(BIN)/python -m pip install --quiet --group test --group lint
	touch $@

$(VENV)/built: $(VENV)/builder $(RUST)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --locked --quiet --release
	touch $@

$(VENV)/spark: $(VENV)/tools
	$(BIN)/python -m pip install --quiet --group spark
	touch $@

$(VENV)/peers: $(VENV)/tools
	$(BIN)/python -m pip install --quiet --group bench
	touch $@

build: $(VENV)/built

format: $(VENV)/tools
	cargo fmt
	$(BIN)/ruff format --quiet
	$(BIN)/ruff check --quiet --fix

lint: $(VENV)/tools
	cargo fmt --check
	cargo clippy --locked --quiet --all-targets -- -D warnings
	cargo clippy --locked --quiet --features python -- -D warnings
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(VENV)/built $(VENV)/tools
	$(BIN)/mypy
	$(BIN)/stubtest tamis._native

test: $(VENV)/built $(VENV)/tools $(VENV)/spark
	.ci/servers
	cargo test --locked --quiet
	$(BIN)/python -m pytest --quiet --numprocesses auto

# A blocklist, a log, advice, and each filter before a store: one table and one picture.
# Without matplotlib, the report has no picture.
demo: $(VENV)/built
	-$(BIN)/python -m pip install --quiet "matplotlib>=3.8"
	$(BIN)/python -m tamis demo

# Compared with other packages, and the kernels with a yardstick. QUICK=1 runs every benchmark at a small size, to see
# that it still runs.
bench: $(VENV)/built $(VENV)/peers
	cargo bench --locked --quiet --bench kernels $(if $(QUICK),-- 1000000)
	$(BIN)/python benches/imports.py $(if $(QUICK),--rounds 1)
	$(BIN)/python benches/learned.py $(if $(QUICK),--keys 2000)
	$(BIN)/python benches/checks.py
	$(BIN)/python benches/threads.py $(if $(QUICK),--rounds 1)
	$(BIN)/python benches/scaling.py $(if $(QUICK),--sizes 10000 --rounds 1)
	$(BIN)/python benches/fuse_c.py $(if $(QUICK),--keys 10000 --rounds 1)
	$(BIN)/python benches/guard.py $(if $(QUICK),--stores Memory SQLite --keys 2000 --count 200 --rounds 1)
	$(BIN)/python benches/following.py $(if $(QUICK),--seconds 0.5 --rounds 1 --rows 20000)
	$(BIN)/python benches/collection.py $(if $(QUICK),--quick)
	$(BIN)/python benches/parquet.py $(if $(QUICK),--quick)
	$(BIN)/python benches/stacked.py $(if $(QUICK),--rounds 1)
	$(BIN)/python benches/streams.py $(if $(QUICK),--rounds 1)
	$(BIN)/python benches/traces.py
	$(BIN)/python benches/peers.py $(if $(QUICK),--quick --keys 10000)

# Every figure and table of the papers, measured again: hours, or minutes with QUICK=1. What is finished is
# not run again; ONLY=stacked/table2 runs one. The report is build/experiments/report.html.
experiments: $(VENV)/built $(VENV)/tools
	$(BIN)/python -m experiments $(if $(QUICK),--quick) $(if $(DATA_FREE),--data-free) $(if $(ONLY),--only "$(ONLY)")

# The table of verdicts in the documentation, from the experiments that are finished.
verdicts: $(VENV)/built $(VENV)/tools
	$(BIN)/python -m experiments --report --publish

# The numbers of README and docs, next to what their commands print.
numbers: $(VENV)/built $(VENV)/tools
	$(BIN)/python docs/check_numbers.py

# The long runs: a hundred million keys, fuzzing, a thousand faults and thousands of changed schemas and settings
# under guards, and many more examples per property, drawn at random.
# `make test` draws the same ones every time: what soak finds becomes an @example.
soak: $(VENV)/built $(VENV)/tools
	.ci/servers
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m campaign --faults 1000
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m campaign.settings --steps 3000
	TAMIS_SOAK=1 $(BIN)/python -m pytest --quiet tests
	PYTHON=$(CURDIR)/$(BIN)/python fuzz/run 3600

docs: $(VENV)/built
	$(BIN)/python -m pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

wheel: $(VENV)/builder
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin build --locked --quiet --release --out dist

# For a release: wheels for Linux with glibc 2.17 or newer (manylinux2014), of two processors. Zig links them
# against the old glibc; the one for aarch64 is cross-built, and not tested here.
wheels: $(VENV)/builder
	$(BIN)/python -m pip install --quiet --group wheels
	rustup target add x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
	for target in x86_64 aarch64; do \
		PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin build --locked --quiet --release --zig \
			--target $$target-unknown-linux-gnu --compatibility manylinux2014 --out dist || exit; \
	done

# The wheel in clean environments of each Python that this machine has, and its tests on the newest
# Python that this machine has or can get.
newest: wheel
	.ci/installs
	.ci/newest

# Licences and sources of the Rust dependencies, and their advisories where the database can be fetched.
deny:
	command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --locked check licenses bans sources
	cargo deny --locked check advisories || echo "deny: advisories were not checked, or see above"

# Advisories on the Python packages of the virtual environment, where their database can be reached.
audit: $(VENV)/tools
	$(BIN)/python -m pip install --quiet "pip-audit>=2.7"
	$(BIN)/python -m pip_audit --skip-editable

clean:
	rm -rf target dist site $(VENV)
