package plan

import (
	"slices"
	"strconv"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// noClusterIP is the address of a service without one.
const noClusterIP = "None"

// HasServiceLinks reports whether the containers of a pod get the variables of services.
func HasServiceLinks(pod *schedulingv1.Pod) bool {
	return pod.GetSpec().EnableServiceLinks == nil || pod.GetSpec().GetEnableServiceLinks()
}

// ServiceVariables returns the variables for the services of a pod's namespace that have an address, sorted by name;
// nil if the pod has no service links. They are for the base of Environment, so that variables of the container replace
// those of the same name. If two services have the same variable, that of the later name counts. Source: Kubernetes'
// pkg/kubelet/envvars, FromServices.
func ServiceVariables(pod *schedulingv1.Pod, services []*schedulingv1.ServiceEndpoints) []string {
	if !HasServiceLinks(pod) {
		return nil
	}
	services = slices.Clone(services)
	slices.SortFunc(services, func(a, b *schedulingv1.ServiceEndpoints) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	values := map[string]string{}
	for _, s := range services {
		if s.GetNamespace() == pod.GetMetadata().GetNamespace() && s.GetClusterIp() != "" &&
			s.GetClusterIp() != noClusterIP {
			addServiceVariables(values, s)
		}
	}
	var out []string
	for name, value := range values {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out
}

// addServiceVariables adds the variables of a service that has an address.
func addServiceVariables(values map[string]string, s *schedulingv1.ServiceEndpoints) {
	prefix, ip := variablePrefix(s.GetName()), s.GetClusterIp()
	values[prefix+"_SERVICE_HOST"] = ip
	for i, p := range s.GetPorts() {
		number, protocol := strconv.Itoa(int(p.GetPort())), p.GetProtocol()
		if protocol == "" {
			protocol = "TCP"
		}
		url := strings.ToLower(protocol) + "://" + ip + ":" + number // an IPv4 address
		if i == 0 {                                                  // the names from before services had several ports
			values[prefix+"_SERVICE_PORT"], values[prefix+"_PORT"] = number, url
		}
		if p.GetName() != "" {
			values[prefix+"_SERVICE_PORT_"+variablePrefix(p.GetName())] = number
		}
		link := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		values[link], values[link+"_PROTO"] = url, strings.ToLower(protocol)
		values[link+"_PORT"], values[link+"_ADDR"] = number, ip
	}
}

func variablePrefix(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
