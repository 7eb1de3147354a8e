package plan

import (
	"slices"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func TestCapabilities(t *testing.T) {
	tests := map[string]struct {
		set              string
		added            []string
		known            []string
		enabled, implied []string
		want             []string // enabled
		kept             string   // named by ImplicitlyEnabled
	}{
		"all by default":     {known: []string{"b", "a"}, want: []string{"a", "b"}},
		"all that are known": {set: "vCurrent", known: []string{"a", "b"}, want: []string{"a", "b"}},
		// stored by an earlier program
		"a set that is not known":   {set: "v4.11", known: []string{"a"}, want: []string{"a"}},
		"none":                      {set: "None", known: []string{"a", "b"}},
		"some":                      {set: "None", added: []string{"b"}, known: []string{"a", "b"}, want: []string{"b"}},
		"one that is not known yet": {set: "None", added: []string{"c"}, known: []string{"a"}},
		"what is on stays on": {
			set: "None", known: []string{"a", "b"}, enabled: []string{"b"}, want: []string{"b"}, kept: "b",
		},
		"also if the release does not know it": {
			known: []string{"a"}, enabled: []string{"a", "z"}, want: []string{"a", "z"},
		},
		"what an update implies": {
			set: "None", added: []string{"a"}, known: []string{"a", "b", "c"}, enabled: []string{"c"}, implied: []string{"b"},
			want: []string{"a", "b", "c"}, kept: "b, c",
		},
		"each once": {known: []string{"a", "a"}, enabled: []string{"a"}, implied: []string{"a"}, want: []string{"a"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec := &updatev1.Capabilities{BaselineCapabilitySet: tt.set, AdditionalEnabledCapabilities: tt.added}
			got := Capabilities(spec, tt.known, tt.enabled, tt.implied)
			if !slices.Equal(got.GetEnabledCapabilities(), tt.want) {
				t.Errorf("enabled %q, want %q", got.GetEnabledCapabilities(), tt.want)
			}
			again := Capabilities(spec, tt.known, got.GetEnabledCapabilities(), nil)
			if !slices.Equal(again.GetEnabledCapabilities(), tt.want) {
				t.Errorf("then %q, want %q", again.GetEnabledCapabilities(), tt.want)
			}
			c := ImplicitCondition(spec, got)
			if _, kept, _ := strings.Cut(c.GetMessage(), "could not be disabled: "); kept != tt.kept ||
				(c.GetStatus() == True) != (kept != "") {
				t.Errorf("condition %v, want %q", c, tt.kept)
			}
		})
	}
}

func TestImplied(t *testing.T) {
	ref := func(name string) *metav1.ObjectReference {
		return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: "n", Name: name}
	}
	next := []Capable{
		{ref("old"), []string{"b", "a"}}, {ref("new"), []string{"c"}}, {ref("other"), []string{"a"}},
	}
	if got, want := Implied([]*metav1.ObjectReference{ref("old"), ref("other")}, next), []string{"a", "b"}; !slices.Equal(
		got, want) {
		t.Errorf("Implied = %q, want %q", got, want)
	}
	if got := Implied(nil, next); len(got) > 0 {
		t.Errorf("a release that is the first one implies %q", got)
	}
}

func TestEnabled(t *testing.T) {
	for _, tt := range []struct {
		needs, enabled []string
		want           bool
	}{
		{nil, nil, true},
		{[]string{"a"}, nil, false},
		{[]string{"a"}, []string{"b", "a"}, true},
		{[]string{"a", "b"}, []string{"a"}, false},
	} {
		if got := Enabled(tt.needs, tt.enabled); got != tt.want {
			t.Errorf("Enabled(%q, %q) = %v", tt.needs, tt.enabled, got)
		}
	}
}

func TestWhatIsSaidOfCapabilities(t *testing.T) {
	present := &updatev1.CapabilitiesStatus{KnownCapabilities: []string{"a", "b"}, EnabledCapabilities: []string{"a"}}
	got := CapabilityWarnings(&updatev1.Capabilities{
		BaselineCapabilitySet: "None", AdditionalEnabledCapabilities: []string{"b", "c"},
	}, present)
	want := []string{
		`spec.capabilities.additionalEnabledCapabilities[1]: the present release has no capability "c": it is enabled when a release has it`,
		"spec.capabilities: The following capabilities could not be disabled: a",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for set, faulty := range map[string]bool{"": false, "None": false, "vCurrent": false, "v4.11": true, "none": true} {
		if f := CapabilityFaults(&updatev1.Capabilities{BaselineCapabilitySet: set}); len(f) > 0 != faulty {
			t.Errorf("%q: %v", set, f)
		}
	}
}
