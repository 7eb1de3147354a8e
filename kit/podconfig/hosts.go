package podconfig

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/untyped"
)

// Alias is an entry of a pod's file of hosts.
type Alias struct {
	IP    netip.Addr
	Names []string
}

// Aliases returns the valid entries that a pod adds to its file of hosts, and what is wrong with others.
func Aliases(path string, spec *schedulingv1.PodSpec) (out []Alias, faults []object.Fault) {
	r := &untyped.Reader{}
	for i, s := range spec.GetHostAliases() {
		at, faultsBefore := fmt.Sprintf("%s.hostAliases[%d]", path, i), len(r.Faults)
		r.Only(at, s, "ip", "hostnames")
		a := Alias{Names: r.Texts(at, s, "hostnames")}
		var err error
		if a.IP, err = netip.ParseAddr(r.Text(at, s, "ip")); err != nil {
			r.Fault(untyped.Join(at, "ip"), "must be an IP address")
		}
		for j, name := range a.Names {
			for _, why := range validation.IsDNS1123Subdomain(name) {
				r.Fault(fmt.Sprintf("%s.hostnames[%d]", at, j), "%s", why)
			}
		}
		if len(r.Faults) == faultsBefore {
			out = append(out, a)
		}
	}
	return out, r.Faults
}
