.DEFAULT_GOAL := help
.PHONY: help nightly package dist dist-check packaging-check semver features capacity capacity-check cost cost-check deps toolchain redis clients languages postgres faketime spin valgrind prometheus demo picture test test-long test-postgres topology extremes chaos chaos-quick mutants mutants-chosen mutants-sample mutants-compile model http-check cron-check webhooks-check web-check web-check-quick web-cost chromium consumers versions servers ops-check packaging-tools lint docs moving-check compare sdk-check upgrade-check

# DURATION, of `make chaos`: the seconds of faults, over all scenarios. SEED, of `make chaos`: the
# seed of the calls. ONLY: of `make chaos` a word that the names of the scenarios contain, of
# `make model` the names of the checks, of `make versions` the names of the servers, of `make mutants`
# words that the names of the faults contain, of `make cost` and `make cost-check` words that the
# names of the phases contain.
DURATION = 300
SEED = $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
ONLY =

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s  %s\n", $$1, $$2 }' Makefile

demo: deps ## Start a private Redis and watch reminders fall due
	cargo run -p keyfall-try

# The crowd, most of the orders and the address of the Redis are left out: they fill three screens.
picture: deps ## Draw docs/demo.svg, the picture of the README, from a run of the demo
	cargo build --release -p keyfall-cli
	python3 scripts/picture.py docs/demo.svg \
		--without '^A private Redis|^This takes|crowd-[0-9]|close:20(0[3-9]|[12])' \
		-- target/release/keyfall demo --seconds 10

# Most tests wait nearly all of the time: three threads for each core leave half of the machine idle,
# and take half as long again.
test test-long topology test-postgres: export RUST_TEST_THREADS = $(shell echo $$((6 * $$(getconf _NPROCESSORS_ONLN))))

# What the names of the tests contain that take most of the processor time. A test that is renamed
# comes back into `make test`.
LONG = backlog:: bench:: crowding:: crowds:: extremes:: forgotten:: popping::a_thousand \
	race:: sabotage:: a_missing_collector instances_that_do_not_see_each_other a_year_in_forty_zones

test: export PROPTEST_CASES ?= 64
test: deps clients ## Run unit and integration tests on one Redis, and the examples in the documentation
	@# Everything but what its package leaves out; the examples are built before, since tests start them.
	cargo test --workspace --all-features -- $(addprefix --skip ,$(LONG) topology:: database::)

test-long: export PROPTEST_CASES ?= 256
test-long: deps clients ## Run the tests that take long, with more random input: large amounts, races, damage, benchmarks
	@sh scripts/some-tests.sh \
		cargo test --workspace --all-features --lib --test it -- $(LONG) model:: properties:: random::

topology: deps ## Run the tests on Sentinel, clusters and several servers
	@sh scripts/some-tests.sh \
		cargo test --workspace --all-features --lib --test it -- topology::

test-postgres: deps postgres ## Run the tests beside PostgreSQL: outbox, archive, copy
	@sh scripts/some-tests.sh \
		cargo test --workspace --all-features --test database
	@sh scripts/some-tests.sh \
		cargo test --workspace --all-features --lib --test it -- database::

extremes: deps postgres ## Handle a million dead letters, and drain a hundred thousand jobs through each target
	@sh scripts/some-tests.sh \
		cargo test --workspace --all-features --test it -- --ignored --nocapture --test-threads 1 extremes
	@sh scripts/some-tests.sh \
		cargo test --workspace --all-features --test database -- --ignored --nocapture --test-threads 1

versions: deps servers ## Run the tests that depend on the server on six servers, or on the servers in ONLY
	@sh scripts/versions.sh $(ONLY)

servers: redis ## Fetch the servers of `make versions`: Redis 6.2, 7.0, 7.4, 8.2, Valkey 8.1, 9.1
	@sh scripts/fetch-servers.sh

chaos-quick: deps ## Play the quick scenarios of the fault suite, in two minutes
	cargo test --workspace --all-features --test chaos

chaos: deps faketime ## Inject faults into Redis, workers and network, and account for every job: DURATION=300 SEED=7
	KEYFALL_CHAOS_SECONDS=$(DURATION) KEYFALL_SEED=$(SEED) \
		cargo test --workspace --all-features --test chaos -- $(if $(ONLY),"$(ONLY)")

mutants: deps faketime ## Plant small faults, one at a time, and list the suite that finds each: ONLY=claim
	@python3 tests/mutants/run.py $(ONLY)

mutants-chosen: deps faketime ## The same with the faults that cargo-mutants chooses in the modules that can lose jobs
	@sh scripts/chosen-mutants.sh $(ONLY)

mutants-sample: deps ## Plant the few faults that stand for the rest
	@python3 tests/mutants/run.py --sample

mutants-compile: toolchain ## Check that all planted faults in Rust compile
	@python3 tests/mutants/run.py --compile

# New seeds each night, and one fixed seed, so that two nights can be compared.
nightly: ## Run the checks of a release that take too long for every change
	cargo test --no-default-features --lib
	$(MAKE) features
	$(MAKE) dist-check
	$(MAKE) semver
	$(MAKE) upgrade-check
	$(MAKE) model
	$(MAKE) cost-check
	$(MAKE) versions
	$(MAKE) extremes
	$(MAKE) http-check
	$(MAKE) cron-check
	$(MAKE) moving-check
	$(MAKE) web-check
	$(MAKE) chaos SEED=7
	$(MAKE) chaos
	$(MAKE) chaos DURATION=900
	$(MAKE) mutants

model: spin ## Check the model of the protocol, in every order that its steps can take
	@sh docs/model/check.sh $(ONLY)

capacity: deps ## Measure the figures of docs/capacity.md, for 25 minutes, and compare the model with them
	cargo build --release -p keyfall-cli
	python3 benches/capacity/measure.py
	@$(MAKE) --no-print-directory capacity-check

capacity-check: ## Compare the model of docs/capacity.md with the measurements
	python3 benches/capacity/model.py check

cost: deps servers valgrind ## Count the instructions of each job, and write them to docs/performance.md: ONLY=burst
	cargo build --release -p keyfall-cli
	ONLY="$(ONLY)" python3 benches/cost/measure.py write

cost-check: deps servers valgrind ## Count them, and fail if a job costs more than docs/performance.md says: ONLY=burst
	cargo build --release -p keyfall-cli
	ONLY="$(ONLY)" python3 benches/cost/measure.py check

compare: deps ## Compare with apalis, BullMQ, Celery, rq and Sidekiq for twenty minutes, and write docs/compare.md
	@sh scripts/install-sidekiq.sh
	cargo build --release -p keyfall-cli
	@sh scripts/compare.sh

http-check: deps ## Have schemathesis (Python) try every call of the HTTP API: EXAMPLES=20 SEED=1
	@sh scripts/schemathesis.sh

cron-check: toolchain ## Compare 200,000 times of cron expressions with those of cronsim (Python): COUNT=1000 SEED=1
	@sh scripts/cron-check.sh

webhooks-check: deps ## Have the library of Standard Webhooks (Python) check our signatures
	@sh scripts/standardwebhooks.sh

web-cost: deps ## Measure the web page over 5 million pending jobs and 100,000 dead letters
	cargo build --release -p keyfall-cli
	python3 benches/web/measure.py

web-check: deps chromium postgres ## Open the web page in Chromium: each page, each action, hostile texts, outages
	@# The one that `make test` has built, as for `consumers`.
	cargo test --workspace --all-features --test it --no-run
	sh scripts/browser.sh

web-check-quick: deps chromium postgres ## The same without phones, outages, and the second language
	cargo test --workspace --all-features --test it --no-run
	sh scripts/browser.sh -m quick

consumers: deps clients languages ## Run producers in Python and Node, and consumers in Python, Node, Go, PHP and Java
	@# The one that `make test` has built: `cargo build` would build what it needs once more.
	cargo test --workspace --all-features --test it --no-run
	@sh scripts/consumers.sh

sdk-check: deps languages ## Build the clients in Python and TypeScript, and play their tests: PYTHONS="python3.9 python3.13" NODES=node
	@# The one that `make test` has built, as for `consumers`.
	cargo test --workspace --all-features --test it --no-run
	@sh scripts/sdk.sh

ops-check: deps prometheus postgres ## Have Prometheus check metrics, alerts and dashboard
	@# The one that `make test` has built, as for `consumers`.
	cargo test --workspace --all-features --test it --no-run
	@sh scripts/ops.sh

dist: toolchain packaging-tools ## Make the tarball, the Debian package, the crates, the SBOM and their checksums
	@sh packaging/dist.sh

dist-check: toolchain packaging-tools ## Make them twice, compare the bytes, and install the Debian package
	@sh packaging/check-dist.sh

packaging-check: deps prometheus ## Check container, Kubernetes and systemd files, licences and sources of the crates
	@sh scripts/install-packaging.sh systemd-analyze:systemd
	@# The one that `make test` has built, as for `consumers`.
	cargo test --workspace --all-features --test it --no-run
	sh scripts/packaging.sh

semver: toolchain ## Compare the API of the library with that of the last tag
	@sh scripts/semver.sh

upgrade-check: deps ## Upgrade and roll back under load, with the last tag and this commit: FROM=revision SEED=7
	@FROM="$(FROM)" SEED="$(if $(filter command line,$(origin SEED)),$(SEED))" sh scripts/upgrade-check.sh

docs: deps clients ## Build the documentation as a site, and check each of its links: target/site
	@# The one that `make test` has built, as for `consumers`.
	cargo test --workspace --all-features --test it --no-run
	@sh scripts/docs.sh

moving-check: deps ## Import delayed jobs that BullMQ, Celery, rq and Sidekiq write now: RECORD=1 keeps them
	@sh scripts/install-sidekiq.sh
	@RECORD="$(RECORD)" sh scripts/moving.sh

package: toolchain ## Build each package as it would be published
	published=$$(sh scripts/published.sh) && cargo package $$published

lint: toolchain ## Check formatting, lints and documentation; warnings are errors
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy --lib --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps

features: toolchain ## Check that each feature compiles without the others
	@# As most programs build the library, with its own features of the dependencies alone.
	cargo clippy -p keyfall-demo -- -D warnings
	cargo clippy --all-targets -- -D warnings
	cargo clippy --lib --features callbacks -- -D warnings
	cargo clippy --lib --features traces -- -D warnings
	cargo clippy --lib --no-default-features --features metrics,traces -- -D warnings
	cargo clippy --all-targets --no-default-features -- -D warnings

deps: toolchain redis ## Install the missing dependency: a Redis server

toolchain:
	@sh scripts/check-toolchain.sh

redis:
	@sh scripts/install-redis.sh

clients:
	@sh scripts/install-clients.sh

postgres:
	@sh scripts/install-postgres.sh

languages:
	@sh scripts/install-languages.sh

faketime:
	@sh scripts/install-faketime.sh

chromium:
	@sh scripts/install-chromium.sh

spin:
	@sh scripts/install-spin.sh

valgrind:
	@sh scripts/install-valgrind.sh

prometheus:
	@sh scripts/install-prometheus.sh

packaging-tools:
	@sh scripts/install-packaging.sh dh:debhelper dpkg-buildpackage:dpkg-dev lintian:lintian \
		mmdebstrap:mmdebstrap systemd-nspawn:systemd-container
