package discovery

import (
	"cmp"
	"slices"

	"github.com/Masterminds/semver/v3"
)

// Replicas is what the processes of a service on all hosts are like.
type Replicas struct {
	Lowest string            // lowest version of their executables, or of those that ran last; empty if there are none
	Lacks  map[string]string // what each host lacks: its process is not ready, or there is none
}

// Replicas returns what the processes of a service are like. Each host on which processes of any service run, or ran
// within the last week, should have one.
func (v View) Replicas(service string) Replicas {
	r := Replicas{Lacks: map[string]string{}}
	on := map[string]bool{}
	for _, e := range slices.Concat(v.Endpoints[service], v.Away[service]) {
		on[e.Host] = true
		if r.Lowest == "" || lower(e.Version, r.Lowest) {
			r.Lowest = e.Version
		}
		if !e.Ready {
			r.Lacks[e.Host] = cmp.Or(e.Reason, "it is not ready and gives no reason")
		}
	}
	for _, host := range v.Hosts() {
		if !on[host] {
			r.Lacks[host] = "no process runs there"
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
