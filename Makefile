# Two commands do everything on a fresh Debian or Ubuntu machine:
#   sudo make demo     sudo make test

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

GO          := scripts/go
PREFIX      ?= /usr/local
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
SCRIPTS     := scripts/go scripts/cross scripts/version scripts/setup scripts/hand-back scripts/test scripts/apart scripts/test-vm scripts/bench scripts/size scripts/nightly scripts/kill-test scripts/unit-test scripts/neighbour-test scripts/enclosed $(wildcard scripts/neighbours/*) scripts/need-root scripts/readme-commands scripts/packages scripts/package-test scripts/fleet-test scripts/readonly-test scripts/release-notes deploy/packages/postinst deploy/packages/prerm deploy/packages/postrm deploy/natkit-fleet tools/blind/run .ci/run

.PHONY: help build packages demo accuracy test test-vm bench bench-sql blind nightly lint generate fmt size clean install

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

build: ## build bin/natkit, one static binary (fetches the Go toolchain where it is missing)
	@scripts/setup build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X 'main.version=$$(scripts/version)'" -o bin/natkit ./cmd/natkit
	@scripts/hand-back bin

packages: ## make the release in dist/: .deb, .rpm, archives, images, SBOM, checksums; the same commit gives the same bytes
	@scripts/setup build
	@scripts/packages
	@scripts/hand-back dist

demo: ## as root: install what is missing, build, reproduce and fix a full connection table
	@scripts/need-root demo
	@scripts/setup demo
	@$(MAKE) build
	bin/natkit lab run table-full

accuracy: ## as root: run every scenario, compare what doctor finds with what was wrong (ONLY=table-full,…)
	@scripts/need-root accuracy
	@scripts/setup demo
	@$(MAKE) build
	bin/natkit lab run --all --allow-host $(if $(ONLY),--only $(ONLY))

test: ## install what the tests need (as root) and run them all; without root those that can run
	@scripts/setup test
	@scripts/test

# As it was typed: in RUN='-run TestX$$' the $$ is not make's.
test-vm: override export RUN := $(value RUN)
test-vm: ## run tests on another kernel in qemu: make test-vm KERNEL=6.1 RUN=./internal/netns
	@scripts/setup vm
	@scripts/test-vm

bench: ## as root: take the benchmarks (SUITE=http,… ROUNDS=…), rewrite the figures in docs/benchmarks.md
	@scripts/need-root bench
	@scripts/setup bench
	@$(MAKE) build
	@scripts/bench

bench-sql: ## put deploy/sql's questions to DuckDB, ClickHouse and Spark with 10 and 100 million rows (ROWS=10,100 ENGINES=… LIMIT=600)
	@scripts/setup sql
	@scripts/bench-sql

blind: ## as root: run doctor on the hosts of a blind round (ROUND=11 HOSTS="a b"), reports in /tmp/natkit-blind
	@scripts/need-root blind
	@scripts/setup blind
	@$(MAKE) build
	tools/blind/run $(or $(ROUND),11) $(HOSTS)

nightly: export PART := $(value PART)
nightly: ## as root: the long tests: other kernels, fuzzing, race detector, kills at random moments (PART=fuzz-1,…: one part)
	@scripts/need-root nightly
	@scripts/setup nightly
	@$(MAKE) build
	@scripts/nightly

lint: ## gofmt, go vet, staticcheck, shellcheck (where installed)
	@scripts/setup lint
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs -r "$$($(GO) env GOROOT)/bin/gofmt" -l); \
	  if [ -n "$$unformatted" ]; then echo "not formatted ('make fmt' mends it):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	@if command -v shellcheck >/dev/null; then echo shellcheck $(SCRIPTS); shellcheck $(SCRIPTS); \
	  else echo "shellcheck is not installed: the shell scripts were not checked"; fi

generate: ## rewrite the generated files: the eBPF objects (by clang 19), docs/commands.md, docs/failure-modes, docs/simulate.md, docs/sysctl.md, the tables in docs/pcap.md and docs/parquet.md, deploy/sql/tables, tools/packages/go.mod
	@scripts/setup generate
	$(GO) generate ./...
	$(GO) -C tools/packages mod tidy
	@scripts/hand-back docs internal deploy

fmt: ## format the Go code
	@scripts/setup build
	@git ls-files -co --exclude-standard '*.go' | xargs -r "$$($(GO) env GOROOT)/bin/gofmt" -l -w

size: ## lines, files and packages of the product's Go, by package
	@scripts/size

install: build ## install natkit into PREFIX (/usr/local), with completions for bash, its units and the gateway's user
	install -D -m 755 bin/natkit $(DESTDIR)$(PREFIX)/bin/natkit
	install -m 755 deploy/natkit-fleet $(DESTDIR)$(PREFIX)/bin/natkit-fleet
	ln -sf natkit-fleet $(DESTDIR)$(PREFIX)/bin/kubectl-natkit
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	bin/natkit completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/natkit
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in natkit-gateway.service natkit-watch.service natkit-doctor.service natkit-doctor.timer natkit-record.service natkit-nat-log.service natkit-exporter.service natkit-exporter.socket; do \
	  sed 's#/usr/bin/natkit#$(PREFIX)/bin/natkit#' deploy/$$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit; done
	install -D -m 644 deploy/natkit-gateway-ebpf.conf $(DESTDIR)$(PREFIX)/share/natkit/natkit-gateway-ebpf.conf
	install -D -m 644 deploy/natkit.sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/natkit.conf
	@if [ -z "$(DESTDIR)" ] && command -v systemd-sysusers >/dev/null; then systemd-sysusers $(PREFIX)/lib/sysusers.d/natkit.conf; fi

clean: ## remove what was built here; the fetched toolchain is kept in .cache
	rm -rf bin dist
