# What a newcomer needs: `make up`, `make test`. Everything else: `make help`.
SHELL := /bin/bash
BIN := $(CURDIR)/.bin
MODULES := gen kit services e2e deploy/examples/hooks deploy/examples/operators
NAME ?=
name_flag := $(if $(NAME),--name $(NAME))
need_proxy := $(if $(filter 0,$(shell id -u)),need-iptables) # tests lead etcd's clients to a proxy; without root they are skipped

.DEFAULT_GOAL := help
.PHONY: figures images help build up down tour verify test test-unit test-e2e test-faults fuzz generate generated lint vet vulnerabilities clean FORCE

help: ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: $(BIN)/windlass $(BIN)/backup-hook $(BIN)/example-operators $(BIN)/grpcurl ## Build the one executable, the example programs, and grpcurl for $$GRPCURL of `windlass env`

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

down: build ## Stop the cluster
	@$(BIN)/windlass down $(name_flag)

tour: build $(BIN)/grpcurl need-curl ## Tell the story of docs/tour.md on the running cluster, and check it
	@CGO_ENABLED=0 go build -o $(BIN)/tour ./e2e/tour
	@PATH="$(BIN):$$PATH" $(BIN)/tour $(name_flag)

verify: vet lint generated vulnerabilities ## Check what needs no test: vet, lint, generated code, known vulnerabilities

test: test-unit test-e2e ## Run all tests

# Without it every process that a test starts from its own binary sleeps a second at its end.
test-unit: export GORACE ?= atexit_sleep_ms=10
test-unit: need-gcc ## Run the tests of single packages with the race detector
	go test -race $(addprefix ./,$(addsuffix /...,gen kit services deploy/examples/hooks deploy/examples/operators))

# The container tests tear down themselves what they start: there may be no registry to get testcontainers' reaper from. They say whether they ran.
test-e2e: export TESTCONTAINERS_RYUK_DISABLED ?= true
test-e2e: export TESTCONTAINERS_HOST_OVERRIDE ?= 127.0.0.1
test-e2e: build $(BIN)/grpcurl need-curl $(need_proxy) ## Run the tests of whole clusters, in containers too where an engine answers
	PATH="$(BIN):$$PATH" CGO_ENABLED=0 go test -count=1 -timeout 30m $$(go list ./e2e/... | grep -v /e2e/compose$$)
	PATH="$(BIN):$$PATH" CGO_ENABLED=0 go test -count=1 -timeout 15m -v ./e2e/compose

figures: build ## Measure what docs/figures.md states (ROUNDS=10)
	WINDLASS_FIGURES=$(or $(ROUNDS),10) CGO_ENABLED=0 go test -count=1 -timeout 60m -v ./e2e/figures | grep -E "^(\||FAIL|---|panic|.*_test.go)"

test-faults: build $(need_proxy) ## Kill every program at every step of replacements, drains, roll-outs, updates; the result goes to docs/figures.md
	PATH="$(BIN):$$PATH" WINDLASS_FAULTS=all CGO_ENABLED=0 go test -count=1 -timeout 480m -run 'TestFaults' -v ./e2e/... ./kit/store

# Each target has its seeds in testdata/fuzz or in the test; what it finds is written there too, and is then a case of `make test`.
# A seed of some kilobytes would otherwise be minimized for a minute instead of being varied. On a busy machine go may end a run that found nothing with "context deadline exceeded" (golang/go#75804): that is no finding.
FUZZTIME ?= 30s
fuzz: ## Fuzz every parser that reads a caller's bytes (FUZZTIME=30s each)
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

generate: $(PROTO_TOOLS) .imports ## Write gen/ anew from proto/
	$(BIN)/buf lint
	find gen -name '*.pb.go' -o -name '*.pb.gw.go' -o -name '*.openapi.json' | xargs rm -f
	$(BIN)/buf generate --path proto/windlass
	@$(call describe,gen/next.txtpb)
	@install -m 644 tools/gen/openapi.go.txt gen/openapi.go
	@cat kit/identity/policy.yaml kit/identity/policy-isolated.yaml > deploy/policy/default.yaml

# The whole API as one text, so that a diff shows every field, number, rule and path that a change moves.
describe = $(BIN)/buf build --path proto/windlass --exclude-imports --exclude-source-info --as-file-descriptor-set -o $(1)

module_dir = $$(cd tools && go mod download -json $(1) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')

.imports: ## (the protos of others that ours import, from the module cache)
	@mkdir -p .imports/google/api .imports/buf/validate
	@install -m 644 $(call module_dir,github.com/grpc-ecosystem/grpc-gateway@v1.16.0)/third_party/googleapis/google/api/{annotations,http,httpbody}.proto .imports/google/api/
	@install -m 644 $(call module_dir,github.com/bufbuild/protovalidate@v1.2.2)/proto/protovalidate/buf/validate/validate.proto .imports/buf/validate/

generated: $(PROTO_TOOLS) .imports ## Check that gen/ is what `make generate` writes
	@rm -rf $(BIN)/generated
	@$(BIN)/buf generate --path proto/windlass -o $(BIN)/generated
	@$(call describe,$(BIN)/generated/gen/next.txtpb)
	@diff -rq -x go.mod -x go.sum -x openapi.go gen $(BIN)/generated/gen && diff -q gen/openapi.go tools/gen/openapi.go.txt || \
	  { echo 'gen/ is not what proto/ says: run make generate' >&2; exit 1; }

vet:
	CGO_ENABLED=0 go vet $(addprefix ./,$(addsuffix /...,$(MODULES)))

lint: $(BIN)/staticcheck $(BIN)/gofumpt $(BIN)/buf .imports ## Look for what the compiler does not see
	$(BIN)/buf lint
	@test -z "$$($(BIN)/gofumpt -l kit services e2e deploy | tee /dev/stderr)"
	CGO_ENABLED=0 $(BIN)/staticcheck $(addprefix ./,$(addsuffix /...,kit services e2e deploy/examples/hooks deploy/examples/operators))

# Exit code 3 of govulncheck is a finding. A database that cannot be reached is none, and is said.
vulnerabilities: $(BIN)/govulncheck ## Look for known vulnerabilities in what we call (GOVULNDB=url for another database)
	@for module in $(MODULES); do \
	  out=$$(cd $$module && CGO_ENABLED=0 $(BIN)/govulncheck ./... 2>&1); code=$$?; \
	  case "$$code $$out" in \
	    0*) ;; \
	    1*"fetching vulnerabilities"*) echo "NOT CHECKED for known vulnerabilities: $$out" >&2; exit 0;; \
	    *) echo "$$module: $$out" >&2; exit 1;; \
	  esac; \
	done

clean: ## Remove what was built
	rm -rf $(BIN) .imports

# What a bare Debian lacks and a test needs is installed.

need-%:
	@command -v $* >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends $* $(if $(filter gcc,$*),libc6-dev); }

FORCE:
