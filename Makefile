.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz bench matrix check format protos docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv and install everything in it; quick when nothing changed
	@scripts/setup

demo: ## serve a small model and look inside it
	@scripts/demo

test: ## all that CI runs: setup, check, tests (ARGS="-k name" goes to pytest)
	@scripts/test $(ARGS)

fuzz: ## random models and questions against a slow reference (ARGS="1000" is how many)
	@scripts/fuzz $(ARGS)

bench: ## what things cost, as ratios of one run (ARGS="3" is how many rounds)
	@scripts/bench $(ARGS)

matrix: ## every method on every architecture: equal to Captum by hand, and no false alarm
	@scripts/matrix $(ARGS)

check: ## format, lint, types, protos, generated code
	@scripts/check

format: ## lay out Python and protos
	@scripts/format

protos: ## write service/cutaway/v1 from protos/
	@scripts/protos

docs: ## write the tables of docs/checks.md from the code
	@scripts/docs

lock: ## write constraints.txt with the newest versions
	@scripts/lock

clean: ## remove caches and build output (scripts/clean --all: .venv too)
	@scripts/clean
