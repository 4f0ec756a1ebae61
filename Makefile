.DEFAULT_GOAL := help
.PHONY: help setup demo web test portability newest fuzz soak chaos bench scaling matrix verdicts captum-config container check format protos docs docs-site diagrams pictures inspector-pictures page-speed report-pictures lock sbom audit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv and install everything in it; quick when nothing changed
	@scripts/setup

web: ## build the inspector's page, service/cutaway/server/web/static, from web/ (Node.js, npm)
	@scripts/web

demo: ## serve a small model and look inside it
	@scripts/demo

test: ## all that CI runs: setup, check, tests (ARGS="-k name" goes to pytest)
	@scripts/test $(ARGS)

portability: ## the tests with other CPUs' kernels, threads, busy cores (ARGS="sse41 loaded": these)
	@scripts/portability $(ARGS)

newest: ## the engine with the newest torch and Captum (ARGS="existing": beyond those allowed)
	@scripts/newest $(ARGS)

fuzz: ## random models and questions against a slow reference (ARGS="1000" is how many)
	@scripts/fuzz $(ARGS)

soak: ## slow proofs that the server holds up (ARGS="kills" is one of them)
	@scripts/soak $(ARGS)

chaos: ## everything goes wrong for 15 minutes, and honest callers notice nothing (ARGS="120": seconds)
	@scripts/chaos $(ARGS)

bench: ## what things cost, as ratios of one run (ARGS="3" is how many rounds)
	@scripts/bench $(ARGS)

scaling: ## cost of a call by process, and a simulation that it must agree with: docs/scaling.md (ARGS="5": rounds)
	@scripts/scaling $(ARGS)

matrix: ## every method on every architecture: equal to Captum by hand, and no false alarm
	@scripts/matrix $(ARGS)

verdicts: ## healthy models: no false alarm; a catalogue of faults: none missed (ARGS="faults": these)
	@scripts/verdicts $(ARGS)

captum-config: ## every case of Captum's own test configuration, over gRPC (ARGS="--cases": lists all)
	@scripts/captum-config $(ARGS)

container: ## build the image without Docker, and try it (Linux, root, buildah)
	@scripts/container

check: ## format, lint, types, protos, generated code
	@scripts/check

format: ## lay out Python and protos
	@scripts/format

protos: ## write service/cutaway/v1 from protos/
	@scripts/protos

pictures: ## draw docs/pictures: results as a notebook shows them (needs Chromium)
	@scripts/pictures

docs: ## write the tables of docs/, and openapi.json, from the code
	@scripts/docs

inspector-pictures: ## draw every view of the inspector in Chromium: docs/pictures/inspector-*.png
	@scripts/inspector-pictures

page-speed: ## how fast the inspector's page is, as ratios of one run (ARGS="100": questions for its memory)
	@scripts/page-speed $(ARGS)

report-pictures: ## draw the reports of three jobs in Chromium: docs/pictures/report-*.png
	@scripts/report-pictures

docs-site: ## build the documentation as a site: build/site
	@scripts/docs-site

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
