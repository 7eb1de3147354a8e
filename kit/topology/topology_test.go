package topology

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

func TestNamesPortsAndPackagesAreThereOnce(t *testing.T) {
	seen := map[any]string{}
	once := func(what any, service string) {
		if other, is := seen[what]; is {
			t.Errorf("%s and %s both have %v", other, service, what)
		}
		seen[what] = service
	}
	for _, s := range AllServices() {
		if s.Port <= 0 || s.Port+MetricsStep > 65535 {
			t.Errorf("%s has the port %d", s.Name, s.Port)
		}
		for _, what := range []any{s.Name, s.Port, s.Port + MetricsStep, "operator " + Operator(s.Name)} {
			once(what, s.Name)
		}
		for _, p := range slices.Concat(s.Packages, s.Services) {
			once(p, s.Name)
		}
	}
}

func TestPeersAreServices(t *testing.T) {
	for _, s := range AllServices() {
		for _, name := range slices.Concat(s.Needs, s.Calls) {
			if !slices.Contains(slices.Concat(s.Peers(), s.PeersOnHosts()), name) {
				t.Errorf("%s calls %q, which is no service", s.Name, name)
			}
			if name == s.Name {
				t.Errorf("%s needs itself", s.Name)
			}
		}
	}
}

func TestPeers(t *testing.T) {
	for name, want := range map[string][]string{
		HookBroker:   {MachineAPI, Scheduler, UpdateOrchestrator},
		MachineAPI:   {ProviderLocal, EtcdGuardian, EvictionController, Scheduler, UpdateOrchestrator},
		EtcdGuardian: {MachineAPI, EvictionController, HookBroker, Scheduler, UpdateOrchestrator},
		Gateway: {
			EtcdGuardian, MachineAPI, EvictionController, HookBroker, Scheduler, NodeConfigurator, UpdateOrchestrator,
		},
		UpdateOrchestrator: Names(),
	} {
		s, ok := Find(name)
		if got := s.Peers(); !ok || !slices.Equal(got, want) {
			t.Errorf("%s calls %q, want %q", name, got, want)
		}
	}
}

// What reads Names and Services starts programs, makes certificates and users of etcd, and waits for programs.
func TestServicesOnHostsAreNoneOfEveryCluster(t *testing.T) {
	for _, s := range AllServices() {
		if slices.Contains(Names(), s.Name) == s.OnHosts {
			t.Errorf("%s: runs only on hosts: %v, is one of Names: %v", s.Name, s.OnHosts, !s.OnHosts)
		}
	}
	if s, ok := Find(ProviderInventory); !ok || !s.OnHosts || s.Port != 7111 {
		t.Errorf("the row of %s is %+v", ProviderInventory, s)
	}
	for _, s := range Services() {
		if slices.Contains(s.Peers(), ProviderInventory) {
			t.Errorf("%s calls %s, which no cluster on one machine runs", s.Name, ProviderInventory)
		}
	}
}

func TestServer(t *testing.T) {
	for service, want := range map[protoreflect.FullName]string{
		"windlass.scheduling.v1.PodService":      Scheduler,
		"windlass.scheduling.v1.EvictionService": EvictionController, // before the package's service
		"windlass.meta.v1.AccessService":         Gateway,
		"windlass.host.v1.HostService":           ProviderInventory,
		"windlass.provider.v1.ProviderService":   "",
		"grpc.health.v1.Health":                  "",
	} {
		if got := Server(service); got != want {
			t.Errorf("%s is served by %q, want %q", service, got, want)
		}
	}
}

func TestOperatorsHaveTheNamesOfTheDocuments(t *testing.T) {
	for service, want := range map[string]string{
		EtcdGuardian: "etcd", NodeConfigurator: "machine-config", Scheduler: "scheduler", "provider-x": "provider-x",
	} {
		if got := Operator(service); got != want {
			t.Errorf("the operator of %s is %q, want %q", service, got, want)
		}
	}
}

func TestPeersOnHosts(t *testing.T) {
	machines, _ := Find(MachineAPI)
	if got := machines.PeersOnHosts(); slices.Contains(got, ProviderLocal) || !slices.Contains(got, ProviderInventory) {
		t.Errorf("on hosts machine-api calls %v, want %s and not %s", got, ProviderInventory, ProviderLocal)
	}
	if got := machines.Peers(); !slices.Contains(got, ProviderLocal) || slices.Contains(got, ProviderInventory) {
		t.Errorf("on one machine machine-api calls %v, want %s and not %s", got, ProviderLocal, ProviderInventory)
	}
	for _, s := range AllServices() {
		for _, name := range s.PeersOnHosts() {
			if row, _ := Find(name); row.Etcd == NoEtcd {
				t.Errorf("on hosts %s calls %s, which announces nothing", s.Name, name)
			}
		}
	}
}
