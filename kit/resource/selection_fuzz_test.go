package resource

import (
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	k8sfields "k8s.io/apimachinery/pkg/fields"
)

// FuzzSelection checks that a selector that is parsed and printed selects the same objects.
func FuzzSelection(f *testing.F) {
	for _, seed := range [][2]string{
		{"role=worker,zone in (a,b),!gone,count>3,x!=y,z notin (),a==b", "status.phase!=Running,metadata.name=a"},
		{"a in (", "spec.lifecycleHooks.preDrain[0].name=b"},
		{"example.com/a", `metadata.annotations['a.b/c']=\,x\=`},
		{"=", "metadata.labels.role=worker,spec..x=y"},
		{"!!a, ,", "spec.providerSpec.value.a[18446744073709551616]=1,["},
	} {
		f.Add(seed[0], seed[1], "role")
	}
	f.Fuzz(func(t *testing.T, labels, fields, key string) {
		sel, err := ParseSelection(labels, fields)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatalf("%q, %q: %v", labels, fields, err)
			}
			return
		}
		printed := [2]string{}
		if sel.labels != nil {
			printed[0] = sel.labels.String()
		}
		if f, err := k8sfields.ParseSelector(fields); err == nil {
			printed[1] = f.String()
		}
		again, err := ParseSelection(printed[0], printed[1])
		if err != nil {
			t.Fatalf("%q, %q is printed as %q, which is refused: %v", labels, fields, printed, err)
		}
		for _, m := range []*machinev1.Machine{
			{},
			{Metadata: &metav1.ObjectMeta{
				Name: "a", Labels: map[string]string{key: "worker", "count": "4"},
				Annotations: map[string]string{key: ",x="},
			}},
			{
				Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
					PreDrain: []*machinev1.LifecycleHook{{Name: "b"}},
				}}, Status: &machinev1.MachineStatus{Phase: proto.String("Running")},
			},
		} {
			if got, want := again.Matches(m), sel.Matches(m); got != want {
				t.Fatalf("%q, %q matches %v: %t; printed as %q: %t", labels, fields, m, want, printed, got)
			}
		}
	})
}

// FuzzPageToken checks that an accepted token is one that a page could have returned.
func FuzzPageToken(f *testing.F) {
	f.Add(pageToken{Revision: 7, After: "ns/a"}.String())
	f.Add("")
	f.Add("eyJyIjotMX0")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := parsePageToken(text)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		if again, err := parsePageToken(token.String()); err != nil || token.Revision <= 0 || again != token {
			t.Fatalf("%q is %+v, then %+v, %v", text, token, again, err)
		}
	})
}

// FuzzResourceVersion checks that a revision is printed as it was parsed.
func FuzzResourceVersion(f *testing.F) {
	for _, seed := range []string{"", "0", "42", "-1", "+1", "007", "9223372036854775808", "1e3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRevision(text)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		if again, err := ParseRevision(FormatRevision(r)); r < 0 || err != nil || again != r {
			t.Fatalf("%q is %d, then %d, %v", text, r, again, err)
		}
	})
}
