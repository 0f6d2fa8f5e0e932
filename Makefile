# The commands of developers and CI. Each does the set-up that it needs, and skips it if nothing has changed.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

# Arguments for the command behind a target: make demo ARGS="--help"
ARGS ?=
# Many tests wait more than they compute. Failures are easier to read without workers: make test WORKERS=
WORKERS ?= --numprocesses=2 --dist=loadscope
# The interpreter of a new virtual environment; if empty, tools/environment searches for one.
export PYTHON ?=

VENV := $(CURDIR)/.venv
CONSTRAINTS := $(CURDIR)/requirements/constraints.txt
BUILD_DEPENDENCIES := $(VENV)/.build-dependencies
DEPENDENCIES := $(VENV)/.dependencies
BENCH_DEPENDENCIES := $(VENV)/.bench-dependencies
DOCS_DEPENDENCIES := $(VENV)/.docs-dependencies
WHEEL_DEPENDENCIES := $(VENV)/.wheel-dependencies
NATIVE := python/tensorpool/_native.abi3.so
AERON := target/.aeron

# The environment's cmake comes before an older one of the system; rustup's directory comes last.
export PATH := $(VENV)/bin:$(PATH):$(HOME)/.cargo/bin
export VIRTUAL_ENV := $(VENV)
# maturin sets it too: with another value cargo would build PyO3 again at each change of tool.
export PYO3_PYTHON := $(VENV)/bin/python
# They would put other packages before those of the environment.
unexport PYTHONHOME PYTHONPATH

NATIVE_SOURCES := Cargo.toml Cargo.lock pyproject.toml \
    $(shell find crates cmake .cargo python/tensorpool/sbe/schemas -type f 2>/dev/null)
# The outcomes that tools.conformance compares with the requirements.
REPORT := --requirement-report=build/requirements.json
# With ARGS a run may select tests, so that its report says nothing about the others.
PARTIAL := $(if $(ARGS),--partial)
TYPED := python/tensorpool python/pyspark_tensorpool tools tests $(wildcard benchmarks)
# One profile for all targets: a second profile would compile Aeron a second time.
CARGO_FLAGS := --release --locked --workspace

.PHONY: help demo test test-long test-gpu bench-gpu gpu-folder chaos fuzz miri audit docs bench wheel sdist lint \
    conformance pins clean native \
    check-rust check-tests check-source check-native check-requirements

help:
	@echo "make demo         a live demo: tensors move between processes"
	@echo "make test         all checks and tests"
	@echo "make test-long    the same, with the long tests"
	@echo "make gpu-folder   build/gpu: all that a GPU machine without a network needs"
	@echo "make test-gpu     the tests of frames on a GPU, with the python3 of the machine (torch, CuPy, JAX)"
	@echo "make bench-gpu    copies to and from a GPU, beside torch's pinned memory"
	@echo "make bench        the benchmarks (ARGS=\"--peers\" compares other libraries)"
	@echo "make wheel        wheels for x86-64 and aarch64 and the source distribution, checked, into dist"
	@echo "make sdist        the source distribution alone (ARGS=--from-sdist installs it too)"
	@echo "make docs         the documentation site, into build/site"
	@echo "make lint         formatting, style, types, layers, clippy"
	@echo "make chaos        two hours of kills, pauses and damage; writes what was tried (ARGS=\"--minutes 10\")"
	@echo "make fuzz         libFuzzer over all decoders (ARGS=\"--seconds 600\")"
	@echo "make miri         the native core under Miri (needs a nightly Rust)"
	@echo "make audit        licences, sources and known flaws of all dependencies"
	@echo "make conformance  which requirements are proven, by the last test run (ARGS=\"--json\")"
	@echo "make pins         newest versions of all Python dependencies into requirements/constraints.txt"
	@echo "make clean        removes all build results"

# The packages of the tests have Spark, which is half a gigabyte and of no use without Java.
demo: $(NATIVE)
	@! command -v java >/dev/null 2>&1 || $(MAKE) --no-print-directory $(DEPENDENCIES)
	@tensorpool demo $(ARGS)

# The steps run in sequence, cheap ones first, also under make -j: each is a separate make.
test: check-tests
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory check-native
	@tools/step "requirement marks" python -m tools.conformance --marks
	@tools/step pytest python -m pytest $(WORKERS) -m "not long" $(REPORT) $(ARGS)
	@tools/step conformance python -m tools.conformance --quiet $(PARTIAL)

test-long: export TENSORPOOL_TEST_LONG := 1
test-long: check-tests
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory check-native
	@tools/step "requirement marks" python -m tools.conformance --marks
	@tools/step fuzzing python -m tools.fuzz
	@$(MAKE) --no-print-directory $(WHEEL_DEPENDENCIES)
	@tools/step "pytest, long tests too" python -m pytest $(WORKERS) $(REPORT) $(ARGS)
	@tools/step conformance python -m tools.conformance --quiet $(PARTIAL)

lint: check-rust
	@$(MAKE) --no-print-directory check-source
	@$(MAKE) --no-print-directory native
	@tools/step "stub of the native module" \
	    env MYPYPATH=python python -m mypy.stubtest tensorpool._native \
	        --allowlist tools/stubtest.allowlist --ignore-unused-allowlist
	@tools/step clippy tools/with-maturin-env cargo clippy $(CARGO_FLAGS) --all-targets --quiet -- \
	    $$(tools/toolchains lints)

# Takes no package from a registry: on the GPU machine python3 has torch, and build/gpu has the rest.
GPU_PYTHON ?= /usr/bin/env -u VIRTUAL_ENV PYTHONPATH=$(CURDIR)/build/gpu python3

gpu-folder: $(NATIVE) $(DEPENDENCIES)
	@python -m tools.gpu_folder build/gpu

build/gpu/tensorpool/__init__.py:
	@$(MAKE) --no-print-directory gpu-folder

test-gpu: build/gpu/tensorpool/__init__.py
	@cd build/gpu && $(GPU_PYTHON) -m pytest -c tests/gpu/pytest.ini --rootdir . tests/gpu $(ARGS)

bench-gpu: build/gpu/tensorpool/__init__.py
	@cd build/gpu && $(GPU_PYTHON) -m benchmarks.gpu $(ARGS)

# Two hours; it writes docs/explanation/what-was-tried.md. ARGS="--minutes 10 --seed 1 --only kills" for less.
chaos: check-tests $(DEPENDENCIES)
	@$(MAKE) --no-print-directory native >&2
	@python -m tests.chaos --page $(ARGS)

# 20 seconds for each target, as in test-long. ARGS="--seconds 600 --merge" searches longer, and keeps new inputs.
fuzz: check-rust $(DEPENDENCIES)
	@python -m tools.fuzz $(ARGS)

miri: check-rust
	@tools/miri $(ARGS)

audit: check-rust $(DEPENDENCIES)
	@python -m tools.audit $(ARGS)

# Needs no native module: the generated pages are in docs/, and a test keeps them up to date.
docs: $(DOCS_DEPENDENCIES)
	@python -m tools.site $(ARGS)

bench: $(NATIVE) $(BENCH_DEPENDENCIES)
	@python -m benchmarks $(ARGS)

# ARGS="--arch x86_64" builds one of them; ARGS="--help" lists the options.
wheel: $(WHEEL_DEPENDENCIES)
	@tools/toolchains rust
	@python -m tools.wheel $(ARGS)

# ARGS=--from-sdist installs it into an empty environment too: minutes.
sdist: $(WHEEL_DEPENDENCIES)
	@tools/toolchains rust
	@python -m tools.wheel --no-wheel $(ARGS)

# It uses the reports of the last test run, or runs the tests that name a requirement if the sources have changed.
# A test that fails is the verdict's to report.
conformance: check-tests $(DEPENDENCIES)
	@$(MAKE) --no-print-directory native >&2
	@python -m tools.conformance --has-run || $(MAKE) --no-print-directory check-requirements >&2
	@python -m tools.conformance $(ARGS)

check-requirements:
	-@$(MAKE) --no-print-directory check-native
	-@tools/step "pytest, tests that name a requirement" \
	    python -m pytest $(WORKERS) -m "requirement and not long" $(REPORT)

pins: $(DEPENDENCIES)
	@python -m tools.pins

clean:
	rm -rf $(VENV) target build dist $(NATIVE) .mypy_cache .ruff_cache .pytest_cache \
	    .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the steps

check-rust:
	@tools/system-packages python build rust rust-checks
	@tools/toolchains rust rust-checks

check-tests:
	@tools/system-packages python build rust rust-checks java browser
	@tools/toolchains rust rust-checks java
	@$(MAKE) --no-print-directory $(BUILD_DEPENDENCIES)
	@tools/prometheus
	@tools/s3-server >/dev/null
	@tools/actionlint >/dev/null

check-source: $(DEPENDENCIES)
	@tools/step "ruff check" ruff check --quiet
	@tools/step "ruff format" ruff format --check --quiet
	@tools/step "cargo fmt" cargo fmt --all --check
	@tools/step layers env PYTHONPATH=python lint-imports --no-logo
	@tools/step mypy python -m mypy $(TYPED)

check-native: $(NATIVE) $(DEPENDENCIES)
	@tools/step "cargo test" python -m tools.conformance.rust_run build/requirements-cargo.json \
	    tools/with-maturin-env cargo test $(CARGO_FLAGS)
	@tools/step "cargo test under loom" env RUSTFLAGS="--cfg loom" \
	    python -m tools.conformance.rust_run build/requirements-loom.json \
	    cargo test --release --locked --target-dir target/loom --package tensorpool-core --test loom

# --- build results

native: $(NATIVE)
	@:

# Runs only if the interpreter of the environment is missing; the rule below then creates a new environment.
$(VENV)/bin/python:
	@:

# Rust is looked for here too, so that a user who lacks both gets one command to run with sudo.
$(BUILD_DEPENDENCIES): pyproject.toml requirements/constraints.txt tools/environment $(VENV)/bin/python
	@tools/system-packages python build rust
	@tools/environment $(VENV) build
	@touch $@

# One after the other, because two pips must not run at once.
$(DEPENDENCIES): pyproject.toml requirements/constraints.txt tools/environment $(VENV)/bin/python | $(BUILD_DEPENDENCIES)
	@tools/environment $(VENV) dev
	@touch $@

$(BENCH_DEPENDENCIES): pyproject.toml requirements/constraints.txt tools/environment | $(NATIVE) $(DEPENDENCIES)
	@tools/environment $(VENV) bench
	@touch $@

# A part of dev, so that a checkout that only builds the site installs no Spark.
$(DOCS_DEPENDENCIES): pyproject.toml requirements/constraints.txt tools/environment
	@tools/system-packages python
	@tools/environment $(VENV) docs
	@touch $@

$(WHEEL_DEPENDENCIES): pyproject.toml requirements/constraints.txt tools/environment
	@tools/system-packages python build rust
	@tools/environment $(VENV) wheel
	@touch $@

# Cargo does not know that cmake/ decides how Aeron's media driver is compiled.
$(AERON): $(wildcard cmake/*)
	@[ ! -d target/release ] || cargo clean --quiet --release --locked --package rusteron-media-driver --package rusteron-client
	@mkdir -p target && touch $@

$(NATIVE): $(BUILD_DEPENDENCIES) $(NATIVE_SOURCES) | $(AERON)
	@tools/toolchains rust
	@tools/step "building the native module (about 3 minutes the first time)…" \
	    env PIP_QUIET=1 PIP_CONSTRAINT=$(CONSTRAINTS) maturin develop --release --locked
	@touch $@
