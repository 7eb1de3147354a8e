package plan

import (
	"fmt"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/podconfig"
)

// Hosts returns the file of hosts of a pod with an address: its own names, which are below domain if it has a
// subdomain, and those that it adds. A pod in the host's network has what the host's file says instead of its own
// names. Source: Kubernetes, pkg/kubelet/kubelet_pods.go.
func Hosts(pod *schedulingv1.Pod, address, domain, host string) string {
	spec := pod.GetSpec()
	var out strings.Builder
	if spec.GetHostNetwork() {
		out.WriteString(strings.TrimRight(host, "\n") + "\n")
	} else {
		name := Hostname(pod)
		names := name
		if sub := spec.GetSubdomain(); sub != "" {
			names = fmt.Sprintf("%s.%s.%s.svc.%s\t%s", name, sub, pod.GetMetadata().GetNamespace(), domain, name)
		}
		out.WriteString("# by Windlass\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
		fmt.Fprintf(&out, "%s\t%s\n", address, names)
	}
	aliases, _ := podconfig.Aliases("spec", spec)
	for _, a := range aliases {
		fmt.Fprintf(&out, "%s\t%s\n", a.IP, strings.Join(a.Names, "\t"))
	}
	return out.String()
}

// maxHostname is how long the name of a Linux host may be. Source: Kubernetes, which cuts names off there, too.
const maxHostname = 63

// Hostname returns the name of the host that a pod's containers take theirs for.
func Hostname(pod *schedulingv1.Pod) string {
	if name := pod.GetSpec().GetHostname(); name != "" {
		return name
	}
	name := pod.GetMetadata().GetName()
	return strings.TrimRight(name[:min(len(name), maxHostname)], "-.")
}
