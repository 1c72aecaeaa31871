# Everything sets itself up: Python 3.10+, Rust and a C compiler are all a machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Downloads and unpacks side by side. Behind a mirror of PyPI: UV_DEFAULT_INDEX.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python
# Beside the Fedcipher that has just been installed, which it is measured and compared with.
RESEARCH = $(INSTALL) --no-deps --editable research
DATA ?= ../shared/data
export FLWR_TELEMETRY_ENABLED := 0
# Where it is set, every process of a test or of Ray compiles Flower, Ray and JAX anew: 15 s each.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := $(shell find crates/fedcipher-types crates/fedcipher-core crates/fedcipher-accel crates/fedcipher-engine \
	crates/fedcipher-python -name '*.rs' -o -name '*.proto' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml
TFHE := crates/fedcipher-tfhe

.DEFAULT_GOAL := help

.PHONY: help demo build test check docs clean \
	engine engine-static containers tfhe concrete \
	test-rust test-python test-long test-containers test-dispatch test-static test-tfhe check-features deny advisories \
	prove maude constant-time \
	attack fuzz mutants mutants-core mutants-engine mutants-flower \
	e2e e2e-apps e2e-dashboard e2e-looks e2e-oneshot e2e-resume e2e-signals \
	bench bench-hhe bench-second bench-train bench-offload bench-oneshot bench-lora secagg-compare dp-table scale limits \
	results results-examples results-hhe results-study results-published results-bits results-lost results-train published \
	hardware hardware-sim hardware-try hardware-test hardware-test-all hardware-mutants hardware-seeds \
	wheels reproducible wheel-sizes check-wheels sbom golden screenshots

# A target's text is what stands behind `##` on its line, and begins with the target's group.
HELP_GROUPS := start build test campaign measure accelerator release
help: ## start: list the targets
	@for group in $(HELP_GROUPS); do \
		printf '\n%s\n' "$$group"; \
		awk -F ':.*## [a-z]+: ' -v mark="## $$group: " \
			'/^[a-z]/ && index($$0, mark) { printf "  make %-20s %s\n", $$1, $$2 }' Makefile; done

build: $(VENV)/.built $(VENV)/.engine ## start: build everything that development needs: native module, engine, authority, Python packages

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'
	touch $@

# uv is there, however old: Flower requires it too and may put another version in its place.
$(BIN)/maturin: | $(BIN)/uv
	$(INSTALL) 'maturin>=1.9,<2'
	touch $@

# To develop: every extra, and the native module of a wheel.
$(VENV)/.built: $(SOURCES) $(VENV)/.packages | $(BIN)/maturin
	. $(BIN)/activate && maturin develop --release --quiet --uv
	$(RESEARCH)
	touch $@

$(VENV)/.packages: pyproject.toml research/pyproject.toml | $(BIN)/uv
	$(INSTALL) -r pyproject.toml --extra flower --extra demo --extra bench --extra dp --extra dashboard --extra dev
	$(INSTALL) -r research/pyproject.toml
	touch $@

# To test, where nothing has been built to develop: native module and programs of the crates that `cargo test` has
# compiled, so that all is compiled once. With checks for overflow, and slower.
$(VENV)/.built-to-test: $(SOURCES) $(VENV)/.packages | $(BIN)/maturin
	cargo test $(TESTED_CRATES) --quiet --no-run
	cargo build --workspace --quiet --features $(WHOLE)
	install target/debug/fedcipher-engine target/debug/fedcipher-authority $(BIN)
	rm -f $(VENV)/.engine
	. $(BIN)/activate && maturin develop --quiet --uv --features whole
	$(RESEARCH)
	touch $@

WHOLE := fedcipher-python/whole,fedcipher-engine/accelerator
# The tests of fedcipher-accel need the simulated device: `make hardware-test`.
TESTED_CRATES := --workspace --exclude fedcipher-accel --features $(WHOLE)
TESTED = $(if $(wildcard $(VENV)/.built),build,$(VENV)/.built-to-test)

# To try: the packages of [demo] and the native module of only what the demo needs, made at the same time. What is
# compiled is installed when the packages are there: Flower's uv takes the place of the one that maturin would run.
DEMO := --profile demo --no-default-features --features ntt-tfhe
$(VENV)/.demo-built: $(VENV)/.demo-packages $(VENV)/.demo-native
	. $(BIN)/activate && maturin develop $(DEMO) --quiet --uv
	touch $@

$(VENV)/.demo-packages: pyproject.toml | $(BIN)/uv
	$(INSTALL) -r pyproject.toml --extra demo
	touch $@

$(VENV)/.demo-native: $(SOURCES) | $(BIN)/maturin
	. $(BIN)/activate && maturin develop $(DEMO) --quiet --skip-install
	touch $@

# The offload engine and the key authority, beside Python where `fedcipher train --engine auto` looks. This engine takes
# accelerators (docs/explanation/accelerator.md); those that are deployed do not, unless somebody builds them so.
engine: $(VENV)/.engine ## build: build the offload engine and the key authority

# A stamp, not the program: `make test` puts one with checks there.
$(VENV)/.engine: $(SOURCES) | $(BIN)/maturin
	cargo build --release --quiet -p fedcipher-engine --features accelerator
	install target/release/fedcipher-engine target/release/fedcipher-authority $(BIN)
	touch $@

# A C compiler and linker for every target.
ZIG := 'cargo-zigbuild>=0.20,<1' 'ziglang>=0.13,<0.16'

# The same bytes for the same commit, and without symbols, which a deployment does not read.
BUILD_STATIC := CARGO_PROFILE_RELEASE_STRIP=symbols tools/reproducibly.sh cargo zigbuild --release --quiet -p fedcipher-engine

# Both programs as static binaries, for servers and for the aarch64 of SmartNICs.
STATIC ?= x86_64-unknown-linux-musl aarch64-unknown-linux-musl
engine-static: $(BIN)/maturin ## build: build both programs as static binaries, for x86-64 and aarch64
	$(INSTALL) $(ZIG)
	rustc --version
	rustup target add $(STATIC)
	. $(BIN)/activate && for target in $(STATIC); do \
		$(BUILD_STATIC) --target $$target || exit 1; done

# Images for a deployment, with whichever of podman and docker is there; docs/how-to/deploy.md has the commands to run them.
CONTAINERS ?= $(firstword $(foreach runtime,podman docker,$(if $(shell command -v $(runtime)),$(runtime))))
BASE ?= docker.io/library/debian:bookworm-slim
containers: engine-static ## build: build container images of the engine, the authority and Flower's programs
	$(if $(CONTAINERS),,$(error neither podman nor docker is on the PATH))
	rm -rf dist/image
	. $(BIN)/activate && tools/reproducibly.sh maturin build --release --quiet --zig --target x86_64-unknown-linux-gnu \
		--compatibility manylinux2014 --out dist/image
	$(PYTHON) tools/finish_wheels.py dist/image --programs target
	for program in fedcipher-engine fedcipher-authority; do \
		$(CONTAINERS) build --quiet --tag $$program --build-arg PROGRAM=$$program --file deploy/program.Containerfile \
			target/x86_64-unknown-linux-musl/release || exit 1; done
	$(CONTAINERS) build --tag fedcipher-flower --build-arg BASE=$(BASE) --build-arg PIP_INDEX_URL \
		--file deploy/flower.Containerfile dist/image

test-containers: build containers ## test: build the images and run the tests that start them
	FEDCIPHER_CONTAINERS=$(CONTAINERS) $(BIN)/python -m pytest tests/cluster/test_containers.py

# Every path that is chosen at run time but AVX-512's, which is tested where it is.
test-dispatch: build ## test: run the Rust tests as on processors without AVX-512, AVX2 and AES
	tools/dispatch.sh --features $(WHOLE)

# For tools/without_avx512.sh.
target/without_avx512.so: tools/without_avx512.c
	mkdir -p target
	$(CC) -O2 -Wall -Wextra -shared -fPIC -o $@ $<

test-static: build engine-static ## test: run the static binaries' tests
	$(BIN)/python -m pytest tests/tools/test_static.py

# The TFHE baseline (tfhe-rs): minutes to build, so only where it is asked for.
tfhe: $(VENV)/.tfhe ## build: build the TFHE baseline; takes minutes

$(VENV)/.tfhe: $(VENV)/.packages $(TFHE)/src/lib.rs $(TFHE)/Cargo.toml $(TFHE)/Cargo.lock $(TFHE)/pyproject.toml | $(BIN)/maturin
	. $(BIN)/activate && CARGO_TARGET_DIR=target/tfhe maturin develop --release --quiet -m $(TFHE)/Cargo.toml
	touch $@

# Concrete, which needs an older NumPy and brings PyTorch with it: 6 GB.
CONCRETE := 'concrete-python==2.11.*' 'setuptools<80'
concrete: target/concrete/.installed ## build: install the Concrete baseline; takes 6 GB

target/concrete/.installed: | $(BIN)/maturin
	rm -rf target/concrete
	$(PYTHON) -m venv target/concrete
	$(BIN)/uv pip install --quiet --python target/concrete/bin/python $(CONCRETE)
	touch $@

test-tfhe: tfhe $(TESTED) ## test: lint and test the TFHE baseline
	CARGO_TARGET_DIR=target/tfhe cargo clippy --quiet --release --manifest-path $(TFHE)/Cargo.toml -- -D warnings
	$(BIN)/python -m pytest tests/research/test_baselines.py -k tfhe

# Wheels of CPython's stable ABI, from 3.10 on: Linux with glibc from 2.17 and with musl, on two processors. This
# machine's goes into dist/, the others into dist/cross/. macOS and Windows have machines of their own
# (.github/workflows/release.yml). A wheel has the static programs of its processor. The same commit gives the same bytes
# in every folder: `make reproducible`. rustc comes first: it has rustup install the compiler that the targets are added to.
WHEELS := x86_64-unknown-linux-gnu:manylinux2014 aarch64-unknown-linux-gnu:manylinux2014 \
	x86_64-unknown-linux-musl:musllinux_1_2 aarch64-unknown-linux-musl:musllinux_1_2
PROCESSORS = $(sort $(foreach wheel,$(WHEELS),$(firstword $(subst -, ,$(wheel)))))
wheels: $(BIN)/maturin ## release: build the Linux wheels, with glibc and musl, for x86-64 and aarch64
	$(INSTALL) $(ZIG)
	rustc --version
	rustup target add $(foreach wheel,$(WHEELS),$(firstword $(subst :, ,$(wheel)))) \
		$(PROCESSORS:%=%-unknown-linux-musl)
	. $(BIN)/activate && for processor in $(PROCESSORS); do \
		$(BUILD_STATIC) --bin fedcipher-engine --target $$processor-unknown-linux-musl || exit 1; done
	. $(BIN)/activate && for wheel in $(WHEELS); do \
		out=dist/cross; case $$wheel in "$$(uname -m)"-*-gnu:*) out=dist;; esac; \
		tools/reproducibly.sh maturin build --release --quiet --zig --target $${wheel%:*} \
			--compatibility $${wheel#*:} --out $$out || exit 1; done
	$(PYTHON) tools/finish_wheels.py dist --programs target
	find dist -name '*.whl' -exec ls -l {} +

# The wheel of this machine's Linux, built twice in two folders: the bytes must be equal. Ten minutes.
reproducible: $(BIN)/maturin ## release: build this machine's wheel in two folders and compare the bytes; takes ten minutes
	$(PYTHON) tools/reproducible.py --venv $(VENV) \
		--target "$(firstword $(filter $(shell uname -m)-%,$(WHEELS)))"

wheel-sizes: ## release: measure what this machine's wheel consists of, after `make wheels`
	$(PYTHON) tools/wheel_sizes.py dist

# The wheel of this machine in an environment of its own, with neither Rust nor a compiler on its path.
check-wheels: ## release: try this machine's wheel in an environment without Rust or a compiler
	$(PYTHON) tools/check_wheels.py dist --train

# What is in the programs and the wheel, as CycloneDX, into dist/sbom/. A wheel also carries its own.
sbom: ## release: list the crates in the programs and the wheel, as CycloneDX
	cargo install --quiet --locked --root target/tools --version '^0.5' cargo-cyclonedx
	PATH="$(CURDIR)/target/tools/bin:$$PATH" tools/sbom.sh dist/sbom

# Uses what `make build` has made where it has, and otherwise makes only what it needs.
demo: ## start: train 12 clients for 10 rounds under BFV, with a report
	$(MAKE) --no-print-directory -j2 \
		$(if $(wildcard $(VENV)/.built),$(VENV)/.built,$(VENV)/.demo-built)
	$(BIN)/fedcipher train --scheme bfv --dataset digits --clients 12 --rounds 10 --out runs/demo

test: test-rust test-python ## start: run all tests that every change must pass

test-rust: ## test: run the Rust tests
	cargo test $(TESTED_CRATES) --quiet

# Four files at a time, whatever the machine: half of what tests do is wait. What starts Ray is one file: two of it
# at once do not start in time on two cores.
test-python: $(TESTED) ## test: run the Python tests, four files at a time
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# Minutes more: every scheme and engine through `fedcipher train`, and resumed under every scheme; sums of PASTA-3.
test-long: $(TESTED) ## test: run the tests that take half a minute or more each
	cargo test -p fedcipher-core --quiet --features hhe --test hybrid -- --ignored
	FEDCIPHER_LONG=1 $(BIN)/python -m pytest -m long
	FEDCIPHER_LONG=1 $(BIN)/python -m pytest tests/federation/test_fault_finder.py

# A randomised active server, TRIES times a scheme: frames at the decryptors of the core, sets at memories of sets,
# messages at a ClientApp, and the same messages at clients of two worlds with other data.
TRIES ?= 100000
attack: build ## campaign: attack decryptors, memories of sets and clients at random, TRIES times each
	FEDCIPHER_ATTACK_TRIES=$(TRIES) cargo test --release -p fedcipher-core --features hhe --test attacks --test sets
	FEDCIPHER_LONG=1 FEDCIPHER_ATTACK_TRIES=$(TRIES) $(BIN)/python -m pytest -n auto --dist worksteal -k randomised \
		tests/attacks/test_attacks_two_worlds.py tests/attacks/test_attacks_sets.py tests/attacks/test_attacks_flower.py tests/attacks/test_attacks_oneshot.py \
		tests/research/test_attacks_baselines.py

# A cluster with engines under each scheme, and every kind of process killed in mid-run: two clusters at a time, since
# they mostly wait. A quarter of an hour.
e2e: build ## campaign: run clusters with engines and kill every kind of process
	$(BIN)/python -m pytest -n 2 --dist worksteal -rP tests/e2e/e2e.py
	$(BIN)/python research/benches/faults.py

# Flower's example apps against a SuperLink, in the clear and encrypted: their models must be equal. Minutes.
e2e-apps: build ## campaign: run Flower's example apps in the clear and encrypted, and compare the models
	$(INSTALL) xgboost-cpu
	$(BIN)/python -m pytest tests/e2e/e2e_apps.py

# Without a shared key on a SuperLink, with uploads lost and members killed. Minutes.
e2e-oneshot: build ## campaign: run oneshot on a SuperLink with lost uploads and killed members
	$(BIN)/python -m pytest -s tests/e2e/e2e_oneshot.py

# A run's page in Chromium, on a phone's width and a desk's; its loggers read by their own libraries.
e2e-dashboard: build ## campaign: open a run's page in Chromium
	command -v chromium || { apt-get update -qq && apt-get install -qq -y chromium; }
	$(INSTALL) playwright -r pyproject.toml --extra tensorboard --extra mlflow --extra wandb
	$(BIN)/python -m pytest tests/e2e/e2e_dashboard.py tests/app/test_watch.py

# Report and dashboard in Chromium, light and dark: axe's rules of WCAG 2 A and AA, the keyboard, a phone's width.
e2e-looks: build ## campaign: check report and dashboard with axe in Chromium
	command -v chromium || { apt-get update -qq && apt-get install -qq -y chromium; }
	$(INSTALL) playwright
	npm install --silent --no-save --prefix $(VENV)/axe axe-core@4
	FEDCIPHER_AXE=$(VENV)/axe/node_modules/axe-core/axe.min.js $(BIN)/python -m pytest tests/e2e/e2e_looks.py

# docs/images/: the pages of a training as `make demo` runs it, beside a plain one.
screenshots: build ## release: take the documentation's pictures of report and dashboard
	command -v chromium || { apt-get update -qq && apt-get install -qq -y chromium; }
	$(INSTALL) playwright pillow
	$(BIN)/python tools/screenshots.py

# A ServerApp on a SuperLink killed fifty times. Half an hour.
e2e-resume: build ## campaign: kill a ServerApp fifty times; takes half an hour
	$(BIN)/python -m pytest -s tests/e2e/e2e_resume.py
	$(BIN)/python research/benches/faults.py

# 200 trainings and 50 of each other long command, ended by signals at random moments. Two hours;
# FEDCIPHER_TRAININGS and FEDCIPHER_OTHERS are the numbers.
e2e-signals: build ## campaign: end long commands by signals at random; takes two hours
	$(BIN)/python -m pytest -s tests/e2e/e2e_signals.py

# What handles secrets, under valgrind: no branch and no index may depend on one. Minutes, most of them to compile.
constant-time: ## test: look under valgrind for branches and indices that depend on secrets
	test "$$(uname -m)" = x86_64 || { echo "it asks valgrind by instructions of x86-64; run it there" >&2; exit 1; }
	command -v valgrind || { apt-get update -qq && apt-get install -qq -y valgrind; }
	tools/constant_time.sh

# What parses foreign bytes, FUZZ_SECONDS a target; a corpus grows in fuzz/corpus, what was found lies in
# fuzz/artifacts. `make fuzz FUZZ=--minimise` packs of the corpora what is worth keeping.
FUZZ_SECONDS ?= 600
FUZZ ?=
fuzz: $(BIN)/uv ## campaign: fuzz every parser of foreign bytes, FUZZ_SECONDS each
	cargo install --quiet --locked --root target/tools --version '^0.13' cargo-fuzz
	PATH="$(CURDIR)/target/tools/bin:$$PATH" $(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS) $(FUZZ)

# Files of every scheme as this version writes them, for tests/schemes/test_golden.py: once a release.
golden: build ## release: keep this version's files for the tests of later versions
	$(BIN)/python tools/golden.py

# Breaks one guard at a time and sees the attack tests go red. MUTANTS="prekeys sets": those of these files.
mutants: $(BIN)/maturin ## campaign: remove guards of the core one by one; the attack tests must fail
	$(BIN)/python tools/mutants.py $(MUTANTS)

# What cargo-mutants makes of the core's guards. Hours; MUTANTS="--shard 0/5" tries a fifth.
mutants-core: $(BIN)/maturin ## campaign: run cargo-mutants on the core's guards; takes hours
	cargo install --quiet --locked --root target/tools --version '^27' cargo-mutants
	PATH="$(CURDIR)/target/tools/bin:$$PATH" $(BIN)/python tools/mutants_core.py $(MUTANTS)

# Guards of the engine and the key authority, taken out; half an hour. MUTANTS=--again: those not caught the last time.
mutants-engine: build ## campaign: remove guards of the engine and the authority one by one
	$(BIN)/python tools/mutants_engine.py $(MUTANTS)

# The same of the Flower layer, in Python. An hour.
mutants-flower: build ## campaign: remove guards of the Flower layer one by one
	$(BIN)/python tools/mutants_flower.py $(MUTANTS)

check: $(TESTED) ## start: run formatters, linters, types, spelling, the list of licences and the proofs
	cargo fmt --all --check
	cargo fmt --manifest-path $(TFHE)/Cargo.toml --check
	cargo clippy --workspace --all-targets --quiet --features $(WHOLE) -- -D warnings
	$(BIN)/ruff check python research tests examples tools hardware
	$(BIN)/ruff format --check python research tests examples tools hardware
	$(BIN)/typos
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tools/licences.py --check
	$(BIN)/python tools/prove.py

# By z3, from the code: no committee of `oneshot` can be split, and sums come back. Then parameters against the dual
# attack by coded sieving.
prove: build ## test: prove properties of oneshot's committees by z3
	$(BIN)/python tools/prove.py
	$(BIN)/python tools/lattice_coded.py --check

# By Maude (Debian's package `maude`): no shares that a server may not have, in small; with a guard taken out, the attack
# is found. Minutes.
maude: ## test: search for attacks on oneshot by Maude; takes minutes
	$(PYTHON) tools/maude_searches.py $(MAUDE)

# The sets of features that `make check` does not have, and the fuzz targets. Each benchmark runs once: what nobody runs
# breaks unseen.
check-features: ## test: compile the sets of features and the benchmarks that `check` leaves out
	cargo clippy -p fedcipher-python --no-default-features --features ntt-tfhe --quiet -- -D warnings
	cargo clippy -p fedcipher-core --no-default-features --features ntt-fhe-math --quiet -- -D warnings
	cargo clippy -p fedcipher-core --benches --features count --quiet -- -D warnings
	cargo check --manifest-path fuzz/Cargo.toml --quiet
	cargo bench -p fedcipher-core --profile dev --quiet --bench kernels --bench ntt -- --test

# All features of the workspace, the TFHE baseline and the fuzz targets. Not in `make check`: the tool takes five minutes
# to compile once.
DENIED := Cargo.toml $(TFHE)/Cargo.toml fuzz/Cargo.toml
DENY = for manifest in $(DENIED); do \
	target/tools/bin/cargo-deny --locked --all-features --config deny.toml --manifest-path $$manifest \
		check --allow unmatched-skip --allow unnecessary-skip --allow advisory-not-detected

target/tools/bin/cargo-deny:
	cargo install --quiet --locked --root target/tools --version '^0.20' cargo-deny

deny: target/tools/bin/cargo-deny ## test: check licences, versions and sources of the Rust dependencies by deny.toml
	$(DENY) licenses bans sources || exit 1; done

advisories: target/tools/bin/cargo-deny ## test: look the Rust dependencies up in RustSec's database; needs GitHub
	$(DENY) advisories || exit 1; done

bench: build ## measure: run the benchmarks of FLASHE and BFV
	cargo bench -p fedcipher-core --bench kernels --bench ntt -- --quick --noplot
	cargo bench -p fedcipher-core --no-default-features --features ntt-fhe-math --bench ntt -- --quick --noplot
	$(BIN)/python research/benches/report.py

bench-hhe: build ## measure: run the benchmarks of hybrid HE
	cargo bench -p fedcipher-core --features hhe --bench hybrid -- --quick --noplot
	$(BIN)/python research/benches/hhe.py

# Before both on another kind of machine: what they wrote goes to docs/evidence/benchmarks-second.md.
bench-second: ## measure: run `bench` and `bench-hhe` of another machine into their own page
	$(BIN)/python research/tools/second_machine.py

# `fedcipher train` beside Flower's own FedAvg: the table of docs/evidence/training.md. A quarter of an hour.
bench-train: build ## measure: time `fedcipher train` beside Flower's own FedAvg
	DATA=$(DATA) $(BIN)/python research/benches/training.py

bench-offload: build ## measure: time the offload engine
	$(BIN)/python research/benches/offload.py

# Secure aggregation without a shared key, Flower's SecAgg+ beside it: the table of docs/explanation/oneshot.md.
bench-oneshot: build ## measure: time oneshot beside Flower's SecAgg+
	$(BIN)/python research/benches/oneshot.py

# A mask's seed of Flower's SecAgg+ searched for: the table of docs/explanation/secagg-compare.md.
secagg-compare: build ## measure: search for a mask's seed of Flower's SecAgg+
	$(BIN)/python research/benches/secagg_seed.py

# Epsilon against accuracy on MNIST, and the noise beside OpenDP's: the table of docs/explanation/dp.md. A quarter of an hour.
dp-table: build ## measure: measure accuracy by epsilon on MNIST
	DATA=$(DATA) $(BIN)/python research/tools/dp_table.py

# Time and memory against clients and values, and what was killed and lost: the tables of docs/evidence/scale.md. An hour.
scale: build ## measure: measure time and memory by clients and values; takes an hour
	$(BIN)/python research/benches/scale.py
	$(MAKE) --no-print-directory e2e e2e-resume

# How far each path is from the processor's own limits: docs/evidence/limits.md.
limits: build ## measure: measure how far each path is from the processor's limits
	$(BIN)/python research/benches/limits.py

# What the adapters of a 7 B model cost: the figures of docs/evidence/lora.md.
bench-lora: build ## measure: measure what the adapters of a 7 B model cost
	$(BIN)/python research/benches/lora.py

# The committed reports and the README's tables, made anew: two hours. Its parts can be made one by one; each study
# alone is a command of its script.
results: results-examples results-hhe results-study results-published results-train results-bits results-lost ## measure: make all committed reports and tables again; takes two hours
	$(BIN)/python research/tools/readme_tables.py
	$(BIN)/python research/tools/charts.py
	$(BIN)/python research/tools/published_page.py

results-examples: build ## measure: make the reports of the README's examples
	DATA=$(DATA) research/tools/results.sh

results-hhe: build ## measure: make the reports of hybrid HE
	DATA=$(DATA) research/tools/results_hhe.sh

results-study: build tfhe ## measure: make the reports of docs/evidence/study.md
	research/tools/results_study.sh

results-published: build concrete ## measure: make the reports of the published experiments
	DATA=$(DATA) research/tools/results_published.sh

# Accuracy by bits, and what a value costs on the wire: docs/explanation/bits.md. Goes on where it was stopped; two hours.
results-bits: build ## measure: measure accuracy and bytes by bits; takes two hours
	$(BIN)/python research/tools/results_bits.py --data $(DATA)

# What training loses by coding, PyTorch's and JAX's: docs/explanation/bits.md. Goes on where it was stopped; half an hour, and the
# gigabytes of PyTorch.
results-lost: build ## measure: measure what training loses by coding
	$(INSTALL) torch
	$(BIN)/python research/tools/results_lost.py --data $(DATA)

results-train: build ## measure: make the reports of training
	DATA=$(DATA) research/tools/results_train.sh

# docs/evidence/published.md anew from the reports that are there; nothing is measured.
published: build ## measure: write docs/evidence/published.md from the reports that exist
	$(BIN)/python research/tools/published_page.py

# FedBit's accelerator (docs/explanation/accelerator.md): free tools of PyPI, in an environment of the project's.
FC := target/hardware
FC_LANES ?= 8
FC_LIBRARY = $(CURDIR)/$(FC)/sim_p$(FC_LANES)/libfc_sim.so
TRY_DEVICE = FC_SIM_LIBRARY=$(FC_LIBRARY) cargo test --quiet -p fedcipher-accel --features sim

$(VENV)/.hardware: pyproject.toml | $(BIN)/uv
	$(INSTALL) -r pyproject.toml --extra hardware
	touch $@

$(FC)/tables: hardware/tools/constants.py
	$(PYTHON) $< --tables $@

# The simulated device, for `fedcipher-accel` and for whoever loads it.
hardware-sim: $(VENV)/.hardware $(FC)/tables ## accelerator: build the simulated device
	$(BIN)/python hardware/sim/build.py --lanes $(FC_LANES) --out $(dir $(FC_LIBRARY))

# A device of FC_LANES lanes against the core.
hardware-try: hardware-sim ## accelerator: compare a simulated device of FC_LANES lanes with the core
	$(TRY_DEVICE) --release

# The fast part: each module and the whole device against the core, and the proofs.
hardware-test: hardware-sim ## accelerator: test each module and the device against the core, and run the proofs
	$(BIN)/python hardware/tools/constants.py --check
	$(TRY_DEVICE)
	$(BIN)/python hardware/test/run.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/formal/proofs.py

# All: a million products, a hundred whole ciphertexts each way and mode, devices of 2, 4 and 16 lanes, every mutant.
hardware-test-all: hardware-test ## accelerator: run all tests of the accelerator, on devices of 2 to 16 lanes
	FC_PRODUCTS=1000000 $(BIN)/python hardware/test/run.py units
	FC_SIM_TRIES=100 $(TRY_DEVICE) --release
	for lanes in 2 4 16; do $(MAKE) --no-print-directory FC_LANES=$$lanes hardware-try || exit 1; done
	$(MAKE) --no-print-directory hardware-mutants

hardware-mutants: hardware-sim ## accelerator: break each module; the tests and the proofs must notice
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/test/mutants.py

# Synthesis, place and route, cycles; hardware/synth/README.md has the tables.
hardware: hardware-sim $(TESTED) ## accelerator: synthesise, place and route the accelerator, and count its cycles
	export PATH="$(CURDIR)/$(BIN):$$PATH"; for lanes in 2 4 8 16; do \
		$(BIN)/python hardware/synth/synth.py xcup $$lanes || exit 1; done
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/synth/synth.py ecp5
	for lanes in 2 4 8 16; do \
		$(MAKE) --no-print-directory FC_LANES=$$lanes hardware-sim && \
		$(BIN)/python hardware/synth/synth.py cycles $$lanes || exit 1; done
	$(BIN)/python hardware/synth/synth.py readme
	cat hardware/synth/README.md

# After it, the same netlist placed and routed from other seeds.
hardware-seeds: $(VENV)/.hardware $(TESTED) ## accelerator: place and route the same netlist from other seeds
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/synth/synth.py seeds
	$(BIN)/python hardware/synth/synth.py readme

# The site, from docs/ and the docstrings; a link that leads nowhere is an error.
docs: $(VENV)/.docs ## start: build the documentation site into runs/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site: runs/site/index.html (its search needs a server: python3 -m http.server -d runs/site)"

$(VENV)/.docs: $(TESTED)
	$(INSTALL) -r pyproject.toml --extra docs
	touch $@

clean: ## start: remove everything that was built, the reports in runs/ too
	rm -rf $(VENV) target runs dist
