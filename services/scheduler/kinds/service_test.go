package kinds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// inRange returns tables whose services have addresses of 127.224.0.0/28.
func inRange(t *testing.T) *Tables {
	t.Helper()
	out := New(Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: noNodes{},
		MayBind:      func(identity.Caller, string, string) bool { return false },
		ServiceRange: netip.MustParsePrefix("127.224.0.0/28"),
	})
	for _, k := range []resource.Untyped{out.Services.Untyped(), out.Namespaces.Untyped()} {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func service(name string, change ...func(*schedulingv1.ServiceSpec)) *schedulingv1.Service {
	s := &schedulingv1.Service{Metadata: meta(name), Spec: &schedulingv1.ServiceSpec{
		Ports: []*schedulingv1.ServicePort{{Port: 80}},
	}}
	for _, f := range change {
		f(s.Spec)
	}
	return s
}

func address(ip string) func(*schedulingv1.ServiceSpec) {
	return func(s *schedulingv1.ServiceSpec) { s.ClusterIp = ip }
}

func externalName(name string) func(*schedulingv1.ServiceSpec) {
	return func(s *schedulingv1.ServiceSpec) { s.Type, s.ExternalName, s.Ports = "ExternalName", name, nil }
}

func TestServicesGetEveryAddressOfTheRangeButTheReservedOnes(t *testing.T) {
	tab := inRange(t)
	const usable = 16 - 3
	var group sync.WaitGroup
	errs := make([]error, usable)
	for i := range usable {
		group.Go(func() {
			s := service(fmt.Sprintf("s-%d", i))
			if i%2 == 0 {
				_, errs[i] = tab.Services.Create(byUser(t), s)
			} else {
				errs[i] = tab.Services.CreateAll(byUser(t), []*schedulingv1.Service{s})[0].Err
			}
		})
	}
	group.Wait()
	has := map[string]bool{}
	for i, err := range errs {
		if err != nil {
			t.Errorf("service %d: %v", i, err)
		}
	}
	for s := range tab.Services.Objects() {
		ip := s.GetSpec().GetClusterIp()
		if has[ip] || !slices.Equal(s.GetSpec().GetClusterIps(), []string{ip}) {
			t.Errorf("%s has %s and %s", s.GetMetadata().GetName(), ip, s.GetSpec().GetClusterIps())
		}
		has[ip] = true
	}
	if len(has) != usable || has["127.224.0.0"] || has["127.224.0.10"] || has["127.224.0.15"] {
		t.Errorf("services have the addresses %v", has)
	}
	_, err := tab.Services.Create(byUser(t), service("more"))
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_TOO_MANY || !strings.Contains(err.Error(), "127.224.0.0/28") {
		t.Errorf("all are taken: %v", err)
	}
	if _, err := tab.Services.Create(byUser(t), service("more", address("None"))); err != nil {
		t.Errorf("a headless service needs none: %v", err)
	}
	if _, err := tab.Services.Delete(byUser(t), "default", "s-3", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := tab.Services.Create(byUser(t), service("again")); err != nil {
		t.Errorf("an address was given back: %v", err)
	}
}

func TestAServiceThatCannotBeIsRefusedWithItsField(t *testing.T) {
	tab := inRange(t)
	if _, err := tab.Services.Create(byUser(t), service("has", address("127.224.0.3"))); err != nil {
		t.Fatal(err)
	}
	affinity := func(a string, config *schedulingv1.SessionAffinityConfig) func(*schedulingv1.ServiceSpec) {
		return func(s *schedulingv1.ServiceSpec) { s.SessionAffinity, s.SessionAffinityConfig = a, config }
	}
	seconds := func(n int32) *schedulingv1.SessionAffinityConfig {
		return &schedulingv1.SessionAffinityConfig{ClientIp: &schedulingv1.ClientIPConfig{TimeoutSeconds: &n}}
	}
	target := func(v *structpb.Value) func(*schedulingv1.ServiceSpec) {
		return func(s *schedulingv1.ServiceSpec) { s.Ports[0].TargetPort = v }
	}
	internal := func(policy string) func(*schedulingv1.ServiceSpec) {
		return func(s *schedulingv1.ServiceSpec) { s.InternalTrafficPolicy = &policy }
	}
	routed := func(typ, policy string, families *string, list []string) func(*schedulingv1.ServiceSpec) {
		return func(s *schedulingv1.ServiceSpec) {
			if s.Type = typ; typ == "ExternalName" {
				externalName("db.example.com")(s)
			}
			s.ExternalTrafficPolicy, s.IpFamilyPolicy, s.IpFamilies = policy, families, list
		}
	}
	both := proto.String("PreferDualStack")
	for what, tt := range map[string]struct {
		path   string // empty if it can be
		change func(*schedulingv1.ServiceSpec)
	}{
		"no address":           {"spec.clusterIP", address("web")},
		"an IPv6 address":      {"spec.clusterIP", address("::1")},
		"outside of the range": {"spec.clusterIP", address("127.224.0.16")},
		"the first address":    {"spec.clusterIP", address("127.224.0.0")},
		"the last address":     {"spec.clusterIP", address("127.224.0.15")},
		"the address of DNS":   {"spec.clusterIP", address(loopback.DNS(netip.MustParsePrefix("127.224.0.0/28")).String())},
		"a free address":       {"", address("127.224.0.9")},
		"another second address": {"spec.clusterIPs[0]", func(s *schedulingv1.ServiceSpec) {
			s.ClusterIp, s.ClusterIps = "None", []string{"127.224.0.5"}
		}},
		"two addresses": {
			"spec.clusterIPs",
			func(s *schedulingv1.ServiceSpec) { s.ClusterIps = []string{"127.224.0.5", "::1"} },
		},
		"the address as the only element": {"", func(s *schedulingv1.ServiceSpec) { s.ClusterIps = []string{"127.224.0.5"} }},
		"a headless node port": {"spec.clusterIP", func(s *schedulingv1.ServiceSpec) {
			s.Type, s.ClusterIp = "NodePort", "None"
		}},
		"headless without ports": {"", func(s *schedulingv1.ServiceSpec) { s.Ports, s.ClusterIp = nil, "None" }},
		"without ports":          {"spec.ports", func(s *schedulingv1.ServiceSpec) { s.Ports = nil }},
		"an external name":       {"", externalName("db.example.com.")},
		"no external name":       {"spec.externalName", externalName("")},
		"no host name":           {"spec.externalName", externalName("db_1")},
		"an external name with an address": {"spec.clusterIP", func(s *schedulingv1.ServiceSpec) {
			externalName("db.example.com")(s)
			s.ClusterIp = "None"
		}},
		"affinity":                  {"", affinity("ClientIP", nil)},
		"another affinity":          {"spec.sessionAffinity", affinity("Cookie", nil)},
		"settings without affinity": {"spec.sessionAffinityConfig", affinity("", seconds(1))},
		"affinity that lasts no time": {
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds",
			affinity("ClientIP", seconds(0)),
		},
		"affinity that lasts too long": {
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds",
			affinity("ClientIP", seconds(86_401)),
		},
		"a target that is no port":          {"spec.ports[0].targetPort", target(structpb.NewNumberValue(65_536))},
		"a target that is part of a port":   {"spec.ports[0].targetPort", target(structpb.NewNumberValue(80.5))},
		"a target that is no port's name":   {"spec.ports[0].targetPort", target(structpb.NewStringValue("8080"))},
		"a target that is the name of one":  {"", target(structpb.NewStringValue("http"))},
		"a policy within that there is not": {"spec.internalTrafficPolicy", internal("local")},
		"an empty policy within":            {"spec.internalTrafficPolicy", internal("")},
		"a policy within":                   {"", internal("Local")},
		"a policy from outside that there is not": {
			"spec.externalTrafficPolicy",
			routed("NodePort", "local", nil, nil),
		},
		"a policy from outside":         {"", routed("LoadBalancer", "Local", nil, nil)},
		"a policy that is not needed":   {"spec.externalTrafficPolicy", routed("ClusterIP", "Cluster", nil, nil)},
		"a policy of another name":      {"spec.externalTrafficPolicy", routed("ExternalName", "Cluster", nil, nil)},
		"a policy of families":          {"spec.ipFamilyPolicy", routed("", "", proto.String("Dual"), nil)},
		"an empty policy of families":   {"spec.ipFamilyPolicy", routed("", "", proto.String(""), nil)},
		"a family":                      {"spec.ipFamilies[1]", routed("", "", both, []string{"IPv4", "ipv6"})},
		"a family twice":                {"spec.ipFamilies[1]", routed("", "", both, []string{"IPv4", "IPv4"})},
		"two families":                  {"", routed("", "", both, []string{"IPv4", "IPv6"})},
		"two families without a policy": {"spec.ipFamilyPolicy", routed("", "", nil, []string{"IPv4", "IPv6"})},
		"two families of one": {
			"spec.ipFamilyPolicy",
			routed("", "", proto.String("SingleStack"), []string{"IPv4", "IPv6"}),
		},
		"families of another name":           {"spec.ipFamilies", routed("ExternalName", "", nil, []string{"IPv4"})},
		"a policy of families of other name": {"spec.ipFamilyPolicy", routed("ExternalName", "", both, nil)},
	} {
		_, err := tab.Services.Create(byUser(t), service("new", tt.change), resource.WriteOptions{DryRun: true})
		if tt.path == "" && err != nil || tt.path != "" && !slices.Equal(wrong(err), []string{tt.path}) {
			t.Errorf("%s: %v, want a fault of %q", what, err, tt.path)
		}
	}
	_, err := tab.Services.Create(byUser(t), service("new", address("127.224.0.3")))
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS ||
		!strings.Contains(err.Error(), "belongs to Service default/has") {
		t.Errorf("an address that another service has: %v", err)
	}
}

func TestAServiceKeepsItsAddress(t *testing.T) {
	tab := inRange(t)
	create := func(s *schedulingv1.Service) *schedulingv1.Service {
		t.Helper()
		out, err := tab.Services.Create(byUser(t), s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	update := func(s *schedulingv1.Service, want string, bad ...string) {
		t.Helper()
		out, err := tab.Services.Update(byUser(t), s)
		if !slices.Equal(wrong(err), bad) {
			t.Fatalf("updated to %v: %v, want faults of %q", s.GetSpec(), err, bad)
		}
		if len(bad) > 0 {
			return
		}
		mirror := []string{want}
		if want == "" {
			mirror = nil
		}
		if ip := out.GetSpec().GetClusterIp(); want != "any" &&
			(ip != want || !slices.Equal(out.GetSpec().GetClusterIps(), mirror)) {
			t.Errorf("updated to %v: has %s, want %q", s.GetSpec(), ip, want)
		}
		if want == "any" && out.GetSpec().GetClusterIp() == "" {
			t.Error("has no address")
		}
	}
	create(service("web", address("127.224.0.3")))
	update(service("web"), "127.224.0.3")
	update(service("web", address("127.224.0.3")), "127.224.0.3")
	update(service("web", address("127.224.0.4")), "", "spec.clusterIP")
	update(service("web", address("None")), "", "spec.clusterIP")
	update(service("web", func(s *schedulingv1.ServiceSpec) { s.Type = "NodePort" }), "127.224.0.3")
	update(service("web", address("127.224.0.3"), externalName("db")), "")
	create(service("other", address("127.224.0.3"))) // was given up
	update(service("web"), "any")
	create(service("headless", address("None")))
	update(service("headless", func(s *schedulingv1.ServiceSpec) { s.Ports = nil }), "None")
	update(service("headless", address("127.224.0.5")), "", "spec.clusterIP")
}

func TestAServiceThatWasStoredWithAnotherAddressCanBeChanged(t *testing.T) {
	old := service("s", address("10.0.0.7"))
	defaultService(old)
	next := object.Clone(old)
	next.Spec.Selector = map[string]string{"app": "web"}
	if bad := addressFaults(netip.MustParsePrefix("127.224.0.0/28"), old, next); len(bad) > 0 {
		t.Errorf("a change of something else: %v", bad)
	}
}

func TestAServiceThatChangesItsTypeLosesWhatThatDoesNotAllow(t *testing.T) {
	tab := inRange(t)
	s := service("s", func(s *schedulingv1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = "NodePort", "Local"
		s.IpFamilyPolicy, s.IpFamilies = proto.String("SingleStack"), []string{"IPv4"}
	})
	if _, err := tab.Services.Create(byUser(t), s); err != nil {
		t.Fatal(err)
	}
	change := func(f func(*schedulingv1.ServiceSpec)) *schedulingv1.ServiceSpec {
		t.Helper()
		out, err := tab.Services.Modify(byUser(t), object.KeyOf(s), func(s *schedulingv1.Service) error {
			f(s.Spec)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.GetSpec()
	}
	is := change(func(s *schedulingv1.ServiceSpec) { s.Type = "ClusterIP" })
	if is.GetExternalTrafficPolicy() != "" || is.GetIpFamilyPolicy() != "SingleStack" || len(is.GetIpFamilies()) != 1 {
		t.Errorf("as a ClusterIP it is %v", is)
	}
	is = change(externalName("db"))
	if is.IpFamilyPolicy != nil || len(is.GetIpFamilies()) > 0 {
		t.Errorf("as another name it is %v", is)
	}
}

// An earlier version stored any value.
func TestAServiceThatWasStoredWithWrongValuesCanBeChanged(t *testing.T) {
	old := service("s", func(s *schedulingv1.ServiceSpec) {
		s.ExternalTrafficPolicy, s.IpFamilies = "Local", []string{"ipv4"}
	})
	defaultService(old)
	next := object.Clone(old)
	next.Spec.Selector = map[string]string{"app": "web"}
	if bad := newRoutingFaults(old, next); len(bad) > 0 {
		t.Errorf("a change of something else: %v", bad)
	}
	next.Spec.ExternalTrafficPolicy = "Nowhere"
	if bad := newRoutingFaults(old, next); len(bad) != 1 || bad[0].Path != "spec.externalTrafficPolicy" {
		t.Errorf("a change of one of them: %v", bad)
	}
}

func TestAffinityLastsThreeHoursByDefault(t *testing.T) {
	s := service("s", func(s *schedulingv1.ServiceSpec) { s.SessionAffinity = "ClientIP" })
	if defaultService(s); s.GetSpec().GetSessionAffinityConfig().GetClientIp().GetTimeoutSeconds() != 10_800 {
		t.Errorf("affinity has the settings %v", s.GetSpec().GetSessionAffinityConfig())
	}
}

func TestWhatOfAServiceIsNotInForceIsWarnedOf(t *testing.T) {
	tab := inRange(t)
	for want, change := range map[string]func(*schedulingv1.ServiceSpec){
		"":                           func(s *schedulingv1.ServiceSpec) { s.InternalTrafficPolicy = proto.String("Cluster") },
		"spec.type":                  func(s *schedulingv1.ServiceSpec) { s.Type = "LoadBalancer" },
		"spec.externalIPs":           func(s *schedulingv1.ServiceSpec) { s.ExternalIps = []string{"10.0.0.1"} },
		"spec.internalTrafficPolicy": func(s *schedulingv1.ServiceSpec) { s.InternalTrafficPolicy = proto.String("Local") },
		"spec.externalIPs spec.externalTrafficPolicy": func(s *schedulingv1.ServiceSpec) {
			s.ExternalTrafficPolicy, s.ExternalIps = "Local", []string{"10.0.0.1"}
		},
		"spec.ports[0].protocol": func(s *schedulingv1.ServiceSpec) { s.Ports[0].Protocol = "SCTP" },
		"spec.ports[0].nodePort": func(s *schedulingv1.ServiceSpec) { s.Ports[0].NodePort = proto.Int32(30_000) },
		"spec.ipFamilies":        func(s *schedulingv1.ServiceSpec) { s.IpFamilies = []string{"IPv6"} },
		"spec.ipFamilyPolicy": func(s *schedulingv1.ServiceSpec) {
			s.IpFamilyPolicy = proto.String("PreferDualStack")
		},
		"spec.sessionAffinity": func(s *schedulingv1.ServiceSpec) {
			s.ClusterIp, s.SessionAffinity = "None", "ClientIP"
		},
		"spec.externalName": func(s *schedulingv1.ServiceSpec) { s.ExternalName = "db" },
	} {
		var got []string
		warn := resource.WriteOptions{Warn: func(text string) {
			path, _, _ := strings.Cut(text, ":")
			got = append(got, path)
		}}
		s := service("s"+strings.ToLower(strings.NewReplacer(".", "", "[", "", "]", "", " ", "").Replace(want)), change)
		if _, err := tab.Services.Create(byUser(t), s, warn); err != nil {
			t.Fatal(err)
		}
		again := service(s.GetMetadata().GetName(), change)
		if _, err := tab.Services.Update(byUser(t), again, warn); err != nil { // which changes nothing
			t.Fatal(err)
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("warned of %q, want %q", got, want)
		}
	}
}
