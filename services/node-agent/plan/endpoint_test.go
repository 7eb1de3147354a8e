package plan

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestChooseEndpoints(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := netip.MustParseAddrPort("127.240.0.1:80")
	a, b, c := Endpoint{"a", at, true}, Endpoint{"b", at, true}, Endpoint{"c", at, true}
	ends := Endpoint{"b", at, false}
	noPort := Endpoint{"b", netip.AddrPortFrom(at.Addr(), 0), true}
	toB := Affinity{"b", now.Add(-time.Minute)}
	for what, tc := range map[string]struct {
		view EndpointView
		want []int
	}{
		"no endpoint":                         {EndpointView{}, nil},
		"none that serves":                    {EndpointView{Endpoints: []Endpoint{ends}}, nil},
		"the first turn":                      {EndpointView{Endpoints: []Endpoint{a, b, c}}, []int{0, 1, 2}},
		"the next turn":                       {EndpointView{Endpoints: []Endpoint{a, b, c}, Turn: 1}, []int{1, 2, 0}},
		"the turns go round":                  {EndpointView{Endpoints: []Endpoint{a, b, c}, Turn: 3}, []int{0, 1, 2}},
		"one that stopped serving is not led": {EndpointView{Endpoints: []Endpoint{a, ends, c}, Turn: 1}, []int{2, 0}},
		"one without the port is not led":     {EndpointView{Endpoints: []Endpoint{a, noPort, c}, Turn: 1}, []int{2, 0}},
		"a client is led to its pod": {
			EndpointView{Now: now, Endpoints: []Endpoint{a, b, c}, Turn: 2, Affinity: time.Hour, Client: toB}, []int{1, 2, 0},
		},
		"without affinity it is not": {
			EndpointView{Now: now, Endpoints: []Endpoint{a, b, c}, Turn: 2, Client: toB}, []int{2, 0, 1},
		},
		"affinity ends after its time": {
			EndpointView{Now: now, Endpoints: []Endpoint{a, b, c}, Turn: 2, Affinity: time.Minute, Client: toB}, []int{2, 0, 1},
		},
		"affinity to a pod that does not serve does not count": {
			EndpointView{Now: now, Endpoints: []Endpoint{a, ends, c}, Turn: 1, Affinity: time.Hour, Client: toB}, []int{2, 0},
		},
	} {
		t.Run(what, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ChooseEndpoints(tc.view)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryServingEndpointIsTriedOnceAndGetsItsShare(t *testing.T) {
	for range 1000 {
		v := EndpointView{Turn: uint(rand.N(1000))}
		serving := 0
		for i := range rand.N(6) {
			e := Endpoint{Pod: strconv.Itoa(i), Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127}), uint16(rand.N(2)))}
			if e.Serving = rand.N(2) == 0; e.Serving && e.Address.Port() > 0 {
				serving++
			}
			v.Endpoints = append(v.Endpoints, e)
		}
		first := map[int]int{}
		for range 3 * serving {
			got := ChooseEndpoints(v)
			first[got[0]]++
			v.Turn++
			if slices.Sort(got); len(slices.Compact(got)) != serving {
				t.Fatalf("%+v: %v, want %d", v, got, serving)
			}
		}
		for i, n := range first {
			if n != 3 || !v.Endpoints[i].Serving {
				t.Fatalf("%+v: endpoint %d was first %d times", v, i, n)
			}
		}
	}
}
