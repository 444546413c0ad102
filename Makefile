# Sampan: a Kubernetes control plane and node stack.
export GOTOOLCHAIN := go1.27.3
export GOFLAGS := -buildvcs=false
# One setting for everything, so that one build cache serves builds and tests. The services are static programs.
export CGO_ENABLED := 0
SHELL := /bin/bash
.DEFAULT_GOAL := help

NODES ?= 1
CYCLES ?= 5
COMPONENT := github.com/sampan-io/sampan/services/internal/component
COMMIT = $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
LDFLAGS = -s -w -X $(COMPONENT).gitCommit=$(COMMIT)
SERVICES := apiserver scheduler controller-manager node-agent proxy sampan
MODULES := proto services/internal $(SERVICES:%=services/%)
SOURCES := $(shell find proto services/internal -name '*.go' -not -name '*_test.go' 2>/dev/null) go.work
source = $(shell find services/$(1) -name go.mod -o -name '*.go' -not -name '*_test.go' -o -name '*.gz' -o -name '*.json' -o -name '*.yaml' 2>/dev/null)

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: up
up: build ## Start a cluster (NODES=2 for two nodes) and wait until it is Ready
	@bin/sampan up $(if $(filter command line,$(origin NODES)),--nodes=$(NODES))

.PHONY: down
down: ## End the cluster; its objects stay for the next up (make purge deletes them)
	@test ! -x bin/sampan || bin/sampan down

.PHONY: purge
purge: ## End the cluster and delete all of its state
	@test ! -x bin/sampan || bin/sampan down --purge

.PHONY: demo
demo: ## Run the example on the cluster and show it answering
	@scripts/demo.sh

.PHONY: build
build: bootstrap $(SERVICES:%=bin/%) bin/criserver bin/kubectl bin/runc bin/pause bin/cni/bridge bin/images/demo.tar ## Build the services, kubectl, runc, the CNI plugins and the demo image into bin/

.PHONY: bootstrap
bootstrap:
	@scripts/bootstrap.sh

define service_rule
bin/$(1): $$(SOURCES) $$(call source,$(1))
	@echo "building $(1)"
	@go build -ldflags '$$(LDFLAGS)' -o $$@ ./services/$(1)
endef
$(foreach service,$(SERVICES),$(eval $(call service_rule,$(service))))

# kubectl tells the version of the module that it is built from.
KUBECTL_VERSION = $(patsubst v0.%,v1.%,$(shell awk '$$1 == "k8s.io/kubectl" {print $$2}' services/sampan/go.mod))
KUBECTL_STAMP = -X k8s.io/component-base/version.gitVersion=$(KUBECTL_VERSION) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(KUBECTL_VERSION)))
bin/criserver: $(SOURCES) $(call source,node-agent)
	@echo "building criserver"
	@go build -ldflags '$(LDFLAGS)' -o $@ ./services/node-agent/criserver

bin/standin: $(wildcard deploy/images/standin/*.go) deploy/images/go.mod
	@echo "building stand-ins"
	@cd deploy/images && GOWORK=off go build -ldflags '-s -w' -o $(CURDIR)/$@ ./standin

bin/standin-sh: deploy/images/shell/sh.c
	@echo "building the stand-ins' shell"
	@gcc -Os -static -Wall -Wextra -o $@ $<

bin/kubectl: services/sampan/kubectl/main.go services/sampan/go.mod Makefile
	@echo "building kubectl"
	@go build -ldflags '-s -w $(KUBECTL_STAMP)' -o $@ ./services/sampan/kubectl

bin/runc: services/node-agent/go.mod scripts/build-runc.sh
	@echo "building runc"
	@scripts/build-runc.sh
	@touch $@

bin/pause: $(wildcard services/node-agent/pause/*) scripts/build-pause.sh
	@echo "building pause"
	@scripts/build-pause.sh
	@touch $@

bin/cni/bridge: services/node-agent/go.mod scripts/build-cni.sh
	@echo "building CNI plugins"
	@scripts/build-cni.sh
	@touch $@

bin/images/demo.tar: deploy/demo/main.go scripts/tools/image/main.go scripts/build-image.sh
	@echo "building demo image"
	@scripts/build-image.sh

bin/nats-server: services/apiserver/go.mod scripts/build-nats.sh
	@echo "building nats-server"
	@scripts/build-nats.sh
	@touch $@

bin/probe: deploy/probe/main.go
	@echo "building probe"
	@cd deploy/probe && GOWORK=off go build -ldflags '-s -w' -o ../../bin/probe .

.PHONY: compose-build
compose-build: ## Build the images of the composed cluster (PREBUILT=1 from bin/, without a registry)
	@$(if $(PREBUILT),$(MAKE) --no-print-directory build bin/nats-server bin/probe)
	@scripts/compose.sh build $(if $(PREBUILT),prebuilt)

.PHONY: compose-up
compose-up: ## Start the composed cluster and wait until it is healthy (NODES=4 for four nodes)
	@scripts/compose.sh up $(if $(filter command line,$(origin NODES)),--scale node=$(NODES))

.PHONY: compose-down
compose-down: ## End the composed cluster; its objects stay (ARGS=-v deletes them)
	@scripts/compose.sh down $(ARGS)

.PHONY: compose-test
compose-test: build bin/nats-server bin/probe ## Check the composed cluster under faults, on an engine of its own
	@scripts/compose-ci.sh

.PHONY: test
test: build ## Run all tests
	@scripts/test.sh

.PHONY: e2e
e2e: build ## Run only the end-to-end tests
	@scripts/test.sh e2e

.PHONY: helm
helm: build ## Build Helm 4 and 3 and drive a chart through its life with them
	@scripts/build-helm.sh
	@go test -count 1 -v -run TestChartLivesItsLife ./services/e2e/e2e/

.PHONY: conformance
conformance: build ## Show the behaviours of Kubernetes' conformance list; the last line counts them
	@scripts/test.sh conformance

.PHONY: critest
critest: bin/criserver bin/standin bin/standin-sh bin/runc bin/pause bin/cni/bridge ## Validate the container runtime with the CRI suite (needs root)
	@scripts/critest.sh

.PHONY: soak
soak: build ## Run the robustness tests for CYCLES rounds
	@SAMPAN_CYCLES=$(CYCLES) scripts/test.sh soak

.PHONY: envtest-assets
envtest-assets: bin/apiserver bin/kubectl ## Fill bin/envtest, a KUBEBUILDER_ASSETS folder for envtest
	@scripts/envtest-assets.sh

.PHONY: controller-runtime
controller-runtime: envtest-assets ## Run controller-runtime's own suites against the API server
	@scripts/controller-runtime.sh

.PHONY: bench
bench: build ## Measure a running API server (KUBECONFIG of any kind; by default one is started)
	@scripts/bench.sh

.PHONY: lint
lint: ## Run golangci-lint and go vet
	@scripts/lint.sh

.PHONY: fmt
fmt: ## Format the code
	@gofmt -w proto services test deploy scripts

.PHONY: generate
generate: ## Regenerate what is generated and committed
	@scripts/generate.sh

.PHONY: verify
verify: ## Check that nothing generated, formatted or pinned has drifted
	@scripts/verify.sh
