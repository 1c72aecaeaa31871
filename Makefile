# The targets install everything else themselves. A machine needs only Python 3.10+, Rust and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv downloads and unpacks in parallel. To use a mirror of PyPI, set UV_DEFAULT_INDEX.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python
# The research package, without its dependency Fedcipher, which has just been installed.
RESEARCH = $(INSTALL) --no-deps --editable research
DATA ?= ../shared/data
export FLWR_TELEMETRY_ENABLED := 0
# If this is set, every process of a test or of Ray compiles Flower, Ray and JAX again, which takes 15 s each.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := $(shell find crates/fedcipher-types crates/fedcipher-core crates/fedcipher-accel crates/fedcipher-engine \
	crates/fedcipher-python -name '*.rs' -o -name '*.proto' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml
TFHE := crates/fedcipher-tfhe

.DEFAULT_GOAL := help

.PHONY: help demo build test check docs clean \
	engine engine-static containers tfhe concrete \
	test-rust test-python test-long test-containers test-dispatch test-static test-tfhe check-features deny advisories \
	prove maude constant-time \
	attack fuzz mutants mutants-core mutants-engine mutants-flower mutants-guard mutants-jail \
	e2e e2e-apps e2e-dashboard e2e-declearn e2e-guard e2e-looks e2e-nvflare e2e-oneshot e2e-resume e2e-signals \
	bench bench-hhe bench-second bench-train bench-offload bench-oneshot bench-lora secagg-compare dp-table scale limits \
	results results-examples results-hhe results-study results-published results-bits results-lost results-train published \
	hardware hardware-sim hardware-try hardware-test hardware-test-all hardware-mutants hardware-seeds \
	wheels reproducible wheel-sizes check-wheels sbom golden screenshots

# The text behind `##` on a target's line describes the target, and begins with the target's group.
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

# Any version of uv will do: Flower requires uv too, and may install another version.
$(BIN)/maturin: | $(BIN)/uv
	$(INSTALL) 'maturin>=1.9,<2'
	touch $@

# For development: every extra, and the native module of a wheel.
$(VENV)/.built: $(SOURCES) $(VENV)/.packages | $(BIN)/maturin
	. $(BIN)/activate && maturin develop --release --quiet --uv
	$(RESEARCH)
	touch $@

$(VENV)/.packages: pyproject.toml research/pyproject.toml | $(BIN)/uv
	$(INSTALL) -r pyproject.toml --extra flower --extra demo --extra bench --extra dp --extra dashboard --extra dev
	$(INSTALL) -r research/pyproject.toml
	touch $@

# For tests, if nothing has been built for development. The native module and the programs use the crates that
# `cargo test` has compiled, so that each crate is compiled once. They check for overflow and are slower.
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

# For the demo: the packages of [demo], and a native module with only the parts that the demo needs, made at the same
# time. The module is installed after the packages, because Flower's uv replaces the uv that maturin would run.
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

# The offload engine and the key authority, in the folder of Python, where `fedcipher train --engine auto` finds them.
# This engine supports accelerators (docs/explanation/accelerator.md). Deployed engines do not, unless they are built
# with that feature.
engine: $(VENV)/.engine ## build: build the offload engine and the key authority

# The target is a stamp and not the program, because `make test` installs a program with checks in its place.
$(VENV)/.engine: $(SOURCES) | $(BIN)/maturin
	cargo build --release --quiet -p fedcipher-engine --features accelerator
	install target/release/fedcipher-engine target/release/fedcipher-authority $(BIN)
	touch $@

# A C compiler and linker for every target.
ZIG := 'cargo-zigbuild>=0.20,<1' 'ziglang>=0.13,<0.16'

# A commit always gives the same bytes. Symbols are left out, because a deployment does not use them.
BUILD_STATIC := CARGO_PROFILE_RELEASE_STRIP=symbols tools/reproducibly.sh cargo zigbuild --release --quiet -p fedcipher-engine

# Both programs as static binaries, for servers and for the aarch64 of SmartNICs.
STATIC ?= x86_64-unknown-linux-musl aarch64-unknown-linux-musl
engine-static: $(BIN)/maturin ## build: build both programs as static binaries, for x86-64 and aarch64
	$(INSTALL) $(ZIG)
	rustc --version
	rustup target add $(STATIC)
	. $(BIN)/activate && for target in $(STATIC); do \
		$(BUILD_STATIC) --target $$target || exit 1; done

# Images for a deployment, built with podman or docker. docs/how-to/deploy.md has the commands that run them.
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

# Tests every code path that is chosen at run time. The path of AVX-512 is tested only on processors that have it.
test-dispatch: build ## test: run the Rust tests as on processors without AVX-512, AVX2 and AES
	tools/dispatch.sh --features $(WHOLE)

# tools/without_avx512.sh preloads this library.
target/without_avx512.so: tools/without_avx512.c
	mkdir -p target
	$(CC) -O2 -Wall -Wextra -shared -fPIC -o $@ $<

test-static: build engine-static ## test: run the static binaries' tests
	$(BIN)/python -m pytest tests/tools/test_static.py

# The TFHE baseline (tfhe-rs). Its build takes minutes, so no other target builds it by default.
tfhe: $(VENV)/.tfhe ## build: build the TFHE baseline; takes minutes

$(VENV)/.tfhe: $(VENV)/.packages $(TFHE)/src/lib.rs $(TFHE)/Cargo.toml $(TFHE)/Cargo.lock $(TFHE)/pyproject.toml | $(BIN)/maturin
	. $(BIN)/activate && CARGO_TARGET_DIR=target/tfhe maturin develop --release --quiet -m $(TFHE)/Cargo.toml
	touch $@

# Concrete needs an older NumPy and installs PyTorch: 6 GB.
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

# Wheels of CPython's stable ABI, from 3.10 on: Linux with glibc from 2.17 and with musl, for two processors. This
# machine's wheel goes into dist/, the others into dist/cross/. macOS and Windows wheels are built on other machines
# (.github/workflows/release.yml). A wheel has the static programs of its processor. A commit gives the same bytes in
# every folder (`make reproducible`). rustc runs first, so that rustup installs the compiler that gets the targets.
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

# Builds this machine's wheel in two folders. The bytes must be equal. Takes ten minutes.
reproducible: $(BIN)/maturin ## release: build this machine's wheel in two folders and compare the bytes; takes ten minutes
	$(PYTHON) tools/reproducible.py --venv $(VENV) \
		--target "$(firstword $(filter $(shell uname -m)-%,$(WHEELS)))"

wheel-sizes: ## release: measure what this machine's wheel consists of, after `make wheels`
	$(PYTHON) tools/wheel_sizes.py dist

# Tries this machine's wheel in an environment of its own, without Rust or a compiler on its path.
check-wheels: ## release: try this machine's wheel in an environment without Rust or a compiler
	$(PYTHON) tools/check_wheels.py dist --train

# Writes the lists of crates in the programs and the wheel, as CycloneDX, into dist/sbom/. A wheel also has its own list.
sbom: ## release: list the crates in the programs and the wheel, as CycloneDX
	cargo install --quiet --locked --root target/tools --version '^0.5' cargo-cyclonedx
	PATH="$(CURDIR)/target/tools/bin:$$PATH" tools/sbom.sh dist/sbom

# Uses the output of `make build` if it exists, and otherwise builds only what the demo needs.
demo: ## start: train 12 clients for 10 rounds under BFV, with a report
	$(MAKE) --no-print-directory -j2 \
		$(if $(wildcard $(VENV)/.built),$(VENV)/.built,$(VENV)/.demo-built)
	$(BIN)/fedcipher train --scheme bfv --dataset digits --clients 12 --rounds 10 --out runs/demo

test: test-rust test-python ## start: run all tests that every change must pass

test-rust: ## test: run the Rust tests
	cargo test $(TESTED_CRATES) --quiet

# Runs four files at a time on any machine, because tests wait half of their time. Tests that start Ray are in one file,
# because two of them at once do not start in time on two cores.
test-python: $(TESTED) ## test: run the Python tests, four files at a time
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# Takes minutes more: every scheme and engine through `fedcipher train`, resuming under every scheme, sums of PASTA-3.
test-long: $(TESTED) ## test: run the tests that take half a minute or more each
	cargo test -p fedcipher-core --quiet --features hhe --test hybrid -- --ignored
	FEDCIPHER_LONG=1 $(BIN)/python -m pytest -m long
	FEDCIPHER_LONG=1 $(BIN)/python -m pytest tests/federation/test_fault_finder.py

# A randomised active server, with TRIES tries for each scheme. It sends frames to the core's decryptors, sets to memories
# of sets, messages to a ClientApp, and the same messages to clients of two worlds with different data.
TRIES ?= 100000
attack: build ## campaign: attack decryptors, memories of sets and clients at random, TRIES times each
	FEDCIPHER_ATTACK_TRIES=$(TRIES) cargo test --release -p fedcipher-core --features hhe --test attacks --test sets
	FEDCIPHER_LONG=1 FEDCIPHER_ATTACK_TRIES=$(TRIES) $(BIN)/python -m pytest -n auto --dist worksteal -k randomised \
		tests/attacks/test_attacks_two_worlds.py tests/attacks/test_attacks_sets.py tests/attacks/test_attacks_flower.py tests/attacks/test_attacks_oneshot.py \
		tests/research/test_attacks_baselines.py

# Runs a cluster with engines under each scheme, and kills every kind of process in the middle of a run. Two clusters run
# at a time, because they mostly wait. Takes a quarter of an hour.
e2e: build ## campaign: run clusters with engines and kill every kind of process
	$(BIN)/python -m pytest -n 2 --dist worksteal -rP tests/e2e/e2e.py
	$(BIN)/python research/benches/faults.py

# Runs Flower's example apps against SuperLinks: in the clear, encrypted, and behind guards. The models must be equal.
# Installs PyTorch, which takes five gigabytes, because its wheel needs the libraries of a GPU to start. Takes an hour or two.
e2e-apps: build ## campaign: run Flower's example apps in the clear, encrypted and guarded, and compare the models
	$(INSTALL) torch pandas xgboost-cpu
	$(BIN)/python -m pytest -s tests/e2e/e2e_apps.py

# Runs unchanged and hostile client apps on guarded SuperNodes, and kills guards at each step. Installs PyTorch, which
# takes five gigabytes. Takes half an hour.
e2e-guard: build ## campaign: run unchanged and hostile apps behind guards, and kill guards at each step
	$(INSTALL) torch
	$(BIN)/python -m pytest -s tests/e2e/e2e_no_run.py tests/e2e/e2e_guard.py

# Runs `oneshot` on a SuperLink, with lost uploads and killed members. Takes minutes.
e2e-oneshot: build ## campaign: run oneshot on a SuperLink with lost uploads and killed members
	$(BIN)/python -m pytest -s tests/e2e/e2e_oneshot.py

# Runs declearn's server and clients as processes, in the clear and encrypted. The models must be equal. declearn has an
# environment of its own. Takes minutes, most of them for one round of declearn's Joye-Libert.
DECLEARN ?= $(VENV)/declearn
e2e-declearn: build ## campaign: run a federation of declearn in the clear and encrypted, and compare the models
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(DECLEARN)
	$(BIN)/uv pip install --quiet --python $(DECLEARN)/bin/python -r pyproject.toml --extra declearn pytest
	PYTHONPATH=python $(DECLEARN)/bin/python -m pytest tests/adapters/test_declearn.py
	PYTHONPATH=python $(DECLEARN)/bin/python -m pytest tests/adapters/test_conformance.py -k declearn
	FEDCIPHER_DECLEARN_PYTHON=$(DECLEARN)/bin/python $(BIN)/python -m pytest tests/e2e/e2e_declearn.py

# Runs NVFlare's server and sites as processes, and kills some of them. NVFlare has an environment of its own, because its
# requirements do not fit Flower's. tenseal is for NVFlare's own encryption, beside which the figures are printed. Takes
# minutes.
NVFLARE := target/nvflare
e2e-nvflare: build $(NVFLARE)/.installed ## campaign: run NVFlare jobs in the clear and encrypted, and compare the models
	PYTHONPATH=tests $(NVFLARE)/bin/python -m pytest -p no:cacheprovider --noconftest tests/adapters/test_nvflare_filters.py
	$(NVFLARE)/bin/python -m pytest -p no:cacheprovider tests/adapters/test_conformance.py -k nvflare
	$(BIN)/python -m pytest -s tests/e2e/e2e_nvflare.py

$(NVFLARE)/.installed: pyproject.toml | $(BIN)/uv
	rm -rf $(NVFLARE)
	$(PYTHON) -m venv $(NVFLARE)
	$(BIN)/uv pip install --quiet --python $(NVFLARE)/bin/python -r pyproject.toml --extra nvflare pytest
	$(BIN)/uv pip install --quiet --python $(NVFLARE)/bin/python tenseal || echo "tenseal is not to be had here"
	$(NVFLARE)/bin/python -c "import site; open(site.getsitepackages()[0] + '/fedcipher.pth', 'w').write('$(CURDIR)/python')"
	touch $@

# Opens a run's page in Chromium, with the width of a phone and of a desktop. Reads the loggers' files with the loggers'
# own libraries.
e2e-dashboard: build ## campaign: open a run's page in Chromium
	command -v chromium || { apt-get update -qq && apt-get install -qq -y chromium; }
	$(INSTALL) playwright -r pyproject.toml --extra tensorboard --extra mlflow --extra wandb
	$(BIN)/python -m pytest tests/e2e/e2e_dashboard.py tests/app/test_watch.py

# Checks report and dashboard in Chromium, light and dark: axe's rules of WCAG 2 A and AA, the keyboard, a phone's width.
e2e-looks: build ## campaign: check report and dashboard with axe in Chromium
	command -v chromium || { apt-get update -qq && apt-get install -qq -y chromium; }
	$(INSTALL) playwright
	npm install --silent --no-save --prefix $(VENV)/axe axe-core@4
	FEDCIPHER_AXE=$(VENV)/axe/node_modules/axe-core/axe.min.js $(BIN)/python -m pytest tests/e2e/e2e_looks.py

# Writes docs/images/: the pages of a training like in `make demo`, compared with a plain one.
screenshots: build ## release: take the documentation's pictures of report and dashboard
	command -v chromium || { apt-get update -qq && apt-get install -qq -y chromium; }
	$(INSTALL) playwright pillow
	$(BIN)/python tools/screenshots.py

# Kills a ServerApp on a SuperLink fifty times. Takes half an hour.
e2e-resume: build ## campaign: kill a ServerApp fifty times; takes half an hour
	$(BIN)/python -m pytest -s tests/e2e/e2e_resume.py
	$(BIN)/python research/benches/faults.py

# Ends 200 trainings, and 50 runs of each other long command, by signals at random moments. Takes two hours.
# FEDCIPHER_TRAININGS and FEDCIPHER_OTHERS change the numbers.
e2e-signals: build ## campaign: end long commands by signals at random; takes two hours
	$(BIN)/python -m pytest -s tests/e2e/e2e_signals.py

# Runs the code that handles secrets under valgrind. No branch and no index may depend on a secret. Takes minutes, mostly
# to compile.
constant-time: ## test: look under valgrind for branches and indices that depend on secrets
	test "$$(uname -m)" = x86_64 || { echo "this test needs valgrind on x86-64; run it on such a machine" >&2; exit 1; }
	command -v valgrind || { apt-get update -qq && apt-get install -qq -y valgrind; }
	tools/constant_time.sh

# Fuzzes the parsers of foreign bytes, FUZZ_SECONDS for each target. The corpora grow in fuzz/corpus, and findings go into
# fuzz/artifacts. `make fuzz FUZZ=--minimise` reduces and packs the corpora.
FUZZ_SECONDS ?= 600
FUZZ ?=
fuzz: $(BIN)/uv ## campaign: fuzz every parser of foreign bytes, FUZZ_SECONDS each
	cargo install --quiet --locked --root target/tools --version '^0.13' cargo-fuzz
	PATH="$(CURDIR)/target/tools/bin:$$PATH" $(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS) $(FUZZ)

# Writes files of every scheme in this version's formats, for tests/schemes/test_golden.py. Run this once a release.
golden: build ## release: keep this version's files for the tests of later versions
	$(BIN)/python tools/golden.py

# Removes one guard at a time; the attack tests must fail. MUTANTS="prekeys sets" tries the guards of these files only.
mutants: $(BIN)/maturin ## campaign: remove guards of the core one by one; the attack tests must fail
	$(BIN)/python tools/mutants.py $(MUTANTS)

# Runs cargo-mutants on the core's guards. Takes hours. MUTANTS="--shard 0/5" tries a fifth.
mutants-core: $(BIN)/maturin ## campaign: run cargo-mutants on the core's guards; takes hours
	cargo install --quiet --locked --root target/tools --version '^27' cargo-mutants
	PATH="$(CURDIR)/target/tools/bin:$$PATH" $(BIN)/python tools/mutants_core.py $(MUTANTS)

# Removes guards of the engine and the key authority. Takes half an hour. MUTANTS=--again tries those that were not caught
# the last time.
mutants-engine: build ## campaign: remove guards of the engine and the authority one by one
	$(BIN)/python tools/mutants_engine.py $(MUTANTS)

# Removes guards of the Flower layer, which is Python. Takes an hour.
mutants-flower: build ## campaign: remove guards of the Flower layer one by one
	$(BIN)/python tools/mutants_flower.py $(MUTANTS)

mutants-guard: build ## campaign: remove guards of the site's guard, its log and consent one by one
	$(BIN)/python tools/mutants_guard.py $(MUTANTS)

# Takes out one wall of the jail around an app at a time. As root, on Linux with Landlock. Takes half an hour.
mutants-jail: $(BIN)/maturin ## campaign: remove the walls around a guard's app one by one
	$(BIN)/python tools/mutants_jail.py $(MUTANTS)

check: $(TESTED) ## start: run formatters, linters, types, spelling, the list of licences and the proofs
	cargo fmt --all --check
	cargo fmt --manifest-path $(TFHE)/Cargo.toml --check
	cargo clippy --workspace --all-targets --quiet --features $(WHOLE) -- -D warnings
	$(BIN)/ruff check python research tests examples tools hardware
	$(BIN)/ruff format --check python research tests examples tools hardware
	$(BIN)/typos
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright -p tools/pyright.json --pythonpath $(BIN)/python
	$(BIN)/python tools/licences.py --check
	$(BIN)/python tools/prove.py

# Proves by z3, from the code, that no committee of `oneshot` can be split and that sums decrypt correctly. Then estimates
# the cost of the dual attack by coded sieving on the parameters.
prove: build ## test: prove properties of oneshot's committees by z3
	$(BIN)/python tools/prove.py
	$(BIN)/python tools/lattice_coded.py --check

# Searches small models with Maude (Debian's package `maude`): a server gets no shares that it must not have. Without a
# guard, the search finds the attack. Takes minutes.
maude: ## test: search for attacks on oneshot by Maude; takes minutes
	$(PYTHON) tools/maude_searches.py $(MAUDE)

# Compiles the sets of features that `make check` leaves out, and the fuzz targets. Each benchmark runs once, so that a
# broken one is noticed.
check-features: ## test: compile the sets of features and the benchmarks that `check` leaves out
	cargo clippy -p fedcipher-python --no-default-features --features ntt-tfhe --quiet -- -D warnings
	cargo clippy -p fedcipher-core --no-default-features --features ntt-fhe-math --quiet -- -D warnings
	cargo clippy -p fedcipher-core --benches --features count --quiet -- -D warnings
	cargo check --manifest-path fuzz/Cargo.toml --quiet
	cargo bench -p fedcipher-core --profile dev --quiet --bench kernels --bench ntt -- --test

# Checks all features of the workspace, the TFHE baseline and the fuzz targets. `make check` leaves this out, because the
# tool takes five minutes to compile once.
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

# Run this before `bench` and `bench-hhe` on another kind of machine: it copies their pages to
# docs/evidence/benchmarks-second.md.
bench-second: ## measure: run `bench` and `bench-hhe` of another machine into their own page
	$(BIN)/python research/tools/second_machine.py

# Writes the table of docs/evidence/training.md: `fedcipher train` and Flower's own FedAvg. Takes a quarter of an hour.
bench-train: build ## measure: time `fedcipher train` beside Flower's own FedAvg
	DATA=$(DATA) $(BIN)/python research/benches/training.py

bench-offload: build ## measure: time the offload engine
	$(BIN)/python research/benches/offload.py

# Writes the table of docs/explanation/oneshot.md: secure aggregation without a shared key, and Flower's SecAgg+.
bench-oneshot: build ## measure: time oneshot beside Flower's SecAgg+
	$(BIN)/python research/benches/oneshot.py

# Writes the table of docs/explanation/secagg-compare.md: the search for the seed of a mask of Flower's SecAgg+.
secagg-compare: build ## measure: search for a mask's seed of Flower's SecAgg+
	$(BIN)/python research/benches/secagg_seed.py

# Writes the table of docs/explanation/dp.md: accuracy on MNIST by epsilon, and the speed of the noise and of OpenDP's.
# Takes a quarter of an hour.
dp-table: build ## measure: measure accuracy by epsilon on MNIST
	DATA=$(DATA) $(BIN)/python research/tools/dp_table.py

# Writes the tables of docs/evidence/scale.md: time and memory by clients and values, and runs with killed processes and
# lost uploads. Takes an hour.
scale: build ## measure: measure time and memory by clients and values; takes an hour
	$(BIN)/python research/benches/scale.py
	$(MAKE) --no-print-directory e2e e2e-resume

# Writes docs/evidence/limits.md: the distance of each path from the processor's own limits.
limits: build ## measure: measure how far each path is from the processor's limits
	$(BIN)/python research/benches/limits.py

# Writes the figures of docs/evidence/lora.md: the cost of the adapters of a 7 B model.
bench-lora: build ## measure: measure the cost of the adapters of a 7 B model
	$(BIN)/python research/benches/lora.py

# Makes the committed reports and the README's tables again, in two hours. Each part is a target of its own. A single study
# is a command in the part's script.
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

# Writes tables of docs/explanation/bits.md: accuracy by bits, and the bytes of a value on the wire. A stopped run can be
# continued. Takes two hours.
results-bits: build ## measure: measure accuracy and bytes by bits; takes two hours
	$(BIN)/python research/tools/results_bits.py --data $(DATA)

# Writes a table of docs/explanation/bits.md: the loss of training by coding, with PyTorch and JAX. A stopped run can be
# continued. Takes half an hour, and downloads PyTorch, which has gigabytes.
results-lost: build ## measure: measure the loss of training by coding
	$(INSTALL) torch
	$(BIN)/python research/tools/results_lost.py --data $(DATA)

results-train: build ## measure: make the reports of training
	DATA=$(DATA) research/tools/results_train.sh

# Writes docs/evidence/published.md again from the existing reports, without measuring.
published: build ## measure: write docs/evidence/published.md from the reports that exist
	$(BIN)/python research/tools/published_page.py

# FedBit's accelerator (docs/explanation/accelerator.md), with free tools of PyPI in the project's environment.
FC := target/hardware
FC_LANES ?= 8
FC_LIBRARY = $(CURDIR)/$(FC)/sim_p$(FC_LANES)/libfc_sim.so
TRY_DEVICE = FC_SIM_LIBRARY=$(FC_LIBRARY) cargo test --quiet -p fedcipher-accel --features sim

$(VENV)/.hardware: pyproject.toml | $(BIN)/uv
	$(INSTALL) -r pyproject.toml --extra hardware
	touch $@

$(FC)/tables: hardware/tools/constants.py
	$(PYTHON) $< --tables $@

# Builds the simulated device, which `fedcipher-accel` and other programs can load.
hardware-sim: $(VENV)/.hardware $(FC)/tables ## accelerator: build the simulated device
	$(BIN)/python hardware/sim/build.py --lanes $(FC_LANES) --out $(dir $(FC_LIBRARY))

# Compares a device of FC_LANES lanes with the core.
hardware-try: hardware-sim ## accelerator: compare a simulated device of FC_LANES lanes with the core
	$(TRY_DEVICE) --release

# The fast part of the tests: each module and the whole device against the core, and the proofs.
hardware-test: hardware-sim ## accelerator: test each module and the device against the core, and run the proofs
	$(BIN)/python hardware/tools/constants.py --check
	$(TRY_DEVICE)
	$(BIN)/python hardware/test/run.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/formal/proofs.py

# All tests: a million products, a hundred whole ciphertexts for each direction and mode, devices of 2, 4 and 16 lanes,
# every mutant.
hardware-test-all: hardware-test ## accelerator: run all tests of the accelerator, on devices of 2 to 16 lanes
	FC_PRODUCTS=1000000 $(BIN)/python hardware/test/run.py units
	FC_SIM_TRIES=100 $(TRY_DEVICE) --release
	for lanes in 2 4 16; do $(MAKE) --no-print-directory FC_LANES=$$lanes hardware-try || exit 1; done
	$(MAKE) --no-print-directory hardware-mutants

hardware-mutants: hardware-sim ## accelerator: break each module; the tests and the proofs must notice
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/test/mutants.py

# Runs synthesis, place and route, and counts cycles. hardware/synth/README.md has the tables.
hardware: hardware-sim $(TESTED) ## accelerator: synthesise, place and route the accelerator, and count its cycles
	export PATH="$(CURDIR)/$(BIN):$$PATH"; for lanes in 2 4 8 16; do \
		$(BIN)/python hardware/synth/synth.py xcup $$lanes || exit 1; done
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/synth/synth.py ecp5
	for lanes in 2 4 8 16; do \
		$(MAKE) --no-print-directory FC_LANES=$$lanes hardware-sim && \
		$(BIN)/python hardware/synth/synth.py cycles $$lanes || exit 1; done
	$(BIN)/python hardware/synth/synth.py readme
	cat hardware/synth/README.md

# Run this after `hardware`: it places and routes the same netlist from other seeds.
hardware-seeds: $(VENV)/.hardware $(TESTED) ## accelerator: place and route the same netlist from other seeds
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python hardware/synth/synth.py seeds
	$(BIN)/python hardware/synth/synth.py readme

# Builds the site from docs/ and the docstrings. A broken link is an error.
docs: $(VENV)/.docs ## start: build the documentation site into runs/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site: runs/site/index.html (its search needs a server: python3 -m http.server -d runs/site)"

$(VENV)/.docs: $(TESTED)
	$(INSTALL) -r pyproject.toml --extra docs
	touch $@

clean: ## start: remove everything that was built, the reports in runs/ too
	rm -rf $(VENV) target runs dist
