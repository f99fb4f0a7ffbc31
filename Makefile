.DEFAULT_GOAL := help
.PHONY: help deps toolchain redis demo test lint

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s  %s\n", $$1, $$2 }' Makefile

demo: deps ## Start a private Redis and watch reminders fall due
	cargo run --release --features cli -- demo

test: deps ## Run all tests, those in the documentation included
	cargo test --all-features

lint: toolchain ## Check formatting, lints and documentation; warnings are errors
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy --all-targets -- -D warnings
	cargo clippy --all-targets --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps

deps: toolchain redis ## Install what is missing: a Redis server

toolchain:
	@sh scripts/check-toolchain.sh

redis:
	@sh scripts/install-redis.sh
