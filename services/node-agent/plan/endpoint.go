package plan

import (
	"net/netip"
	"time"
)

// Endpoint is a pod behind one port of a service.
type Endpoint struct {
	Pod     string         // identifies the pod and its address
	Address netip.AddrPort // port 0: the pod does not have the port
	Serving bool           // new connections may be led to it
}

// Affinity is where the last connection of a client was led. The zero value: it had none.
type Affinity struct {
	Pod  string
	Last time.Time
}

// EndpointView is what the choice of a pod for a connection depends on.
type EndpointView struct {
	Now       time.Time
	Endpoints []Endpoint
	Turn      uint          // increases by one with each connection; its first value is random
	Affinity  time.Duration // how long a client is led to the same pod after its last connection; 0: not at all
	Client    Affinity
}

// ChooseEndpoints returns the indexes of the endpoints to try for a connection, the preferred one first: all that serve
// and have the port, each once. Turns are round-robin; a client with an affinity to a pod that serves gets that first.
func ChooseEndpoints(v EndpointView) []int {
	var out []int
	for i, e := range v.Endpoints {
		if e.Serving && e.Address.Port() != 0 {
			out = append(out, i)
		}
	}
	if len(out) == 0 {
		return nil
	}
	turn := int(v.Turn % uint(len(out)))
	if v.Client.Pod != "" && v.Now.Sub(v.Client.Last) < v.Affinity {
		for n, i := range out {
			if v.Endpoints[i].Pod == v.Client.Pod {
				turn = n
			}
		}
	}
	return append(out[turn:len(out):len(out)], out[:turn]...)
}

// HasEndpoint reports whether a pod is among the endpoints, serving or not. Connections that are open are closed when
// it is not.
func HasEndpoint(endpoints []Endpoint, pod string) bool {
	for _, e := range endpoints {
		if e.Pod == pod {
			return true
		}
	}
	return false
}
