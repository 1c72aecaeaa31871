# Everything sets itself up: Python 3.10+, Rust and a C compiler are all a machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= ../shared/data
export FLWR_TELEMETRY_ENABLED := 0
SOURCES := $(shell find crates/fedcipher-core crates/fedcipher-engine crates/fedcipher-python \
	-name '*.rs' -o -name '*.proto' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml
TFHE := crates/fedcipher-tfhe

.PHONY: demo tfhe test-tfhe engine engine-static test-static test test-rust test-python attack mutants check bench bench-hhe \
	bench-offload results build clean

build: $(VENV)/.built $(BIN)/fedcipher-engine

$(BIN)/maturin:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet 'maturin>=1.9,<2'

$(VENV)/.built: $(BIN)/maturin $(SOURCES)
	. $(BIN)/activate && maturin develop --release --quiet --extras flower,demo,bench,dev
	touch $@

# The offload engine and the key authority, beside Python where `fedcipher train --engine auto` looks.
engine: $(BIN)/fedcipher-engine

$(BIN)/fedcipher-engine: $(BIN)/maturin $(SOURCES)
	cargo build --release --quiet -p fedcipher-engine
	install target/release/fedcipher-engine target/release/fedcipher-authority $(BIN)
	touch $@

# Both programs as static binaries, for servers and for the aarch64 of SmartNICs.
STATIC := x86_64-unknown-linux-musl aarch64-unknown-linux-musl
engine-static: $(BIN)/maturin
	$(BIN)/python -m pip install --quiet 'cargo-zigbuild>=0.20,<1' 'ziglang>=0.13,<0.16'
	rustup target add $(STATIC)
	. $(BIN)/activate && for target in $(STATIC); do \
		cargo zigbuild --release --quiet -p fedcipher-engine --target $$target || exit 1; done

test-static: build engine-static
	$(BIN)/python -m pytest tests/test_static.py

# The TFHE baseline (tfhe-rs): minutes to build, so only where it is asked for.
tfhe: $(VENV)/.tfhe

$(VENV)/.tfhe: $(VENV)/.built $(TFHE)/src/lib.rs $(TFHE)/Cargo.toml $(TFHE)/Cargo.lock $(TFHE)/pyproject.toml
	. $(BIN)/activate && CARGO_TARGET_DIR=target/tfhe maturin develop --release --quiet -m $(TFHE)/Cargo.toml
	touch $@

test-tfhe: tfhe
	CARGO_TARGET_DIR=target/tfhe cargo clippy --quiet --release --manifest-path $(TFHE)/Cargo.toml -- -D warnings
	$(BIN)/python -m pytest tests/test_baselines.py -k tfhe

demo: build
	$(BIN)/fedcipher train --scheme bfv --dataset digits --clients 12 --rounds 10 --out runs/demo

test: test-rust test-python

test-rust:
	cargo test --workspace --quiet

test-python: build
	$(BIN)/python -m pytest

# A randomised active server, TRIES times a scheme: frames at the decryptors of the core, messages at a ClientApp.
TRIES ?= 100000
attack: build
	FEDCIPHER_ATTACK_TRIES=$(TRIES) cargo test --release -p fedcipher-core --features hhe --test attacks
	FEDCIPHER_ATTACK_TRIES=$(TRIES) $(BIN)/python -m pytest tests/test_attacks_flower.py tests/test_attacks_baselines.py -k randomised

# Breaks one guard at a time and sees the attack tests go red.
mutants: $(BIN)/maturin
	$(BIN)/python tools/mutants.py

check: build
	cargo fmt --all --check
	cargo fmt --manifest-path $(TFHE)/Cargo.toml --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	cargo clippy -p fedcipher-core --no-default-features --features ntt-fhe-math --quiet -- -D warnings
	$(BIN)/ruff check python tests benches examples tools
	$(BIN)/ruff format --check python tests benches examples tools
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tools/licences.py --check

bench: build
	cargo bench -p fedcipher-core --bench kernels -- --quick --noplot
	$(BIN)/python benches/report.py

bench-hhe: build
	cargo bench -p fedcipher-core --features hhe --bench hybrid -- --quick --noplot
	$(BIN)/python benches/hhe.py

bench-offload: build
	$(BIN)/python benches/offload.py

# The committed reports and the README's tables, made anew.
results: build tfhe
	DATA=$(DATA) tools/results.sh
	DATA=$(DATA) tools/results_hhe.sh
	tools/results_study.sh
	$(BIN)/python tools/readme_tables.py

clean:
	rm -rf $(VENV) target runs
