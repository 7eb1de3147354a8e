package discovery

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func at(host, address, version string, ready bool) Endpoint {
	return Endpoint{Service: "scheduler", Address: address, Host: host, Version: version, Ready: ready}
}

func view(list ...Endpoint) View {
	v := View{Endpoints: map[string][]Endpoint{}}
	for _, e := range list {
		v.Endpoints[e.Service] = append(v.Endpoints[e.Service], e)
	}
	return v
}

func TestTheNearestProcessIsTheReadyOneOfTheOwnHost(t *testing.T) {
	for _, c := range []struct {
		name   string
		have   View
		first  string // address
		others int
	}{
		{"all are ready", view(at("a", "10.0.0.1:1", "1.0.0", true), at("b", "10.0.0.2:1", "1.0.0", true),
			at("c", "10.0.0.3:1", "1.0.0", true)), "10.0.0.2:1", 2},
		{
			"the own is not ready", view(at("a", "10.0.0.1:1", "1.0.0", true), at("b", "10.0.0.2:1", "1.0.0", false)),
			"10.0.0.1:1", 1,
		},
		{
			"none is ready", view(at("a", "10.0.0.1:1", "1.0.0", false), at("b", "10.0.0.2:1", "1.0.0", false)),
			"10.0.0.2:1", 1,
		},
		{"there is none on the own host", view(at("a", "10.0.0.1:1", "1.0.0", true)), "10.0.0.1:1", 0},
	} {
		got := c.have.Nearest("scheduler", "b")
		if len(got) != 1+c.others || got[0].Address != c.first {
			t.Errorf("%s: %v, want first %s of %d", c.name, got, c.first, 1+c.others)
		}
	}
	if got := (View{}).Nearest("scheduler", "b"); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// Hosts without a process of a service do not all call the same one.
func TestCallersFromElsewhereAreSpread(t *testing.T) {
	v := view(at("a", "10.0.0.1:1", "1.0.0", true), at("b", "10.0.0.2:1", "1.0.0", true),
		at("c", "10.0.0.3:1", "1.0.0", true))
	first := map[string]int{}
	for _, host := range []string{"d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o"} {
		first[v.Nearest("scheduler", host)[0].Address]++
	}
	if len(first) != 3 {
		t.Errorf("12 hosts call %v first, want all three", first)
	}
}

func TestReplicasAreJudged(t *testing.T) {
	other := Endpoint{Service: "gateway", Address: "10.0.0.2:2", Host: "b", Version: "1.1.0", Ready: true}
	notReady := at("b", "10.0.0.2:1", "1.1.0", false)
	notReady.Reason = "etcd: no answer"
	lost := view(at("a", "10.0.0.1:1", "1.1.0", true))
	lost.Away = map[string][]Endpoint{"scheduler": {{
		Service: "scheduler", Address: "10.0.0.2:1", Host: "b", Version: "1.0.0", Reason: "no process runs there",
	}}}
	for _, c := range []struct {
		name string
		have View
		want Replicas
	}{
		{"none", View{}, Replicas{}},
		{
			"all as they should be", view(at("a", "10.0.0.1:1", "1.1.0", true), at("b", "10.0.0.2:1", "1.1.0", true), other),
			Replicas{Lowest: "1.1.0"},
		},
		{
			"during an update", view(at("a", "10.0.0.1:1", "1.10.0", true), at("b", "10.0.0.2:1", "1.9.0", true)),
			Replicas{Lowest: "1.9.0"},
		},
		{
			"one is not ready", view(at("a", "10.0.0.1:1", "1.1.0", true), notReady),
			Replicas{Lowest: "1.1.0", Lacks: map[string]string{"b": "etcd: no answer"}},
		},
		{
			"one is missing", view(at("a", "10.0.0.1:1", "1.1.0", true), other),
			Replicas{Lowest: "1.1.0", Lacks: map[string]string{"b": "no process runs there"}},
		},
		{
			"a host was lost that is not updated", lost,
			Replicas{Lowest: "1.0.0", Lacks: map[string]string{"b": "no process runs there"}},
		},
	} {
		if diff := cmp.Diff(c.want, c.have.Replicas("scheduler"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestWhatWasKnownLastIsOnTheDisk(t *testing.T) {
	v := view(at("a", "10.0.0.1:1", "1.1.0", true), at("b", "10.0.0.2:1", "1.0.0", false))
	v.Leaders = map[string]string{"scheduler": "10.0.0.1:1"}
	raw, err := encode(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(raw)
	if diff := cmp.Diff(v, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestAKeyThatIsNoEndpointIsRefused(t *testing.T) {
	for _, key := range []string{
		"", "/windlass/endpoints/", "/windlass/endpoints/scheduler",
		"/windlass/endpoints/scheduler/",
		"/windlass/endpoints//10.0.0.1:1",
	} {
		if e, err := parse([]byte(key), []byte("{}")); err == nil {
			t.Errorf("%q: is taken for %+v", key, e)
		}
	}
	if e, err := parse([]byte("/windlass/endpoints/scheduler/10.0.0.1:1"), []byte("no JSON")); err == nil {
		t.Errorf("a value that is no JSON is taken for %+v", e)
	}
}
