.DEFAULT_GOAL := help
.PHONY: help help-all setup demo web test portability versions fuzz readers soak chaos week hostile bench scaling matrix verdicts captum-config container check format protos docs docs-site diagrams pictures inspector-pictures page-speed lock sbom audit clean

# The targets that a person uses; the others are for maintainers.
SHOWN := setup demo test check format docs docs-site bench clean help-all

# Or every process compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE

# Python with everything that development needs.
RUN := scripts/setup && .venv/bin/python

help: ## show the targets that a person uses
	@awk -F ':.*## ' -v shown=" $(SHOWN) " \
		'/^[a-z-]+:.*## / && index(shown, " " $$1 " ") { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

help-all: ## show every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv and install everything in it; quick when nothing changed
	@scripts/setup

web: ## build the inspector's page, service/cutaway/server/web/static, from web/ (Node.js, npm)
	@scripts/web

demo: export PYTHONPATH = .
demo: ## serve a small model and look inside it
	@$(RUN) -m examples.demo $(ARGS)

test: ## all that CI runs: setup, check, tests (ARGS="-k name" goes to pytest)
	@scripts/test $(ARGS)

portability: ## the tests with other CPUs' kernels, threads, busy cores (ARGS="sse41 loaded": these)
	@$(RUN) -m tools.portability $(ARGS)

versions: ## the engine with the oldest, pinned and newest torch and Captum (ARGS="oldest": these)
	@scripts/versions $(ARGS)

fuzz: ## random models and questions against a slow reference (ARGS="1000" is how many)
	@$(RUN) -m tests.fuzz $(ARGS)

readers: ## bytes that break a reader, searched for by coverage (ARGS="npy 3600": an hour of one)
	@$(RUN) -m tests.readers $(ARGS)

soak: ## slow proofs that the server holds up (ARGS="kills" is one of them)
	@$(RUN) -m tests.soak $(ARGS)

chaos: ## everything goes wrong for 15 minutes, and honest callers notice nothing (ARGS="120": seconds)
	@$(RUN) -W ignore -m tests.chaos $(ARGS)

week: ## a store that changes, restarts, cut connections and jobs, beside long calls, for an hour (ARGS="300": seconds)
	@$(RUN) -W ignore -m tests.week $(ARGS)

hostile: ## thousands of hostile requests at every door, while others call (ARGS="npy v2": those by name)
	@$(RUN) -W ignore -m tests.hostile $(ARGS)

bench: ## what things cost, as ratios of one run (ARGS="3" is how many rounds)
	@$(RUN) -m bench $(ARGS)

scaling: ## cost of a call by process, and a simulation that it must agree with: docs/scaling.md (ARGS="5": rounds)
	@$(RUN) -m bench.scaling $(ARGS)

matrix: ## every method on every architecture: equal to Captum by hand, and no false alarm
	@$(RUN) -m tests.matrix $(ARGS)

verdicts: ## healthy models: no false alarm; a catalogue of faults: none missed (ARGS="faults": these)
	@set -e; for proof in $(or $(ARGS),healthy faults); do ( $(RUN) -W ignore -m tests.matrix.$$proof ); done

captum-config: ## every case of Captum's own test configuration, over gRPC (ARGS="--cases": lists all)
	@$(RUN) -W ignore -m tests.matrix.captum_config $(ARGS)

container: ## build the image without Docker, and try it (Linux, root, buildah)
	@scripts/container

check: ## format, lint, types, protos, generated code
	@scripts/check

format: ## lay out Python and protos
	@scripts/format

protos: ## write service/cutaway/v1 from protos/
	@scripts/protos

pictures: ## draw docs/pictures: results as a notebook shows them (needs Chromium)
	@$(RUN) -m tools.pictures

docs: ## write the tables of docs/, openapi.json and the kinds of arrays for TypeScript, from the code
	@$(RUN) -m tools.documents
	@$(RUN) -m tools.array_kinds
	@$(RUN) -m tools.openapi
	@$(RUN) -m tools.structure --write

inspector-pictures: ## draw every view of the inspector in Chromium: docs/pictures/inspector-*.png
	@$(RUN) -m tools.inspector_pictures

page-speed: ## how fast the inspector's page is, as ratios of one run (ARGS="100": questions for its memory)
	@$(RUN) -m tools.page_speed $(ARGS)

# The theme's authors announce their next program; nothing here depends on it.
docs-site: export NO_MKDOCS_2_WARNING = 1
docs-site: ## build the documentation as a site: build/site
	@$(RUN) -m mkdocs build --strict # warnings, broken links among them, are errors

diagrams: ## draw the Mermaid diagrams of docs/ for the site (npm, Chromium)
	@scripts/diagrams

lock: ## write constraints.txt and deploy/requirements with the newest versions
	@scripts/lock

sbom: ## list the installed packages, with licences: build/sbom.json, CycloneDX (ARGS=PYTHON: of another environment)
	@scripts/sbom $(ARGS)

audit: ## compare constraints.txt with the known vulnerabilities (ARGS="--ignore-vuln ID" accepts one)
	@scripts/audit $(ARGS)

clean: ## remove caches and build output (scripts/clean --all: .venv too)
	@scripts/clean
