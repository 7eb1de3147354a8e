package kinds

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestRevocationsNameOneTarget(t *testing.T) {
	tables := newTables(t)
	past := timestamppb.New(time.Now().Add(-time.Hour))
	for name, tt := range map[string]struct {
		spec *machinev1.RevocationSpec
		want []string
	}{
		"a user":                 {&machinev1.RevocationSpec{User: "alice"}, nil},
		"a serial number":        {&machinev1.RevocationSpec{SerialNumber: "a0ff"}, nil},
		"a machine":              {&machinev1.RevocationSpec{MachineUid: "u-1", MachineName: "m"}, nil},
		"nothing":                {&machinev1.RevocationSpec{}, []string{"spec"}},
		"two targets":            {&machinev1.RevocationSpec{User: "alice", SerialNumber: "a"}, []string{"spec"}},
		"a serial with colons":   {&machinev1.RevocationSpec{SerialNumber: "A0:FF"}, []string{"spec.serialNumber"}},
		"a serial with zeros":    {&machinev1.RevocationSpec{SerialNumber: "00ff"}, []string{"spec.serialNumber"}},
		"a service by its name":  {&machinev1.RevocationSpec{User: "system:windlass:gateway"}, []string{"spec.user"}},
		"a machine's name alone": {&machinev1.RevocationSpec{User: "alice", MachineName: "m"}, []string{"spec.machineName"}},
		"a time without user": {
			&machinev1.RevocationSpec{SerialNumber: "a", IssuedBefore: past},
			[]string{"spec.issuedBefore"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tables.Revocations.Create(t.Context(), &machinev1.Revocation{
				Metadata: &metav1.ObjectMeta{GenerateName: "r-"}, Spec: tt.spec,
			})
			if diff := cmp.Diff(tt.want, paths(err)); diff != "" || (err != nil) != (tt.want != nil) {
				t.Errorf("Create = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestARevocationCannotBeChangedAndIsRemovedInTime(t *testing.T) {
	tables := newTables(t)
	ctx := t.Context()
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "m", Uid: "u-1"}}
	for range 2 {
		if err := tables.RevokeMachine(ctx, m, "deleted"); err != nil {
			t.Fatal(err)
		}
	}
	user, err := tables.Revocations.Create(ctx, &machinev1.Revocation{
		Metadata: &metav1.ObjectMeta{Name: "u"},
		Spec:     &machinev1.RevocationSpec{User: "alice"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if user.GetSpec().GetIssuedBefore() == nil {
		t.Error("issuedBefore has no default")
	}
	changed := proto.Clone(user).(*machinev1.Revocation)
	changed.Spec.User = "bob"
	if _, err := tables.Revocations.Update(ctx, changed); err == nil {
		t.Error("a revocation was changed to another user")
	}

	day := 24 * time.Hour
	for _, step := range []struct {
		after time.Duration
		left  int
	}{{47 * time.Hour, 2}, {49 * time.Hour, 1}, {366 * day, 1}, {368 * day, 0}} {
		if _, err := tables.CollectRevocations(ctx, time.Now().Add(step.after)); err != nil {
			t.Fatal(err)
		}
		if got := len(tables.Revocations.All()); got != step.left {
			t.Errorf("after %v there are %d, want %d", step.after, got, step.left)
		}
	}
}
