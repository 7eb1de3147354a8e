package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// services is what the gateway serves. Providers are no part of it: machine-api alone talks to them.
var services = []string{
	"windlass.etcd.v1.QuorumService", "windlass.event.v1.EventService", "windlass.hook.v1.HookOwnerService",
	"windlass.hook.v1.HookTaskService",
	"windlass.machine.v1.ControlPlaneMachineSetService", "windlass.machine.v1.InfrastructureService",
	"windlass.machine.v1.JoinService",
	"windlass.machine.v1.MachineService", "windlass.machine.v1.MachineSetService",
	"windlass.node.v1.DrainService", "windlass.node.v1.NodeAgentService", "windlass.node.v1.NodeService",
}

func TestGrpcurlListsDescribesAndCallsEveryService(t *testing.T) {
	c := shared.Cluster(t)
	list, err := c.Admin().Grpcurl("", nil, "list")
	if err != nil || list.Code != 0 {
		t.Fatalf("grpcurl list: %v\n%s", err, list.Stderr)
	}
	have := strings.Fields(list.Stdout)
	for _, s := range services {
		if !slices.Contains(have, s) {
			t.Errorf("%s is not listed", s)
		}
	}
	for _, s := range have {
		got, err := c.Admin().Grpcurl("", nil, "describe", s)
		if err != nil || got.Code != 0 || !strings.Contains(got.Stdout, "service "+s[strings.LastIndex(s, ".")+1:]) {
			t.Errorf("grpcurl describe %s: %v\n%s%s", s, err, got.Stdout, got.Stderr)
		}
	}
	for _, method := range []string{
		"windlass.etcd.v1.QuorumService/GetQuorum", "windlass.event.v1.EventService/ListEvents",
		"windlass.hook.v1.HookOwnerService/ListHookOwners",
		"windlass.hook.v1.HookTaskService/ListHookTasks",
		"windlass.machine.v1.ControlPlaneMachineSetService/ListControlPlaneMachineSets",
		"windlass.machine.v1.InfrastructureService/ListInfrastructures", "windlass.machine.v1.MachineService/ListMachines",
		"windlass.machine.v1.MachineSetService/ListMachineSets", "windlass.node.v1.DrainService/ListDrains",
		"windlass.node.v1.NodeService/ListNodes",
	} {
		got, err := c.Admin().Grpcurl("", []string{"-d", "{}"}, method)
		if err != nil || got.Code != 0 || !json.Valid([]byte(got.Stdout)) {
			t.Errorf("grpcurl %s: %v\n%s", method, err, got.Stderr)
		}
	}
}

func TestTheOpenAPIDocumentDescribesEveryAddress(t *testing.T) {
	c := shared.Cluster(t)
	resp, err := c.Admin().REST(context.Background(), http.MethodGet, "/openapi.json", "", nil)
	if err != nil || resp.Code != http.StatusOK {
		t.Fatalf("%d: %v", resp.Code, err)
	}
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]any
	}
	if err := json.Unmarshal(resp.Body, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.") {
		t.Errorf("version %q", doc.OpenAPI)
	}
	for _, path := range []string{
		"/v1/machines", "/v1/namespaces/{namespace}/machines/{name}", "/v1/machinesets", "/v1/controlplanemachinesets",
		"/v1/nodes/{name}", "/v1/quorum",
		"/v1/hooktasks/{name}:claim", "/v1/events", "/v1/drains", "/v1/machines:plan", "/v1/machinesets:plan",
		"/v1/controlplanemachinesets:plan",
		"/v1/etcd:plan", "/v1/hooks:validate", "/v1/nodes:plan", "/v1/drains:plan",
	} {
		if doc.Paths[path] == nil {
			t.Errorf("%s is not described", path)
		}
	}
	page, err := c.Admin().REST(context.Background(), http.MethodGet, "/docs/", "", nil)
	if err != nil || page.Code != http.StatusOK || !strings.Contains(page.Header.Get("Content-Type"), "text/html") {
		t.Errorf("the page: %d %v", page.Code, err)
	}
}
