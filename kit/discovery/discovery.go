// Package discovery is how the processes of a cluster of several hosts find each other: each announces its address in
// etcd under a lease, and each follows what the others announce and who leads which service. What was known last is on
// disk, so that a process finds the others also while etcd is away.
package discovery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/topology"
)

// Endpoint is what a process of a service announces.
type Endpoint struct {
	Service string `json:"-"`
	Address string `json:"-"` // host:port at which others reach it
	Host    string `json:"host"`
	Version string `json:"version"` // of the executable
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"` // why it is not ready
	// Gone is when it was last seen, of one in View.Away: up to an hour before it went, unless this process saw it go.
	Gone time.Time `json:"-"`
}

// Key returns the endpoint's key in etcd, which has a lease.
func (e Endpoint) Key() string { return topology.EndpointsOf(e.Service) + e.Address }

// lastSuffix ends the key under which an endpoint is remembered after it has gone.
const lastSuffix = "/last"

// last is what is remembered of an endpoint.
type last struct {
	Host    string    `json:"host"`
	Version string    `json:"version"`
	Seen    time.Time `json:"seen"` // up to an hour before it went
}

// parse reads an endpoint from its key and value in etcd.
func parse(key, value []byte) (Endpoint, error) {
	service, address, ok := strings.Cut(strings.TrimPrefix(string(key), topology.EndpointsPrefix), "/")
	if !ok || service == "" || address == "" {
		return Endpoint{}, fmt.Errorf("endpoint key %q: want %sSERVICE/ADDRESS", key, topology.EndpointsPrefix)
	}
	e := Endpoint{Service: service, Address: address}
	if err := json.Unmarshal(value, &e); err != nil {
		return Endpoint{}, fmt.Errorf("endpoint %s of %s: %w", address, service, err)
	}
	return e, nil
}

// View is where the services of a cluster run, and which of their processes lead. It must not be modified.
type View struct {
	Endpoints map[string][]Endpoint // by service, ordered by address
	Away      map[string][]Endpoint // those that ran within the last week, on hosts where none of the service runs now
	Leaders   map[string]string     // addresses by service
	Confirmed time.Time             // when it was last as in etcd; zero: it is what was on the disk
}

// Nearest returns the endpoints of a service in the order in which a process on host should call them: those that are
// ready first, of these the one on its own host, and the others in an order that differs from host to host.
func (v View) Nearest(service, host string) []Endpoint {
	out := slices.Clone(v.Endpoints[service])
	last := func(e Endpoint) int {
		if e.Ready {
			return 0
		}
		return 1
	}
	slices.SortFunc(out, func(a, b Endpoint) int {
		return cmp.Or(last(a)-last(b), cmp.Compare(a.distance(host), b.distance(host)),
			strings.Compare(a.Address, b.Address))
	})
	return out
}

// Addresses returns where processes of a service are: those of Nearest, then those on hosts that are away.
func (v View) Addresses(service, host string) (out []string) {
	for _, e := range slices.Concat(v.Nearest(service, host), v.Away[service]) {
		out = append(out, e.Address)
	}
	return out
}

// distance says how late a process on host calls the endpoint: 0 is its own host's. For others it is evenly distributed
// over pairs of a host and an address.
func (e Endpoint) distance(host string) uint32 {
	if e.Host == host {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(host + " " + e.Address))
	return max(h.Sum32(), 1)
}

// Hosts returns the names of the hosts on which processes of any service run, or ran within the last week, sorted.
func (v View) Hosts() []string {
	hosts := map[string]bool{}
	for _, all := range []map[string][]Endpoint{v.Endpoints, v.Away} {
		for _, list := range all {
			for _, e := range list {
				hosts[e.Host] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(hosts))
}

// Gateways returns the gateway of each host, also of hosts that are away.
func (v View) Gateways() map[string]Endpoint {
	out := map[string]Endpoint{}
	for _, e := range slices.Concat(v.Away[topology.Gateway], v.Endpoints[topology.Gateway]) {
		out[e.Host] = e
	}
	return out
}

// record is a View as it is on disk.
type record struct {
	Endpoints []saved           `json:"endpoints"`
	Leaders   map[string]string `json:"leaders,omitempty"`
}

type saved struct {
	Service string `json:"service"`
	Address string `json:"address"`
	Endpoint
}

func encode(v View) ([]byte, error) {
	r := record{Leaders: v.Leaders}
	for _, service := range slices.Sorted(maps.Keys(v.Endpoints)) {
		for _, e := range v.Endpoints[service] {
			r.Endpoints = append(r.Endpoints, saved{e.Service, e.Address, e})
		}
	}
	return json.MarshalIndent(r, "", "  ")
}

func decode(raw []byte) (View, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return View{}, err
	}
	v := View{Endpoints: map[string][]Endpoint{}, Leaders: r.Leaders}
	for _, s := range r.Endpoints {
		s.Endpoint.Service, s.Endpoint.Address = s.Service, s.Address
		v.Endpoints[s.Service] = append(v.Endpoints[s.Service], s.Endpoint)
	}
	return v, nil
}
