// Package topology declares the services of a cluster, one row each: the name, what it serves, its port, the services
// that it calls, and what it may do in etcd. The supervisor, certificates, users of etcd, the gateway's routing,
// required flags and health checks are all derived from these rows. It holds values only, so a plan may import it.
package topology

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Names of the services. A service's folder below services/, its certificate, its etcd user and its container have the
// same name.
const (
	EtcdGuardian       = "etcd-guardian"
	EvictionController = "eviction-controller"
	Gateway            = "gateway"
	HookBroker         = "hook-broker"
	MachineAPI         = "machine-api"
	NodeConfigurator   = "node-configurator"
	ProviderInventory  = "provider-inventory"
	ProviderLocal      = "provider-local"
	Scheduler          = "scheduler"
	UpdateOrchestrator = "update-orchestrator"
)

// Host is the program `windlass host run` of a control-plane host: it runs the services and the machine of the host,
// and is none of the services.
const Host = "host"

// Authorities of a cluster, by the names of their files.
const (
	APIAuthority        = "windlass"    // for services, users and agents
	EtcdClientAuthority = "etcd-client" // for etcd's clients; a certificate's common name is the etcd user
	EtcdPeerAuthority   = "etcd-peer"   // for the connections between etcd's members
)

// Authorities returns the names of all authorities.
func Authorities() []string { return []string{APIAuthority, EtcdClientAuthority, EtcdPeerAuthority} }

// MetricsStep is the difference between a service's metrics port and its port.
const MetricsStep = 100

// ElectionsPrefix is the prefix of all election keys in etcd.
const ElectionsPrefix = "/windlass/elections/"

// HealthForAgents is the service in health checks of a gateway that says whether agents are served there: whether the
// gateway serves, and reaches the processes that lead, to which all streams of agents go.
const HealthForAgents = "agents"

// EndpointsPrefix is the prefix in etcd of what the processes of a cluster of several hosts announce of themselves.
const EndpointsPrefix = "/windlass/endpoints/"

// EtcdAccess is what a service may do in etcd.
type EtcdAccess int

const (
	// NoEtcd means that the service has no user in etcd.
	NoEtcd EtcdAccess = iota
	// OwnKeys means that it reads and writes its own prefix, its own election key and what its processes announce, and
	// reads those of all services.
	OwnKeys
	// ReadElections means that it has no prefix of its own, and the rest of OwnKeys.
	ReadElections
)

// Service is the row of one service.
type Service struct {
	Name string
	Port int // for gRPC, the same in every cluster: clusters differ in their addresses

	// Packages are the proto packages whose gRPC services it serves through the gateway. Services are single gRPC services
	// that it serves through the gateway although another service, or none, serves their package; they take precedence.
	Packages []protoreflect.FullName
	Services []protoreflect.FullName
	// Released are those of Packages whose kinds the manifests of a release may contain.
	Released []protoreflect.FullName

	// Needs are the services whose addresses it requires as --peer to start. It becomes ready without them.
	Needs []string
	// Calls are further services that it calls if it has their addresses. Every service also calls machine-api, for the
	// revocations, scheduler, for the stored roles, and update-orchestrator, to report its ClusterOperator.
	Calls []string
	// CallsOwners means that it calls every service that has Packages; CallsAll that it calls every service, itself
	// included.
	CallsOwners, CallsAll bool

	Etcd     EtcdAccess
	Operator string   // name of its ClusterOperator; empty means Name
	Signs    []string // the authorities whose private keys it has
	Seals    bool     // whether it seals records, by a key ring in its directory
	// OnHosts means that it runs only where the control plane is on hosts. `windlass up` and the containers do not run it,
	// and make no certificates, keys or user of etcd for it.
	OnHosts bool
}

// Services returns the services that every cluster runs, in the order in which the supervisor starts them: those that
// etcd and the machines need are first. The caller may modify the result.
func Services() []Service {
	return slices.DeleteFunc(AllServices(), func(s Service) bool { return s.OnHosts })
}

// AllServices returns Services and, behind them, those that run only where the control plane is on hosts.
func AllServices() []Service {
	return []Service{
		{
			Name: ProviderLocal, Port: 7110,
		},
		{
			Name: EtcdGuardian, Port: 7103, Packages: packages("etcd"), Needs: []string{MachineAPI},
			Calls: []string{HookBroker, EvictionController}, Etcd: OwnKeys, Operator: "etcd", // its name in the documents
			Signs: []string{EtcdClientAuthority, EtcdPeerAuthority},
		},
		{
			Name: MachineAPI, Port: 7101, Packages: packages("machine"), Released: packages("machine"),
			Needs: []string{EvictionController}, Etcd: OwnKeys,
			Calls: []string{ProviderLocal, ProviderInventory, EtcdGuardian},
			Signs: []string{APIAuthority}, Seals: true,
		},
		{
			Name: EvictionController, Port: 7104, Packages: packages("node"), Released: packages("node"),
			Services: []protoreflect.FullName{"windlass.scheduling.v1.EvictionService"},
			Needs:    []string{EtcdGuardian, MachineAPI, Scheduler}, Etcd: OwnKeys,
		},
		{
			// Every service stores its own events, and the gateway merges them.
			Name: Gateway, Port: 6443, CallsOwners: true, Etcd: ReadElections,
			Services: []protoreflect.FullName{
				"windlass.audit.v1.AuditService", "windlass.event.v1.EventService",
				"windlass.meta.v1.AccessService",
			},
		},
		{
			Name: HookBroker, Port: 7102, Packages: packages("hook"), Needs: []string{MachineAPI}, Etcd: OwnKeys,
		},
		{
			// Roles are deleted with their namespaces, so the owner of namespaces has them. A release may not contain any: the
			// right to sign a release does not include the right to grant rights.
			Name: Scheduler, Port: 7107, Packages: packages("scheduling", "rbac", "admissionregistration"),
			Released: packages("scheduling"),
			Needs:    []string{EvictionController}, Etcd: OwnKeys, Seals: true,
		},
		{
			Name: NodeConfigurator, Port: 7106, Packages: packages("config"), Released: packages("config"),
			Needs: []string{EtcdGuardian, EvictionController, UpdateOrchestrator}, Etcd: OwnKeys,
			Operator: "machine-config", // the operator's name in the documents
		},
		{
			Name: UpdateOrchestrator, Port: 7105, Packages: packages("update", "program", "apiextensions"),
			Released: packages("program"), CallsAll: true, Etcd: OwnKeys,
		},
		{
			Name: ProviderInventory, Port: 7111, Packages: packages("host"), Etcd: OwnKeys, Seals: true, OnHosts: true,
		},
	}
}

func packages(groups ...string) []protoreflect.FullName {
	var out []protoreflect.FullName
	for _, g := range groups {
		out = append(out, protoreflect.FullName("windlass."+g+".v1"))
	}
	return out
}

// Names returns the names of Services, in the order in which they are started.
func Names() []string { return names(Services()) }

func names(services []Service) []string {
	var out []string
	for _, s := range services {
		out = append(out, s.Name)
	}
	return out
}

// ServicesOnHosts returns the services that run where the control plane is on hosts, in the order of the rows. What
// takes no part in etcd is not among them: the other hosts would not find it.
func ServicesOnHosts() []Service {
	return slices.DeleteFunc(AllServices(), func(s Service) bool { return s.Etcd == NoEtcd })
}

// NamesOnHosts returns the names of ServicesOnHosts.
func NamesOnHosts() []string { return names(ServicesOnHosts()) }

// UpdateLevels returns the names of AllServices, and Host, in the order in which an update restarts them:
// update-orchestrator first, since it applies the rest, and Host last, since an agent must not be newer than the
// services. Programs of one level are restarted together on a host, the gateway once the others are ready. Source: the
// Cluster Version Operator, which updates itself first, and the nodes last.
func UpdateLevels() [][]string {
	rest := slices.DeleteFunc(names(AllServices()), func(name string) bool {
		return name == UpdateOrchestrator || name == Gateway
	})
	return [][]string{{UpdateOrchestrator}, append(rest, Gateway), {Host}}
}

// UpdateOrder returns the names of UpdateLevels in their order.
func UpdateOrder() []string { return slices.Concat(UpdateLevels()...) }

// UpdateLevel returns the position of the level of UpdateLevels that has a name; -1 if none has.
func UpdateLevel(name string) int {
	return slices.IndexFunc(UpdateLevels(), func(level []string) bool { return slices.Contains(level, name) })
}

// Find returns the row of a service; false if there is none, as for a provider plugin.
func Find(name string) (Service, bool) {
	for _, s := range AllServices() {
		if s.Name == name {
			return s, true
		}
	}
	return Service{}, false
}

// Port returns the port of a service; 0 if the service does not exist.
func Port(name string) int {
	s, _ := Find(name)
	return s.Port
}

// Peers returns the names of the Services that s calls, in the order of the rows.
func (s Service) Peers() []string { return s.among(Services()) }

// PeersOnHosts returns the names of the services that s calls where the control plane is on hosts.
func (s Service) PeersOnHosts() []string { return s.among(ServicesOnHosts()) }

func (s Service) among(all []Service) []string {
	var out []string
	for _, o := range all {
		every := slices.Contains([]string{MachineAPI, Scheduler, UpdateOrchestrator}, o.Name) && o.Name != s.Name
		owner := s.CallsOwners && len(o.Packages) > 0
		if s.CallsAll || every || owner || slices.Contains(s.Needs, o.Name) || slices.Contains(s.Calls, o.Name) {
			out = append(out, o.Name)
		}
	}
	return out
}

// Server returns the name of the service that serves a gRPC service through the gateway, or "" if it is not exposed.
// windlass.provider.v1 is not: only machine-api and its provider use it.
func Server(service protoreflect.FullName) string {
	server := ""
	for _, s := range AllServices() {
		if slices.Contains(s.Services, service) {
			return s.Name
		}
		if slices.Contains(s.Packages, service.Parent()) {
			server = s.Name
		}
	}
	return server
}

// Operator returns the name of a service's ClusterOperator. For a service without a row it is the service's name; Host
// has none.
func Operator(service string) string {
	if service == Host {
		return ""
	}
	if s, _ := Find(service); s.Operator != "" {
		return s.Operator
	}
	return service
}

// Prefix returns the prefix of a service's records in etcd.
func Prefix(service string) string { return "/windlass/" + service + "/" }

// ElectionKey returns the key of a service's election in etcd.
func ElectionKey(service string) string { return ElectionsPrefix + service }

// EndpointsOf returns the prefix in etcd of what the processes of a service announce of themselves.
func EndpointsOf(service string) string { return EndpointsPrefix + service + "/" }
