package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// What a resolv.conf cannot have is refused by the path of its field.
func TestNamesOfAResolverAreChecked(t *testing.T) {
	for what, c := range map[string]struct {
		spec string
		bad  []string
	}{
		"the usual": {spec: `{"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"], "searches": ["a.example", "b.", ".", "_c.example"],
			"options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}}`},
		"another policy":       {`{"dnsPolicy": "First"}`, []string{"spec.dnsPolicy"}},
		"None without servers": {`{"dnsPolicy": "None"}`, []string{"spec.dnsConfig.nameservers"}},
		"a name for a server": {
			`{"dnsConfig": {"nameservers": ["ns.example"]}}`,
			[]string{"spec.dnsConfig.nameservers[0]"},
		},
		"a number for a server": {`{"dnsConfig": {"nameservers": [1]}}`, []string{
			"spec.dnsConfig.nameservers[0]",
			"spec.dnsConfig.nameservers[0]",
		}},
		"no list": {
			`{"dnsConfig": {"nameservers": "192.0.2.1", "searches": "a", "options": "b"}}`,
			[]string{"spec.dnsConfig.nameservers", "spec.dnsConfig.searches", "spec.dnsConfig.options"},
		},
		"four servers": {
			`{"dnsConfig": {"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]}}`,
			[]string{"spec.dnsConfig.nameservers"},
		},
		"fields that there are not": {
			`{"dnsConfig": {"nameserver": ["192.0.2.1"], "search": [], "options": [{"name": "a", "values": "1"}, {}]}}`,
			[]string{
				"spec.dnsConfig.nameserver", "spec.dnsConfig.search", "spec.dnsConfig.options[0].values",
				"spec.dnsConfig.options[1].name",
			},
		},
		"a line break in a name": {
			`{"dnsConfig": {"searches": ["a\noptions debug"]}}`,
			[]string{"spec.dnsConfig.searches[0]"},
		},
		"a line break in options": {
			`{"dnsConfig": {"options": [{"name": "a\nb"}, {"name": "b", "value": "1 2"}, {"value": "1"}, {"name": "c", "value": 2}]}}`, []string{"spec.dnsConfig.options[0].name", "spec.dnsConfig.options[1].value", "spec.dnsConfig.options[2].name", "spec.dnsConfig.options[3].value"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			spec := &schedulingv1.PodSpec{}
			if err := manifest.Decode([]byte(c.spec), spec); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range dnsFaults("spec", spec) {
				got = append(got, f.Path)
			}
			if diff := cmp.Diff(c.bad, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
