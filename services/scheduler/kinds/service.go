package kinds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/validation"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

const (
	clusterIPPath = "spec.clusterIP"
	noAffinity    = "None"
)

// byAddress is the index of services by their address.
const byAddress = "address"

// services returns the rules of services.
func (t *Tables) services() resource.Config[*schedulingv1.Service] {
	return resource.Config[*schedulingv1.Service]{
		Default: defaultService, Validate: validateService, Admit: t.admitService, Claims: claimsOfService,
		Choose: t.chooseAddress,
		Indexes: map[string]func(*schedulingv1.Service) []string{
			byAddress: func(s *schedulingv1.Service) []string { return []string{plan.AddressOf(s)} },
		},
	}
}

func defaultService(s *schedulingv1.Service) {
	if s.Spec == nil {
		s.Spec = &schedulingv1.ServiceSpec{}
	}
	orElse(&s.Spec.Type, "ClusterIP")
	orElse(&s.Spec.SessionAffinity, noAffinity)
	if s.Spec.SessionAffinity == plan.ClientIP {
		if s.Spec.SessionAffinityConfig == nil {
			s.Spec.SessionAffinityConfig = &schedulingv1.SessionAffinityConfig{}
		}
		if s.Spec.SessionAffinityConfig.ClientIp == nil {
			s.Spec.SessionAffinityConfig.ClientIp = &schedulingv1.ClientIPConfig{}
		}
		numberOr(&s.Spec.SessionAffinityConfig.ClientIp.TimeoutSeconds, plan.AffinitySeconds)
	}
	mirrorAddress(s.Spec)
	for _, p := range s.Spec.GetPorts() {
		orElse(&p.Protocol, "TCP")
		valueOr(&p.TargetPort, structpb.NewNumberValue(float64(p.GetPort())))
	}
}

// mirrorAddress completes one of the two fields that hold the address by the other.
func mirrorAddress(spec *schedulingv1.ServiceSpec) {
	switch {
	case spec.ClusterIp != "" && len(spec.ClusterIps) == 0:
		spec.ClusterIps = []string{spec.ClusterIp}
	case spec.ClusterIp == "" && len(spec.ClusterIps) > 0:
		spec.ClusterIp = spec.ClusterIps[0]
	}
}

func validateService(s *schedulingv1.Service) []object.Fault {
	spec := s.GetSpec()
	bad := labelPairFaults("spec.selector", spec.GetSelector())
	bad = append(bad, portFaults(spec.GetPorts())...)
	bad = append(bad, affinityFaults(spec)...)
	if !plan.HasAddress(s) {
		bad = append(bad, externalNameFaults(spec.GetExternalName())...)
	}
	switch {
	case len(spec.GetClusterIps()) > 1:
		bad = append(bad, object.Fault{Path: "spec.clusterIPs", Description: "must have no more than one"})
	case len(spec.GetClusterIps()) == 1 && spec.GetClusterIps()[0] != spec.GetClusterIp():
		bad = append(bad, object.Fault{Path: "spec.clusterIPs[0]", Description: "must be equal to " + clusterIPPath})
	}
	return bad
}

// maxServicePorts is how many ports a service may have: an agent of each host listens on all of them.
const maxServicePorts = 128

func portFaults(ports []*schedulingv1.ServicePort) (bad []object.Fault) {
	if len(ports) > maxServicePorts {
		return []object.Fault{object.Faultf("spec.ports", "must be no more than %d", maxServicePorts)}
	}
	type number struct {
		port     int32
		protocol string
	}
	names, numbers := map[string]bool{}, map[number]bool{}
	for i, p := range ports {
		at := fmt.Sprintf("spec.ports[%d]", i)
		if len(ports) > 1 || p.GetName() != "" {
			bad = append(bad, labelFaults(at+".name", p.GetName())...)
		}
		if p.GetName() != "" && names[p.GetName()] {
			bad = append(bad, object.Fault{Path: at + ".name", Description: fmt.Sprintf("%q is there twice", p.GetName())})
		}
		if n := (number{p.GetPort(), p.GetProtocol()}); numbers[n] {
			bad = append(bad, object.Fault{Path: at + ".port", Description: fmt.Sprintf("%d/%s is there twice", n.port,
				n.protocol)})
		}
		bad = append(bad, targetFaults(at+".targetPort", p.GetTargetPort())...)
		names[p.GetName()], numbers[number{p.GetPort(), p.GetProtocol()}] = true, true
	}
	return bad
}

// targetFaults returns what is wrong with the port of pods that a service leads to.
func targetFaults(path string, v *structpb.Value) (bad []object.Fault) {
	switch target := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if n := target.NumberValue; n < 1 || n > 65535 || n != math.Trunc(n) {
			bad = append(bad, object.Fault{Path: path, Description: "must be a port number, 1 to 65535"})
		}
	case *structpb.Value_StringValue:
		for _, why := range validation.IsValidPortName(target.StringValue) {
			bad = append(bad, object.Fault{Path: path, Description: why})
		}
	}
	return bad
}

func affinityFaults(spec *schedulingv1.ServiceSpec) []object.Fault {
	switch a := spec.GetSessionAffinity(); {
	case a != noAffinity && a != plan.ClientIP:
		return []object.Fault{{
			Path: "spec.sessionAffinity", Description: fmt.Sprintf("is %q, must be %s or %s", a, noAffinity, plan.ClientIP),
		}}
	case a == noAffinity && spec.GetSessionAffinityConfig() != nil:
		return []object.Fault{{
			Path:        "spec.sessionAffinityConfig",
			Description: "must be left out unless spec.sessionAffinity is " + plan.ClientIP,
		}}
	}
	return nil
}

func externalNameFaults(name string) (bad []object.Fault) {
	const path = "spec.externalName"
	if name == "" {
		return []object.Fault{{Path: path, Description: "must be given if spec.type is " + plan.ExternalName}}
	}
	for _, why := range validation.IsDNS1123Subdomain(strings.TrimSuffix(name, ".")) {
		bad = append(bad, object.Fault{Path: path, Description: why})
	}
	return bad
}

// admitService has a service keep its address, refuses one that it cannot have, and says what of it is not in force.
func (t *Tables) admitService(w *resource.Write[*schedulingv1.Service]) error {
	if w.Deletes() {
		return nil
	}
	keepAddress(w.Old, w.New)
	dropUnfit(w.Old, w.New)
	bad := addressFaults(t.cfg.ServiceRange, w.Old, w.New)
	bad = append(bad, newRoutingFaults(w.Old, w.New)...)
	// Checked here, where it is known whether the service is headless.
	if spec := w.New.GetSpec(); len(spec.GetPorts()) == 0 && plan.HasAddress(w.New) &&
		spec.GetClusterIp() != plan.Headless {
		bad = append(bad, object.Fault{Path: "spec.ports", Description: "must have at least one"})
	}
	if w.Creates() { // its name is one of DNS, and begins those of variables
		for _, why := range validation.IsDNS1035Label(w.New.GetMetadata().GetName()) {
			bad = append(bad, object.Fault{Path: "metadata.name", Description: why})
		}
	}
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	if w.Creates() || !proto.Equal(w.Old.GetSpec(), w.New.GetSpec()) {
		for _, text := range serviceNotInForce(w.New) {
			w.Warn(text)
		}
	}
	return nil
}

// keepAddress gives a service that does not say its address the one that it has, and takes from one that becomes
// another name of a host the address that it had. Manifests have no address.
func keepAddress(old, s *schedulingv1.Service) {
	is, was := s.GetSpec(), old.GetSpec().GetClusterIp()
	switch {
	case old == nil:
	case plan.HasAddress(s) && plan.HasAddress(old) && is.GetClusterIp() == "":
		is.ClusterIp, is.ClusterIps = was, nil
	case !plan.HasAddress(s) && plan.HasAddress(old) && is.GetClusterIp() == was:
		is.ClusterIp, is.ClusterIps = "", nil
	}
	mirrorAddress(is)
}

// addressFaults returns what is wrong with the address of a service. old is nil for a new one.
func addressFaults(r netip.Prefix, old, s *schedulingv1.Service) []object.Fault {
	address, was := s.GetSpec().GetClusterIp(), old.GetSpec().GetClusterIp()
	fault := func(format string, args ...any) []object.Fault {
		return []object.Fault{object.Faultf(clusterIPPath, format, args...)}
	}
	switch {
	case !plan.HasAddress(s) && address != "":
		return fault("must be left out if spec.type is %s", plan.ExternalName)
	case address == plan.Headless && s.GetSpec().GetType() != "ClusterIP":
		return fault("must not be %s if spec.type is %s", plan.Headless, s.GetSpec().GetType())
	case address == "", address == was:
		return nil // also of a service that was stored before there was a range
	case was != "" && plan.HasAddress(old) && plan.HasAddress(s):
		return fault("cannot be changed from %s to %s", was, address)
	case address == plan.Headless:
		return nil
	}
	if why := plan.AddressFault(r, address); why != "" {
		return fault("%s", why)
	}
	return nil
}

// external reports whether a service can have policies for connections from outside of the cluster.
func external(spec *schedulingv1.ServiceSpec) bool {
	return spec.GetType() == "NodePort" || spec.GetType() == "LoadBalancer" ||
		spec.GetType() == "ClusterIP" && len(spec.GetExternalIps()) > 0
}

// dropUnfit takes from a service what its former type allowed and its new one does not, as Kubernetes does: a change of
// the type need not name these fields.
func dropUnfit(old, s *schedulingv1.Service) {
	is, was := s.GetSpec(), old.GetSpec()
	if external(was) && !external(is) && is.GetExternalTrafficPolicy() == was.GetExternalTrafficPolicy() {
		is.ExternalTrafficPolicy = ""
	}
	if old == nil || !plan.HasAddress(old) || plan.HasAddress(s) {
		return
	}
	if slices.Equal(is.GetIpFamilies(), was.GetIpFamilies()) {
		is.IpFamilies = nil
	}
	if is.GetIpFamilyPolicy() == was.GetIpFamilyPolicy() {
		is.IpFamilyPolicy = nil
	}
}

// newRoutingFaults returns the routingFaults of a service that it did not have before: what earlier versions stored
// must not prevent other changes. old is nil for a new one.
func newRoutingFaults(old, s *schedulingv1.Service) []object.Fault {
	stored := routingFaults(old.GetSpec())
	return slices.DeleteFunc(routingFaults(s.GetSpec()), func(f object.Fault) bool { return slices.Contains(stored, f) })
}

const clusterPolicy, localPolicy = "Cluster", "Local"

// routingFaults returns what is wrong with the fields that say which connections are led where. They have no effect
// yet, but a manifest that Kubernetes refuses is refused. Source: Kubernetes, pkg/apis/core/validation and
// pkg/registry/core/service/storage.
func routingFaults(spec *schedulingv1.ServiceSpec) (bad []object.Fault) {
	if spec == nil {
		return nil
	}
	of := func(path, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad = append(bad, object.Faultf(path, "must be %s, not %q", strings.Join(allowed, " or "), value))
		}
	}
	if spec.InternalTrafficPolicy != nil {
		of("spec.internalTrafficPolicy", spec.GetInternalTrafficPolicy(), clusterPolicy, localPolicy)
	}
	if p := spec.GetExternalTrafficPolicy(); p != "" {
		const path = "spec.externalTrafficPolicy"
		if of(path, p, clusterPolicy, localPolicy); !external(spec) {
			bad = append(bad, object.Faultf(path, "must be left out unless spec.type is NodePort or LoadBalancer, or there are "+
				"spec.externalIPs"))
		}
	}
	return append(bad, familyFaults(spec)...)
}

const (
	singleStack, preferDualStack, requireDualStack = "SingleStack", "PreferDualStack", "RequireDualStack"
	ipv4, ipv6                                     = "IPv4", "IPv6"
)

// familyFaults returns what is wrong with the families of a service's addresses.
func familyFaults(spec *schedulingv1.ServiceSpec) (bad []object.Fault) {
	const familiesPath, policyPath = "spec.ipFamilies", "spec.ipFamilyPolicy"
	fault := func(path, format string, args ...any) { bad = append(bad, object.Faultf(path, format, args...)) }
	families := spec.GetIpFamilies()
	if spec.GetType() == plan.ExternalName {
		if len(families) > 0 {
			fault(familiesPath, "must be left out if spec.type is %s", plan.ExternalName)
		}
		if spec.IpFamilyPolicy != nil {
			fault(policyPath, "must be left out if spec.type is %s", plan.ExternalName)
		}
		return bad
	}
	policies := []string{singleStack, preferDualStack, requireDualStack}
	policy := spec.GetIpFamilyPolicy()
	if spec.IpFamilyPolicy != nil && !slices.Contains(policies, policy) {
		fault(policyPath, "must be %s, not %q", strings.Join(policies, " or "), policy)
	}
	for i, f := range families {
		switch at := fmt.Sprintf("%s[%d]", familiesPath, i); {
		case f != ipv4 && f != ipv6:
			fault(at, "must be %s or %s, not %q", ipv4, ipv6, f)
		case slices.Contains(families[:i], f):
			fault(at, "%s is there twice", f)
		}
	}
	if len(families) > 2 {
		fault(familiesPath, "must be no more than 2")
	}
	if len(families) == 2 && (policy == singleStack || spec.IpFamilyPolicy == nil) {
		fault(policyPath, "must be %s or %s if there are two families", preferDualStack, requireDualStack)
	}
	return bad
}

// serviceNotInForce returns warnings about the fields of a service that are stored and have no effect.
func serviceNotInForce(s *schedulingv1.Service) (warnings []string) {
	spec := s.GetSpec()
	warn := func(is bool, text string) {
		if is {
			warnings = append(warnings, text)
		}
	}
	const stored = ": stored and not in force yet"
	onNodes := spec.GetType() == "NodePort" || spec.GetType() == "LoadBalancer"
	warn(onNodes, "spec.type: "+spec.GetType()+" is treated as ClusterIP: no port of the nodes is opened")
	for i, p := range spec.GetPorts() {
		warn(p.GetProtocol() == "SCTP", fmt.Sprintf("spec.ports[%d].protocol: connections of SCTP are not led to pods yet",
			i))
		warn(!onNodes && p.GetNodePort() > 0, fmt.Sprintf("spec.ports[%d].nodePort%s", i, stored))
	}
	warn(len(spec.GetExternalIps()) > 0, "spec.externalIPs"+stored)
	warn(spec.GetInternalTrafficPolicy() == localPolicy, "spec.internalTrafficPolicy"+stored)
	warn(spec.GetExternalTrafficPolicy() == localPolicy, "spec.externalTrafficPolicy"+stored)
	warn(slices.Contains(spec.GetIpFamilies(), ipv6), "spec.ipFamilies"+stored+": services have IPv4 addresses")
	warn(strings.HasSuffix(spec.GetIpFamilyPolicy(), "DualStack"), "spec.ipFamilyPolicy"+stored)
	warn(spec.GetClusterIp() == plan.Headless && spec.GetSessionAffinity() == plan.ClientIP,
		"spec.sessionAffinity: has no effect on a service without an address")
	warn(plan.HasAddress(s) && spec.GetExternalName() != "",
		"spec.externalName: has no effect unless spec.type is "+plan.ExternalName)
	return warnings
}

func claimsOfService(s *schedulingv1.Service) []resource.Claim {
	return []resource.Claim{{What: "clusterIP", Value: plan.AddressOf(s), Path: clusterIPPath}}
}

// chooseAddress gives a service a free address if it lacks one.
func (t *Tables) chooseAddress(s *schedulingv1.Service) (bool, error) {
	if !plan.LacksAddress(s) {
		return false, nil
	}
	a, ok := plan.FreeAddress(t.cfg.ServiceRange, rand.Uint32(), func(a netip.Addr) bool {
		return len(t.Services.ByIndex(byAddress, a.String())) > 0
	})
	if !ok {
		return false,
			rpcerr.TooMany(fmt.Sprintf("all addresses of the cluster's range for services, %s, are taken: delete a "+
				"service, or give one clusterIP %s", t.cfg.ServiceRange, plan.Headless), 0)
	}
	s.Spec.ClusterIp, s.Spec.ClusterIps = a.String(), []string{a.String()}
	return true, nil
}
