package catalog_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

func all(t *testing.T) *catalog.Catalog {
	t.Helper()
	c, err := catalog.New(protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestMethodsKnowWhereTheyGo(t *testing.T) {
	c := all(t)
	for _, m := range []struct {
		name, program string
		leader, open  bool
	}{
		{name: "/windlass.machine.v1.MachineService/GetMachine", program: "machine-api"},
		{name: "/windlass.machine.v1.MachineService/WatchMachines", program: "machine-api"},
		{name: "/windlass.machine.v1.JoinService/Join", program: "machine-api", open: true},
		{name: "/windlass.machine.v1.JoinService/Renew", program: "machine-api"},
		{name: "/windlass.hook.v1.HookTaskService/StreamHookTasks", program: "hook-broker", leader: true},
		{name: "/windlass.etcd.v1.QuorumService/AttendMember", program: "etcd-guardian", leader: true},
		{name: "/windlass.node.v1.NodeAgentService/Heartbeat", program: "eviction-controller", leader: true},
		{name: "/windlass.scheduling.v1.PodService/CreatePod", program: "scheduler", leader: true},
		{name: "/windlass.scheduling.v1.PodService/UpdatePod", program: "scheduler"},
		{name: "/windlass.host.v1.HostService/GetClusterAccess", program: "provider-inventory", leader: true},
		{name: "/windlass.host.v1.HostService/SetClusterAccess", program: "provider-inventory", leader: true},
		{name: "/windlass.host.v1.HostService/PlanClusterAccess", program: "provider-inventory", leader: true},
		{name: "/windlass.host.v1.HostService/SyncAccess", program: "provider-inventory", leader: true},
		{name: "/windlass.event.v1.EventService/ListEvents", program: topology.Gateway},
		{name: "/windlass.audit.v1.AuditService/ReadAuditLogs", program: topology.Gateway, leader: true},
	} {
		got := c.Method(m.name)
		if got == nil || got.Program != m.program || got.Leader != m.leader || got.Open() != m.open {
			t.Errorf("%s = %+v, want %+v", m.name, got, m)
		}
	}
	if c.Method("/windlass.provider.v1.ProviderService/CreateInstance") != nil {
		t.Error("the provider's protocol is exposed")
	}
	if programs := c.Programs(); !slices.Equal(programs, []string{
		"etcd-guardian", "eviction-controller", "hook-broker",
		"machine-api", "provider-inventory", "scheduler",
	}) {
		t.Errorf("programs %v", programs)
	}
}

func TestOnlyJoinsNeedNobodyToBeKnown(t *testing.T) {
	open := []string{
		"/windlass.machine.v1.JoinService/Join", "/windlass.machine.v1.HostJoinService/JoinHost", // by a token
	}
	for _, service := range all(t).Services() {
		for i := range service.Methods().Len() {
			name := "/" + string(service.FullName()) + "/" + string(service.Methods().Get(i).Name())
			if m := all(t).Method(name); m.Open() != slices.Contains(open, name) {
				t.Errorf("%s is open to everybody: %t", name, m.Open())
			}
		}
	}
}

func TestEveryMethodSaysWhichRightItNeeds(t *testing.T) {
	c := all(t)
	for _, service := range c.Services() {
		for i := range service.Methods().Len() {
			name := "/" + string(service.FullName()) + "/" + string(service.Methods().Get(i).Name())
			if c.Method(name).Access.GetVerb() == "" {
				t.Errorf("%s has no access option", name)
			}
		}
	}
}

func TestMatch(t *testing.T) {
	c := all(t)
	for _, m := range []struct {
		name, verb, path string
		want             string   // template
		verbs            []string // if there is no route
	}{
		{name: "a list", verb: "GET", path: "/v1/machines", want: "/v1/machines"},
		{name: "a watch", verb: "GET", path: "/v1/machines:watch", want: "/v1/machines:watch"},
		{
			name: "an object", verb: "GET", path: "/v1/namespaces/a/machines/b",
			want: "/v1/namespaces/{namespace}/machines/{name}",
		},
		{
			name: "a name with a colon", verb: "GET", path: "/v1/namespaces/a/machines/b:c",
			want: "/v1/namespaces/{namespace}/machines/{name}",
		},
		{
			name: "a verb after a name with a colon", verb: "POST", path: "/v1/namespaces/a/machines/b:c:apply",
			want: "/v1/namespaces/{namespace}/machines/{name}:apply",
		},
		{
			name: "a verb without a name", verb: "POST", path: "/v1/namespaces/a/machines/:apply",
			verbs: []string{"DELETE", "GET", "PATCH", "PUT"},
		},
		{name: "an empty name", verb: "GET", path: "/v1/namespaces/a/machines/"},
		{name: "an empty namespace", verb: "GET", path: "/v1/namespaces//machines/b"},
		{name: "a method that the address does not have", verb: "PUT", path: "/v1/machines", verbs: []string{"GET", "POST"}},
		{name: "a part of an address", verb: "GET", path: "/v1"},
		{name: "nothing", verb: "GET", path: ""},
	} {
		t.Run(m.name, func(t *testing.T) {
			route, verbs := c.Match(m.verb, m.path)
			template := ""
			if route != nil {
				template = route.Template
			}
			if template != m.want || !slices.Equal(verbs, m.verbs) {
				t.Errorf("Match = %q, %v, want %q, %v", template, verbs, m.want, m.verbs)
			}
		})
	}
}
