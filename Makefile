# Everything prl needs is Go; what else a target needs it says.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
RACE := ./pipeline/... ./stages/...
CONFIG ?= configs/demo.toml

.PHONY: help build run test race fuzz bench lint generate

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the binary, bin/prl-stage
	@go build -o bin/prl-stage ./cmd/prl-stage

run: build ## the whole pipeline on this machine: a language model learns three environments (CONFIG=…)
	@bin/prl-stage --stage all --config $(CONFIG)

test: ## all tests; needs a C compiler for the DuckDB ones
	@go vet ./...
	@go test -json ./... | go run ./.ci/summary

race: ## the packages with goroutines, under the race detector
	@go test -race -short -json $(RACE) | go run ./.ci/summary

fuzz: ## every fuzz target for ten seconds
	@for p in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$p/*_test.go | sed 's/func //'); do \
	    go test -run '^$$' -fuzz "^$$f\$$" -fuzztime 10s $$p; done; done

bench: ## the benchmarks
	@go test -run '^$$' -bench . -benchmem ./...

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt -w on these files'; exit 1; }
	@go vet ./...
	@go run $(STATICCHECK) ./...

generate: ## Go types from the Avro schemas, and what the README repeats
	@go generate ./schemas
	@go test ./stages -run TestREADME -update
