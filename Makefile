# Everything prl needs is Go; what else a target needs it says.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Packages that start no goroutine, and compute for long: the race detector has nothing to find there. `make race` holds them to it.
ALONE := pipeline/audit pipeline/bench
RACE = $(shell go list ./pipeline/... ./stages/... ./deploy/kafka/... | grep -v -e /envs/ $(ALONE:%=-e /%))
CONFIG ?= configs/demo.toml
NODES ?= 1
KAFKA := .cache/kafka
PYTHON := .cache/python
TORCH := .cache/torch
VALIDATORS := .cache/validators
VERIFIERS := 0.4.0 0.2.1 0.1.14
OPENENV := .cache/openenv
# One that has died and is not buried yet is called otherwise.
KAFKA_RUNS = ps -p "$$(cat $(KAFKA)/pid 2>/dev/null || echo 0)" -o comm= 2>/dev/null | grep -q 'prl-kafka$$'

.PHONY: help build run test race fuzz bench lint generate chaos kafka kafka-stop python openenv torch verifiers bench-gpu bench-rollouts chromium shells screenshots validators

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the binary, bin/prl-stage
	@[ -x bin/prl-stage ] || echo 'building bin/prl-stage: the first time takes a minute or two'
	@go build -o bin/prl-stage ./cmd/prl-stage

run: build ## the whole pipeline on this machine: a language model learns three environments (CONFIG=…)
	@bin/prl-stage --stage all --config $(CONFIG)

test: ## all tests, on Apache Kafka too where Java and Maven are there; needs a C compiler for the DuckDB ones
	@$(if $(VETTED),:,go vet ./...)
	@$(MAKE) -s python || echo 'no Python clients; the tests that want them say so'
	@go run ./deploy/kafka/cmd --optional -- go test -timeout 40m -vet=off -json ./... | go run ./.ci/summary

race: ## the packages with goroutines, under the race detector
	@! grep -rnE '(^|[[:space:]])go (func|[[:alpha:]_.]+)\(|\.Go\(|t\.Parallel\(' --include='*.go' $(ALONE) || { echo 'starts a goroutine: take its folder off ALONE'; exit 1; }
	@go test -race -short -timeout 20m -vet=off -json $(RACE) | go run ./.ci/summary

fuzz: ## every fuzz target for ten seconds
	@for p in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$p/*_test.go | sed 's/func //'); do \
	    go test -run '^$$' -fuzz "^$$f\$$" -fuzztime 10s -fuzzminimizetime 1s $$p; done; done

chaos: ## kills, stops and disturbs a run on Apache Kafka for MINUTES (20), then audits it (SEED=… NODES=1 or 3, 0 for the embedded broker)
	@go run ./pipeline/chaos/cmd --minutes $(or $(MINUTES),20) --seed $(or $(SEED),1) --nodes $(if $(filter command line environment,$(origin NODES)),$(NODES),3)

bench: ## every figure of pipeline/bench as a table and as JSON, on Apache Kafka too where Java and Maven are there (BENCH="--only codec --before FILE")
	@go run ./deploy/kafka/cmd --optional -- go run ./pipeline/bench $(BENCH)

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt -w on these files'; exit 1; }
	@go vet ./...
	@go run $(STATICCHECK) ./...

generate: ## Go types from the Avro schemas, what READMEs repeat, the tables of ACLs, settings and metrics
	@go generate ./schemas
	@go test ./stages -run 'TestREADME|TestACLs|TestMetricsTable' -update
	@go test -p 1 ./stages/envserver/envs/*/ -run Table -update
	@go test ./stages/settings -run TestTable -update

python: $(PYTHON)/installed ## the Python clients that tests hold prl against, in .cache/python; needs Python 3.10 or newer

$(PYTHON)/installed: pipeline/interop/requirements.txt
	@python3 -m venv --clear $(PYTHON)
	@$(PYTHON)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

openenv: $(OPENENV)/installed ## OpenEnv, for the tests of its bridge, in .cache/openenv (150 MB); needs Python 3.10 or newer

$(OPENENV)/installed: stages/envserver/bridge/openenv/testdata/requirements.txt
	@python3 -m venv --clear $(OPENENV)
	@$(OPENENV)/bin/pip install -q --disable-pip-version-check --no-deps -r $<
	@$(OPENENV)/bin/pip install -q --disable-pip-version-check --no-deps --target $(OPENENV)/0.3.0 openenv-core==0.3.0
	@touch $@

kafka: ## Apache Kafka on localhost:9092 in the background (NODES=1 or 3); needs Java and Maven
	@! $(KAFKA_RUNS) || { echo 'Kafka runs already; make kafka-stop ends it'; exit 1; }
	@mkdir -p $(KAFKA); rm -f $(KAFKA)/out
	@go build -o bin/prl-kafka ./deploy/kafka/cmd
	@nohup bin/prl-kafka --nodes $(NODES) --port 9092 --dir $(KAFKA)/nodes-$(NODES) >$(KAFKA)/out 2>&1 </dev/null & echo $$! >$(KAFKA)/pid
	@until sleep 0.2; grep -s ' answers at ' $(KAFKA)/out; do $(KAFKA_RUNS) || { cat $(KAFKA)/out; exit 1; }; done
	@echo 'Use it:   bin/prl-stage --stage all --config configs/demo.toml --brokers localhost:9092'
	@echo '          PRL_TEST_KAFKA_BROKERS=localhost:9092 go test ./pipeline/...'
	@echo 'Stop it:  make kafka-stop    (the data stay in $(KAFKA)/nodes-$(NODES))'

kafka-stop: ## ends what make kafka started
	@$(KAFKA_RUNS) || { echo 'Kafka does not run'; exit 0; }; \
	kill $$(cat $(KAFKA)/pid); while $(KAFKA_RUNS); do sleep 0.1; done; echo 'Kafka has stopped'

torch: $(TORCH)/installed ## PyTorch for [trainer] learner = "torch", in .cache/torch (1.7 GB, 5.4 beside an NVIDIA GPU); needs Python 3.11 or newer and a C compiler

$(TORCH)/installed: stages/trainer/torch/pyproject.toml stages/trainer/torch/install.py
	@python3 -m venv --clear $(TORCH)
	@$(TORCH)/bin/python stages/trainer/torch/install.py
	@touch $@

verifiers: $(VERIFIERS:%=.cache/verifiers-%/installed) ## the versions of the Python package verifiers that its bridge is tested with, in .cache (1.3 GB); needs Python 3.11

.cache/verifiers-%/installed: stages/envserver/bridge/verifiers/testdata/%/requirements.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check $$(grep ^uv== $<)
	@$(@D)/bin/uv pip install -q --python $(@D)/bin/python --compile-bytecode -r $<
	@touch $@

bench-rollouts: build ## what 10,000 rollouts at once cost an environment server, beside one of verifiers if `make verifiers` was run (BENCH="--takes 30s"); Linux
	@go run ./stages/envserver/load --python "$$(ls .cache/verifiers-0.4.0/bin/python 2>/dev/null || true)" $(BENCH)

bench-gpu: torch ## how fast the torch learner trains a model of Qwen3-0.6B's shape on a GPU; without one a tiny model on the CPU
	@PYTHONPATH=stages/trainer/torch $(TORCH)/bin/python -m prl_torch.bench $(BENCH)

chromium: ## Debian's Chromium, for the tests of the page; installed as root where there is none
	@command -v chromium >/dev/null || { [ $$(id -u) = 0 ] && command -v apt-get >/dev/null || \
	  { echo 'no Chromium on PATH: install one that is called chromium (Debian: apt-get install chromium, as root)'; exit 1; }; \
	  apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	@chromium --version

shells: ## zsh and fish, for the tests of completion; installed as root where they are not
	@{ command -v zsh && command -v fish; } >/dev/null || { [ $$(id -u) = 0 ] && command -v apt-get >/dev/null || \
	  { echo 'no zsh or no fish on PATH: install both'; exit 1; }; \
	  apt-get update -qq && apt-get install -y -qq zsh fish >/dev/null; }

screenshots: chromium ## the pictures of stages/ui/README.md (UI_URL=… of a run that goes on, UI_RUN=runs/NAME; else a made-up one)
	@mkdir -p stages/ui/testdata
	@PRL_UI_SCREENSHOTS=$(CURDIR)/stages/ui/testdata PRL_UI_URL=$(UI_URL) PRL_UI_RUN=$(if $(UI_RUN),$(abspath $(UI_RUN))) \
	  go test -count=1 -timeout 20m -run TestScreenshots ./stages/ui

validators: $(VALIDATORS)/installed ## what checks deploy/: promtool, hadolint, Helm's and Kubernetes' own code, in .cache/validators; needs Python, and Debian or promtool on PATH

$(VALIDATORS)/installed: deploy/validators/promtool.sh deploy/validators/requirements.txt $(wildcard deploy/validators/*.go deploy/validators/go.*)
	@mkdir -p $(VALIDATORS)/bin
	@deploy/validators/promtool.sh $(CURDIR)/$(VALIDATORS)/bin
	@python3 -m venv --clear $(VALIDATORS)/python
	@$(VALIDATORS)/python/bin/pip install -q --disable-pip-version-check -r deploy/validators/requirements.txt
	@ln -sf ../python/bin/hadolint $(VALIDATORS)/bin/hadolint
	@go -C deploy/validators run ./crds $(CURDIR)/$(VALIDATORS)/crds
	@go -C deploy/validators build -ldflags='-s -w' -o $(CURDIR)/$(VALIDATORS)/bin/validators .
	@touch $@
