package service

import (
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
)

// errHostsUnknown means that this process has not read from etcd yet which hosts there are.
var errHostsUnknown = errors.New("it is not known yet which there are")

// elsewhere returns the update-orchestrators of the other hosts: those that are ready first, and those that ran within
// the last week last, since the only copy of an image may be there. Otherwise the order is random, so that none that
// stalls is always before one that does not.
func elsewhere(p *serve.Process, host string) []release.Peer {
	view := p.Directory.View()
	list := slices.Concat(view.Endpoints[topology.UpdateOrchestrator], view.Away[topology.UpdateOrchestrator])
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	slices.SortStableFunc(list, func(a, b discovery.Endpoint) int { return rank(a) - rank(b) })
	var out []release.Peer
	for _, e := range list {
		if e.Host != host {
			out = append(out, release.Peer{Name: "host " + e.Host, Dial: func() (release.PeerConn, error) {
				return p.DialAt(topology.UpdateOrchestrator, e.Address)
			}})
		}
	}
	if view.Confirmed.IsZero() {
		out = append(out, release.Peer{Name: "other hosts", Dial: func() (release.PeerConn, error) {
			return nil, errHostsUnknown
		}})
	}
	return out
}

func rank(e discovery.Endpoint) int {
	if e.Ready {
		return 0
	}
	return 1
}
