package plan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// placed reads "a b* -" as: index 0 in domain a, index 1 in b with nothing but a machine that goes, index 2 empty.
func placed(at ...string) map[int]indexDomain {
	out := map[int]indexDomain{}
	for i, s := range at {
		switch {
		case s == "-":
		case len(s) == 2:
			out[i] = indexDomain{Domain: Domain(s[:1]), OnlyDeleting: true}
		default:
			out[i] = indexDomain{Domain: Domain(s)}
		}
	}
	return out
}

func TestIndexesToFailureDomains(t *testing.T) {
	for name, tt := range map[string]struct {
		domains  []Domain
		replicas int
		have     map[int]indexDomain
		want     domainOf
	}{
		"three in three": {[]Domain{"a", "b", "c"}, 3, nil, domainOf{0: "a", 1: "b", 2: "c"}},
		"three in two begin again with the first": {[]Domain{"a", "b"}, 3, nil, domainOf{0: "a", 1: "b", 2: "a"}},
		"five in three": {[]Domain{"a", "b", "c"}, 5, nil, domainOf{0: "a", 1: "b", 2: "c", 3: "a", 4: "b"}},
		"no domains":    {nil, 3, placed("", ""), domainOf{0: "", 1: "", 2: ""}},
		"an index in a valid domain stays, whatever the order": {
			[]Domain{"a", "b", "c"},
			3, placed("c", "a", "b"),
			domainOf{0: "c", 1: "a", 2: "b"},
		},
		"aab stays aab": {
			[]Domain{"a", "b"},
			3, placed("a", "a", "b"),
			domainOf{0: "a", 1: "a", 2: "b"},
		},
		"an earlier name moves no index": {
			[]Domain{"a", "b", "c", "d"},
			3, placed("b", "c", "d"),
			domainOf{0: "b", 1: "c", 2: "d"},
		},
		"a new domain takes one of two": {
			[]Domain{"a", "b", "c"},
			3, placed("a", "b", "a"),
			domainOf{0: "a", 1: "b", 2: "c"},
		},
		"all in one are spread": {
			[]Domain{"a", "b", "c"},
			3, placed("a", "a", "a"),
			domainOf{0: "a", 1: "b", 2: "c"},
		},
		"a domain that vanished is left": {
			[]Domain{"a", "b"},
			3, placed("a", "b", "c"),
			domainOf{0: "a", 1: "b", 2: "a"},
		},
		"a missing index is filled where it was": {
			[]Domain{"a", "b", "c"},
			3, placed("a", "-", "c"),
			domainOf{0: "a", 1: "b", 2: "c"},
		},
		"indexes need not begin at 0": {
			[]Domain{"a", "b", "c"},
			3,
			map[int]indexDomain{3: {Domain: "a"}, 4: {Domain: "b"}, 5: {Domain: "c"}},
			domainOf{3: "a", 4: "b", 5: "c"},
		},
		"one index far off and two new ones": {
			[]Domain{"a", "b", "c"},
			3,
			map[int]indexDomain{7: {Domain: "a"}},
			domainOf{7: "a", 1: "b", 2: "c"},
		},
		"an index that goes gives up its claim first": {
			[]Domain{"a", "b"},
			3, placed("a*", "a", "a"),
			domainOf{0: "b", 1: "a", 2: "a"},
		},
		"an index that goes is replaced where it was": {
			[]Domain{"a", "b", "c"},
			3, placed("a", "b*", "c"),
			domainOf{0: "a", 1: "b", 2: "c"},
		},
		"what goes does not crowd out what stays": {
			[]Domain{"a", "b"},
			3, placed("b*", "b", "-"),
			domainOf{0: "a", 1: "b", 2: "a"},
		},
		"a domain that a machine which goes holds comes after one that none holds": {
			[]Domain{"a", "b", "c", "d"},
			3, placed("a", "b", "d*"),
			domainOf{0: "a", 1: "b", 2: "c"},
		},
		"a domain that is added to two full ones is used": {
			[]Domain{"a", "b", "c", "d"},
			5, placed("a", "b", "c", "a", "b"),
			domainOf{0: "a", 1: "b", 2: "c", 3: "a", 4: "d"},
		},
		"adding domains to a cluster that had none moves": {
			[]Domain{"a", "b"},
			3, placed("z", "z", "z"),
			domainOf{0: "a", 1: "b", 2: "a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, mapDomains(tt.domains, tt.replicas, tt.have)); diff != "" {
				t.Errorf("MapDomains (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPromisesOfTheMapping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := []Domain{"a", "b", "c", "d", "e"}
		domains := slices.Clone(all[:rapid.IntRange(1, 5).Draw(t, "domains")])
		replicas := rapid.SampledFrom([]int{3, 5}).Draw(t, "replicas")
		have := map[int]indexDomain{}
		for range rapid.IntRange(0, replicas).Draw(t, "machines") {
			have[rapid.IntRange(0, 8).Draw(t, "index")] = indexDomain{
				Domain:       rapid.SampledFrom(all).Draw(t, "domain"),
				OnlyDeleting: rapid.IntRange(0, 4).Draw(t, "goes") == 0,
			}
		}
		m := mapDomains(domains, replicas, have)
		if len(m) != replicas {
			t.Fatalf("%d indexes, want %d: %v", len(m), replicas, m)
		}
		share := (replicas + len(domains) - 1) / len(domains)
		load := map[Domain]int{}
		for i, d := range m {
			load[d]++
			if !slices.Contains(domains, d) {
				t.Fatalf("index %d is in %s, which is not listed", i, d)
			}
		}
		for d, n := range load {
			if n > share {
				t.Fatalf("domain %s holds %d, more than its share of %d: %v", d, n, share, m)
			}
		}
		for _, d := range domains {
			if load[d] < replicas/len(domains) {
				t.Fatalf("domain %s holds %d, less than its share of %d: %v", d, load[d], replicas/len(domains), m)
			}
		}
		held := map[Domain]int{}
		for i, p := range have {
			if _, ok := m[i]; !ok {
				t.Fatalf("index %d is in use and not mapped", i)
			}
			if !p.OnlyDeleting {
				held[p.Domain]++
			}
		}
		for i, p := range have {
			if !p.OnlyDeleting && m[i] != p.Domain && slices.Contains(domains, p.Domain) &&
				held[p.Domain] <= replicas/len(domains) {
				t.Fatalf("index %d moved from %s to %s though its domain is not over-full: %v of %v", i, p.Domain, m[i], m, have)
			}
		}
		settled := map[int]indexDomain{}
		for i, d := range m {
			settled[i] = indexDomain{Domain: d}
		}
		if diff := cmp.Diff(m, mapDomains(domains, replicas, settled)); diff != "" {
			t.Fatalf("a second round moves machines again (-first +second):\n%s", diff)
		}
	})
}

func template(t testing.TB, domains, spec string) *machinev1.OpenShiftMachineV1Beta1MachineTemplate {
	t.Helper()
	out := &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
		FailureDomains: &structpb.Struct{},
		Spec:           &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: &structpb.Struct{}}},
	}
	for text, into := range map[string]*structpb.Struct{domains: out.FailureDomains, spec: out.Spec.ProviderSpec.Value} {
		if err := into.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestDomainsInAProviderSpec(t *testing.T) {
	for name, tt := range map[string]struct {
		domains, spec string
		fields        map[string]string
		list          []Domain
		injected      string // the last domain into the spec
	}{
		"a zone beside the rest": {
			`{"platform":"Local","local":[{"zone":"rack-b"},{"zone":"rack-a"},{"zone":"rack-a"}]}`, `{"kind":"K","zone":"x"}`,
			nil,
			[]Domain{`{"zone":"rack-a"}`, `{"zone":"rack-b"}`},
			`{"kind":"K","zone":"rack-b"}`,
		},
		"a zone at another path": {
			`{"platform":"Local","local":[{"zone":"rack-a"}]}`, `{"kind":"K"}`,
			map[string]string{"zone": "where.rack"},
			[]Domain{`{"zone":"rack-a"}`},
			`{"kind":"K","where":{"rack":"rack-a"}}`,
		},
		"a nested setting keeps its neighbours": {
			`{"platform":"AWS","aws":[{"placement":{"availabilityZone":"z1"}}]}`,
			`{"placement":{"region":"r","availabilityZone":"z0"}}`, nil,
			[]Domain{`{"placement":{"availabilityZone":"z1"}}`},
			`{"placement":{"availabilityZone":"z1","region":"r"}}`,
		},
		"a subnet of AWS is one setting": {
			`{"platform":"AWS","aws":[{"subnet":{"type":"ID","id":"s1"}}]}`,
			`{"subnet":{"filters":[{"name":"tag:Name","values":["x"]}]}}`, nil,
			[]Domain{`{"subnet":{"id":"s1"}}`},
			`{"subnet":{"id":"s1"}}`,
		},
		"a setting that is left out comes from the template": {
			`{"platform":"Azure","azure":[{"zone":"1","subnet":"s1"},{"zone":"2"}]}`, `{"subnet":"s0"}`, nil,
			[]Domain{`{"subnet":"s0","zone":"2"}`, `{"subnet":"s1","zone":"1"}`},
			`{"subnet":"s1","zone":"1"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := template(t, tt.domains, tt.spec)
			if bad := DomainFaults(tmpl.FailureDomains, "x"); bad != nil {
				t.Fatalf("DomainFaults = %v", bad)
			}
			d := parseDomains(tmpl, tt.fields)
			if diff := cmp.Diff(tt.list, d.List()); diff != "" {
				t.Fatalf("List (-want +got):\n%s", diff)
			}
			last := d.List()[len(d.List())-1]
			got := d.Inject(tmpl.Spec.ProviderSpec.Value, last)
			want := &structpb.Struct{}
			if err := want.UnmarshalJSON([]byte(tt.injected)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.AsMap(), got.AsMap()); diff != "" {
				t.Errorf("Inject (-want +got):\n%s", diff)
			}
			if of := d.Of(got); of != last {
				t.Errorf("Of = %s, want %s", of, last)
			}
		})
	}
}

func TestFaultsOfFailureDomains(t *testing.T) {
	for name, tt := range map[string]struct {
		domains string
		field   string
	}{
		"an unknown platform":       {`{"platform":"Moon"}`, "fd.platform"},
		"no platform":               {`{"local":[{"zone":"a"}]}`, "fd.platform"},
		"no list":                   {`{"platform":"Local"}`, "fd.local"},
		"an empty list":             {`{"platform":"Local","local":[]}`, "fd.local"},
		"another platform's list":   {`{"platform":"Local","local":[{"zone":"a"}],"aws":[]}`, "fd.aws"},
		"a domain that is a string": {`{"platform":"Local","local":["a"]}`, "fd.local[0]"},
		"vSphere has none":          {`{"platform":"VSphere","vsphere":[{"name":"a"}]}`, "fd"},
		"an unknown setting of AWS": {
			`{"platform":"AWS","aws":[{"placement":{"availabilityzone":"a"}}]}`,
			"fd.aws[0].placement.availabilityzone",
		},
		"an unknown setting of the inventory": {
			`{"platform":"Inventory","inventory":[{"zone":"a"},{"availabilityZone":"b"}]}`,
			"fd.inventory[1].availabilityZone",
		},
		"an empty zone of the inventory": {
			`{"platform":"Inventory","inventory":[{"zone":""}]}`, "fd.inventory[0].zone",
		},
		"a zone of Azure that is a number": {`{"platform":"Azure","azure":[{"zone":1}]}`, "fd.azure[0].zone"},
		"a subnet of AWS without its type": {
			`{"platform":"AWS","aws":[{"subnet":{"id":"s"}}]}`,
			"fd.aws[0].subnet.type",
		},
		"a subnet of AWS of another type": {
			`{"platform":"AWS","aws":[{"subnet":{"type":"ARN","arn":"s","id":"s"}}]}`,
			"fd.aws[0].subnet.id",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad := DomainFaults(template(t, tt.domains, `{}`).FailureDomains, "fd")
			if len(bad) != 1 || bad[0].Path != tt.field {
				t.Errorf("DomainFaults = %v, want one at %s", bad, tt.field)
			}
		})
	}
}

func Example_mapDomains() {
	fmt.Println(mapDomains([]Domain{"a", "b"}, 3, nil))
	// Output: map[0:a 1:b 2:a]
}

func TestDomainsAreOfThePlatformOfTheProviderSpec(t *testing.T) {
	for name, tt := range map[string]struct{ kind, platform, want string }{
		"the same":                            {"AzureMachineProviderSpec", "Azure", ""},
		"no kind of the documents":            {"LocalMachineProviderSpec", "Local", ""},
		"another":                             {"AWSMachineProviderConfig", "Azure", "d.platform"},
		"a platform that has no such domains": {"VSphereMachineProviderSpec", "AWS", "d"},
	} {
		t.Run(name, func(t *testing.T) {
			template := &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
				FailureDomains: &structpb.Struct{Fields: map[string]*structpb.Value{
					"platform": structpb.NewStringValue(tt.platform),
				}},
				Spec: &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: &structpb.Struct{
					Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue(tt.kind)},
				}}},
			}
			got := ""
			for _, f := range SpecDomainFaults(template, "d") {
				got += f.Path
			}
			if got != tt.want {
				t.Errorf("fault at %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheDomainOfASpecIsObservedWithoutAList(t *testing.T) {
	for spec, want := range map[string]Domain{
		`{"kind":"AWSMachineProviderConfig","placement":{"region":"r","availabilityZone":"a"},"subnet":{"id":"s"}}`: `{"placement":{"availabilityZone":"a"},"subnet":{"id":"s"}}`,
		`{"kind":"AzureMachineProviderSpec","zone":"1","subnet":"s","vnet":"v"}`:                                    `{"subnet":"s","zone":"1"}`,
		`{"kind":"VSphereMachineProviderSpec","template":"t"}`:                                                      "",
		`{"kind":"AzureMachineProviderSpec","vnet":"v"}`:                                                            "",
	} {
		s := &structpb.Struct{}
		if err := s.UnmarshalJSON([]byte(spec)); err != nil {
			t.Fatal(err)
		}
		if got := (domainList{}).Observed(s); got != want {
			t.Errorf("domain of %s = %q, want %q", spec, got, want)
		}
	}
}
