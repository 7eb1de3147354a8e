# What a newcomer needs: `make up`, `make test`. Everything else: `make help`.
SHELL := /bin/bash
BIN := $(CURDIR)/.bin
MODULES := gen kit services e2e deploy/examples/hooks deploy/examples/operators
NAME ?=
name_flag := $(if $(NAME),--name $(NAME))
need_proxy := $(if $(filter 0,$(shell id -u)),need-iptables) # tests lead etcd's clients to a proxy; without root they are skipped
need_hosts := $(if $(filter 0,$(shell id -u)),need-mmdebstrap) # makes the image of a host with systemd; without the image the tests are skipped

.DEFAULT_GOAL := help
.PHONY: fix tidy breaking figures images deb sbom help build up down tour tour-hosts verify test test-unit test-e2e test-hosts test-faults test-skew fuzz generate generated lint vet vulnerabilities clean FORCE

help: ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: $(BIN)/windlass $(BIN)/backup-hook $(BIN)/example-operators $(BIN)/grpcurl ## Build the executable, the example programs, and grpcurl for $$GRPCURL of `windlass env`

$(BIN)/windlass: FORCE
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 tools/build -o $@ ./services/windlass

$(BIN)/backup-hook: FORCE
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 tools/build -o $@ ./deploy/examples/hooks

$(BIN)/example-operators: FORCE
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 tools/build -o $@ ./deploy/examples/operators

up: build ## Start a cluster from deploy/examples/first-cluster and show its state (NAME=x for another)
	@$(BIN)/windlass up $(name_flag) --from deploy/examples/first-cluster
	@$(BIN)/windlass status $(name_flag)

images: build ## Build the container image of compose.yaml (WINDLASS_IMAGE=name:tag for another name)
	@mkdir -p $(BIN)/image && ln -f $(BIN)/windlass $(BIN)/image/windlass && cp deploy/image/Dockerfile $(BIN)/image/
	@docker build --quiet --tag $(or $(WINDLASS_IMAGE),windlass:latest) $(BIN)/image
	@docker image prune --force --filter label=dev.windlass.image >/dev/null # those that had the name before

# Without a serial number and a time, so that the same executable has the same bill of materials.
sbom: $(BIN)/windlass $(BIN)/cyclonedx-gomod ## Write the software bill of materials of the executable to .bin/windlass.cdx.json (CycloneDX)
	@$(BIN)/cyclonedx-gomod bin -json -std -noserial -notimestamp -version "v$$($(BIN)/windlass version | sed -n 's/^Windlass Version: //p')" -output $(BIN)/windlass.cdx.json $(BIN)/windlass
	@cd tools && GOWORK=off CGO_ENABLED=0 go run ./sbom $(BIN)/windlass $(BIN)/windlass.cdx.json

deb: build $(BIN)/nfpm ## Build the Debian package .bin/windlass_VERSION_ARCH.deb (VERSION=x for another version number)
	@tools/deb $(or $(VERSION),$$($(BIN)/windlass version | sed -n 's/^Windlass Version: //p')) $(BIN)

down: build ## Stop the cluster
	@$(BIN)/windlass down $(name_flag)

tour: build $(BIN)/grpcurl need-curl ## Run and check the steps of docs/tour.md on the running cluster
	-@$(MAKE) --no-print-directory need-python3 # without it two steps are left out, and the tour says so
	@CGO_ENABLED=0 go build -o $(BIN)/tour ./e2e/tour
	@PATH="$(BIN):$$PATH" $(BIN)/tour $(name_flag)

verify: vet lint tidy generated breaking vulnerabilities ## Run the checks that need no test: vet, lint, go.mod files, generated code, API compatibility, known vulnerabilities

test: test-unit test-e2e ## Run all tests

# Without it every process that a test starts from its own binary sleeps a second at its end.
test-unit: export GORACE ?= atexit_sleep_ms=10
# A package of real etcd members takes minutes on a busy host, and is ended by go after 10 by default.
test-unit: need-gcc need-python3 .imports ## Run the package tests with the race detector
	cd tools && GOWORK=off go test -race ./...
	go test -race -timeout 30m $(addprefix ./,$(addsuffix /...,gen kit services deploy/examples/hooks deploy/examples/operators))

# Clusters wait more than they compute: with two packages at a time, two cores are idle for a third of the time.
# The container tests tear down themselves what they start: there may be no registry to get testcontainers' reaper from. They say whether they ran.
test-e2e: export TESTCONTAINERS_RYUK_DISABLED ?= true
test-e2e: export TESTCONTAINERS_HOST_OVERRIDE ?= 127.0.0.1
test-e2e: build $(BIN)/grpcurl $(BIN)/nfpm need-curl need-python3 $(need_proxy) $(need_hosts) ## Run the tests of running clusters, and of containers if an engine is available
	PATH="$(BIN):$$PATH" CGO_ENABLED=0 go test -count=1 -p 3 -timeout 45m $$(go list ./e2e/... | grep -v -e /e2e/compose$$ -e /e2e/runtime$$ -e /e2e/systemd$$)
	PATH="$(BIN):$$PATH" CGO_ENABLED=0 go test -count=1 -timeout 15m -v ./e2e/compose ./e2e/runtime
	CGO_ENABLED=0 go test -count=1 -timeout 15m -v -run "^TestAHostJoinsAndReboots$$" ./e2e/systemd
	CGO_ENABLED=0 go test -count=1 -timeout 10m -v -run "^TestADriverRunsPods$$" ./services/node-agent/pods

test-hosts: build $(BIN)/nfpm $(need_hosts) ## Run the tests of the Debian package on three hosts with systemd, if a container engine is available
	CGO_ENABLED=0 go test -count=1 -timeout 30m -v -run "^TestThreeHosts$$" ./e2e/systemd

tour-hosts: build $(BIN)/nfpm $(need_hosts) ## Go through docs/hosts.md on hosts with systemd, which are containers, and print each command and its output
	@cd e2e/systemd && WINDLASS_TOUR=1 CGO_ENABLED=0 go test -count=1 -timeout 30m -run "^TestTourOfHosts$$"

figures: build ## Measure what docs/figures.md states (ROUNDS=10)
	WINDLASS_FIGURES=$(or $(ROUNDS),10) CGO_ENABLED=0 go test -count=1 -timeout 60m -v ./e2e/figures | grep -E "^(\||FAIL|---|panic|.*_test.go)"

test-faults: build $(need_proxy) ## Kill every program at every step of replacements, drains, roll-outs, updates; write the results to docs/figures.md
	PATH="$(BIN):$$PATH" WINDLASS_FAULTS=all CGO_ENABLED=0 go test -count=1 -timeout 480m -run 'TestFaults' -v ./e2e/... ./kit/store ./services/node-agent/hostconfig
	WINDLASS_FAULTS=all CGO_ENABLED=0 go test -count=1 -timeout 60m ./services/node-agent/pods

# The earlier version is built from its own files, beside the checkout's.
test-skew: build ## Update from and back to the executable of an earlier commit, with both versions side by side (FROM=COMMIT)
	@test -n "$(FROM)" || { echo 'FROM=COMMIT must name an earlier version that can update itself' >&2; exit 2; }
	@rm -rf $(BIN)/before && mkdir -p $(BIN)/before && git archive "$(FROM)" | tar -x -C $(BIN)/before
	@cd $(BIN)/before && CGO_ENABLED=0 go build -o windlass ./services/windlass
	WINDLASS_BEFORE=$(BIN)/before/windlass CGO_ENABLED=0 go test -count=1 -timeout 30m -v -run '^TestSkew' ./e2e/faults

# Each target has its seeds in testdata/fuzz or in the test; what it finds is written there too, and is then a case of `make test`.
# A seed of some kilobytes would otherwise be minimized for a minute instead of being varied. On a busy machine go may end a run that found nothing with "context deadline exceeded" (golang/go#75804): that is no finding.
FUZZTIME ?= 30s
fuzz: ## Fuzz every parser of data from callers (FUZZTIME=30s each)
	@mkdir -p $(BIN)
	@grep -rnoE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' kit services e2e | while IFS=: read -r file _ func; do \
	  name=$${func#func }; echo "$$name, $(FUZZTIME) ($${file%/*})"; \
	  CGO_ENABLED=0 go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x "./$${file%/*}" </dev/null >$(BIN)/fuzz.log 2>&1 && tail -1 $(BIN)/fuzz.log || \
	  { cat $(BIN)/fuzz.log; grep -q 'context deadline exceeded' $(BIN)/fuzz.log && ! grep -q 'Failing input' $(BIN)/fuzz.log; } || exit 1; \
	done

# The tools stand in a module of their own, so that they move nobody's versions.
$(BIN)/%: tools/go.mod
	@mkdir -p $(BIN)
	cd tools && export GOWORK=off && go build -o $@ $$(go list -f '{{.ImportPath}}' tool | grep '/$*$$')

PROTO_TOOLS := $(addprefix $(BIN)/,buf protoc-gen-go protoc-gen-go-grpc protoc-gen-grpc-gateway protoc-gen-openapiv3)

generate: $(PROTO_TOOLS) .imports ## Write gen/, the services of kinds and docs/api.md from proto/
	@$(kinds)
	$(BIN)/buf lint
	find gen -name '*.pb.go' -o -name '*.pb.gw.go' -o -name '*.openapi.json' | xargs rm -f
	$(BIN)/buf generate --path proto/windlass
	@$(call describe,gen/next.txtpb)
	@install -m 644 tools/gen/openapi.go.txt gen/openapi.go
	@cat kit/identity/policy.yaml kit/identity/policy-isolated.yaml > deploy/policy/default.yaml

# The services of kinds from their messages, and what lists all services: gen/rest and docs/api.md.
kinds = cd tools && GOWORK=off CGO_ENABLED=0 go run ./kinds -root ..

# The whole API as one text, so that a diff shows every field, number, rule and path that a change moves.
describe = $(BIN)/buf build --path proto/windlass --exclude-imports --exclude-source-info --as-file-descriptor-set -o $(1)

module_dir = $$(cd tools && go mod download -json $(1) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')

.imports: ## (the protos of others that ours import, from the module cache)
	@mkdir -p .imports/google/api .imports/buf/validate
	@install -m 644 $(call module_dir,github.com/grpc-ecosystem/grpc-gateway@v1.16.0)/third_party/googleapis/google/api/{annotations,http,httpbody}.proto .imports/google/api/
	@install -m 644 $(call module_dir,github.com/bufbuild/protovalidate@v1.2.2)/proto/protovalidate/buf/validate/validate.proto .imports/buf/validate/

generated: $(PROTO_TOOLS) .imports ## Check that what `make generate` writes is committed
	@$(kinds) -check
	@rm -rf $(BIN)/generated
	@$(BIN)/buf generate --path proto/windlass -o $(BIN)/generated
	@$(call describe,$(BIN)/generated/gen/next.txtpb)
	@diff -rq -x go.mod -x go.sum -x openapi.go -x rest gen $(BIN)/generated/gen && diff -q gen/openapi.go tools/gen/openapi.go.txt || \
	  { echo 'gen/ is not what proto/ says: run make generate' >&2; exit 1; }

fix: $(BIN)/wrap $(BIN)/gofumpt ## Break long lines, format, tidy go.mod files
	@$(BIN)/wrap $$(git ls-files -co --exclude-standard 'kit/*.go' 'services/*.go' 'e2e/*.go' 'deploy/*.go' 'tools/*.go' '*.md')
	@$(BIN)/gofumpt -w kit services e2e deploy tools
	@for module in $(MODULES) tools; do (cd $$module && GOWORK=off go mod tidy); done

$(BIN)/wrap: $(wildcard tools/wrap/*.go) tools/go.mod
	@mkdir -p $(BIN)
	@cd tools && GOWORK=off go build -o $@ ./wrap

vet:
	CGO_ENABLED=0 go vet $(addprefix ./,$(addsuffix /...,$(MODULES)))
	cd tools && GOWORK=off CGO_ENABLED=0 go vet ./...

lint: $(BIN)/staticcheck $(BIN)/gofumpt $(BIN)/buf .imports ## Run staticcheck, gofumpt and buf lint
	$(BIN)/buf lint
	@test -z "$$($(BIN)/gofumpt -l kit services e2e deploy tools | tee /dev/stderr)"
	CGO_ENABLED=0 $(BIN)/staticcheck $(addprefix ./,$(addsuffix /...,kit services e2e deploy/examples/hooks deploy/examples/operators))
	cd tools && GOWORK=off CGO_ENABLED=0 $(BIN)/staticcheck ./...

tidy: ## Check that go.mod and go.sum of each module are what `go mod tidy` writes
	@for module in $(MODULES) tools; do (cd $$module && GOWORK=off go mod tidy -diff) || exit 1; done

# The API of the last release. Its file is replaced with each release, and only then.
RELEASED := proto/v0.1.0.binpb.gz

breaking: $(BIN)/buf .imports ## Check that clients of the last release still work
	@$(BIN)/buf build --path proto/windlass --exclude-source-info -o $(BIN)/api.binpb.gz
	@$(BIN)/buf breaking $(BIN)/api.binpb.gz --against $(RELEASED)

# Exit code 3 of govulncheck is a finding. A database that cannot be reached is none, and is said.
vulnerabilities: $(BIN)/govulncheck ## Check for known vulnerabilities in called code (GOVULNDB=url for another database)
	@for module in $(MODULES); do \
	  out=$$(cd $$module && CGO_ENABLED=0 $(BIN)/govulncheck ./... 2>&1); code=$$?; \
	  case "$$code $$out" in \
	    0*) ;; \
	    1*"fetching vulnerabilities"*) echo "NOT CHECKED for known vulnerabilities: $$out" >&2; exit 0;; \
	    *) echo "$$module: $$out" >&2; exit 1;; \
	  esac; \
	done

clean: ## Remove build output
	rm -rf $(BIN) .imports

# What a bare Debian lacks and a test needs is installed.

need-%:
	@command -v $* >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends $* $(if $(filter gcc,$*),libc6-dev); }

FORCE:
