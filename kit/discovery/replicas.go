package discovery

import (
	"cmp"
	"fmt"

	"github.com/Masterminds/semver/v3"
)

// Replicas is what the processes of a service on all hosts are like.
type Replicas struct {
	Lowest string // lowest version of their executables; empty if there are none
	Lacks  string // the first that is not ready, or the first host without one; empty if nothing is lacking
}

// Replicas returns what the processes of a service are like. Each host on which processes of any service are known
// should have one.
func (v View) Replicas(service string) Replicas {
	var r Replicas
	on := map[string]bool{}
	for _, e := range v.Endpoints[service] {
		on[e.Host] = true
		if r.Lowest == "" || lower(e.Version, r.Lowest) {
			r.Lowest = e.Version
		}
		if !e.Ready && r.Lacks == "" {
			r.Lacks = fmt.Sprintf("the process on host %s is not ready: %s", e.Host, cmp.Or(e.Reason, "it gives no reason"))
		}
	}
	for _, host := range v.Hosts() {
		if !on[host] && r.Lacks == "" {
			r.Lacks = fmt.Sprintf("no process runs on host %s", host)
		}
	}
	return r
}

// lower reports whether version a is before b. One that is none is before all others.
func lower(a, b string) bool {
	va, errA := semver.NewVersion(a)
	vb, errB := semver.NewVersion(b)
	if errA != nil || errB != nil {
		return errA != nil && (errB == nil || a < b)
	}
	return va.LessThan(vb)
}
