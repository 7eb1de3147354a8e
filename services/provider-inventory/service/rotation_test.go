package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// startRequest returns a request to rotate the authority of services.
func startRequest(t *testing.T, goal hostv1.Rotation_Step) *hostv1.StartRotationRequest {
	t.Helper()
	var certs [][]byte
	for range 2 {
		a, err := identity.NewAuthority("windlass", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, a.PEM())
	}
	return &hostv1.StartRotationRequest{
		Authority: "windlass", Goal: goal, Host: "h1", Certificate: certs[0], NextCertificate: certs[1],
		Signature: []byte("s"),
	}
}

// synced has a host report its certificates, and returns the answer.
func (r *replica) synced(name string, report *hostv1.HostCertificates,
	sealed ...*hostv1.SealedKey,
) *hostv1.SyncCertificatesResponse {
	t := r.inventory.t
	t.Helper()
	c := hostv1.NewHostServiceClient(r.inventory.ground.Dial(r.address, servetest.Host(name, r.uid(name))))
	out, err := c.SyncCertificates(t.Context(), &hostv1.SyncCertificatesRequest{
		Name: name, Certificates: report, SealedKeys: sealed,
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// step waits until the rotation has a step; 0 means that there is none.
func (r *replica) step(want hostv1.Rotation_Step) {
	t := r.inventory.t
	t.Helper()
	servetest.Await(t, func() string {
		p, err := r.hosts.PlanRotation(t.Context(), &hostv1.PlanRotationRequest{})
		if err != nil {
			return err.Error()
		}
		if p.GetRotation().GetStep() != want {
			return "step " + p.GetRotation().GetStep().String() + ", waits for " + p.GetWaitsFor()
		}
		return ""
	})
}

// The state of a rotation is in etcd: leaders change between its steps.
func TestARotationIsContinuedByTheNextLeader(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	for i, name := range []string{"h1", "h2"} {
		r.register(name, "192.0.2."+string(rune('1'+i)), "a", "control-plane")
		in.attend(name, r)
		r.phase(name, "Available")
	}
	started, err := r.hosts.StartRotation(t.Context(), startRequest(t, hostv1.Rotation_STEP_ACTIVATE))
	if err != nil {
		t.Fatal(err)
	}
	id, trust := started.GetId(), started.GetTrust()
	done := func(completed, step, trust string) *hostv1.HostCertificates {
		return &hostv1.HostCertificates{RotationId: &id, Step: &step, Trust: &trust, Completed: &completed}
	}
	wants := &hostv1.HostCertificates{
		RotationId: &id, Step: new("Steady"), Pending: new("the key"), SealingKey: []byte("k2"),
		SealingSignature: []byte("sig"),
	}
	r.synced("h2", wants)
	answer := r.synced("h1", done("Prepare", "Prepared", trust))
	if len(answer.GetWanted()) != 1 || answer.GetWanted()[0].GetHost() != "h2" {
		t.Fatalf("keys that are wanted: %v", answer.GetWanted())
	}
	r.synced("h1", done("Prepare", "Prepared", trust), &hostv1.SealedKey{
		Host: "h2", SealingKey: []byte("k2"), Sealed: []byte("secret for h2"),
	})
	r.stop()
	next := in.start().leads()
	in.attend("h1", next)
	in.attend("h2", next)
	answer = next.synced("h2", wants)
	if keys := answer.GetRotation().GetSealedKeys(); len(keys) != 1 || string(keys[0].GetSealed()) != "secret for h2" {
		t.Errorf("keys of h2: %v", keys)
	}
	if keys := next.synced("h1", done("Prepare", "Prepared", trust)).GetRotation().GetSealedKeys(); len(keys) > 0 {
		t.Errorf("h1 gets the keys of h2: %v", keys)
	}
	p, err := next.hosts.PlanRotation(t.Context(), &hostv1.PlanRotationRequest{})
	if err != nil || p.GetCompletedCount() != 1 ||
		!strings.Contains(p.GetWaitsFor(), "host h2 has not completed the step: the key") ||
		len(p.GetRotation().GetSealedKeys()) > 0 {
		t.Errorf("plan %v, %v", p, err)
	}
	next.synced("h2", done("Prepare", "Prepared", trust))
	next.step(hostv1.Rotation_STEP_ACTIVATE)
	for _, name := range []string{"h1", "h2"} {
		next.synced(name, done("Activate", "Activated", trust))
	}
	if _, err := next.hosts.StartRotation(t.Context(), &hostv1.StartRotationRequest{
		Authority: "windlass", Goal: hostv1.Rotation_STEP_RETIRE,
	}); err != nil {
		t.Fatal(err)
	}
	next.step(hostv1.Rotation_STEP_RETIRE)
	for _, name := range []string{"h1", "h2"} {
		next.synced(name, done("Retire", "Retired", started.GetId()))
	}
	next.step(0)
}

func TestWhoMayRotate(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.register("h1", "192.0.2.1", "a", "control-plane")
	as := func(name string) hostv1.HostServiceClient {
		return hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host(name, r.uid("h1"))))
	}
	for name, call := range map[string]func(context.Context) error{
		"a host syncs for another": func(ctx context.Context) error {
			_, err := as("h2").SyncCertificates(ctx, &hostv1.SyncCertificatesRequest{Name: "h1"})
			return err
		},
		"an administrator syncs for a host": func(ctx context.Context) error {
			_, err := r.hosts.SyncCertificates(ctx, &hostv1.SyncCertificatesRequest{Name: "h1"})
			return err
		},
		"a host begins a rotation": func(ctx context.Context) error {
			_, err := as("h1").StartRotation(ctx, startRequest(t, hostv1.Rotation_STEP_RETIRE))
			return err
		},
		"a host renews the certificates of a host": func(ctx context.Context) error {
			_, err := as("h1").RenewHostCertificates(ctx, &hostv1.RenewHostCertificatesRequest{Name: "h1"})
			return err
		},
	} {
		if err := call(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, want PERMISSION_DENIED", name, err)
		}
	}
	if _, err := r.hosts.StartRotation(t.Context(), &hostv1.StartRotationRequest{
		Authority: "windlass", Goal: hostv1.Rotation_STEP_RETIRE,
	}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a rotation is finished that was not begun: %v", err)
	}
}

func TestARenewalIsAskedForUntilItIsReported(t *testing.T) {
	in := newInventory(t, long)
	r := in.start().leads()
	r.register("h1", "192.0.2.1", "a")
	h, err := r.hosts.RenewHostCertificates(t.Context(), &hostv1.RenewHostCertificatesRequest{Name: "h1"})
	if err != nil {
		t.Fatal(err)
	}
	id := h.GetStatus().GetRenewalId()
	if got := r.synced("h1", &hostv1.HostCertificates{}).GetRenewalId(); got != id || id == "" {
		t.Errorf("the host gets renewal %q, want %q", got, id)
	}
	r.synced("h1", &hostv1.HostCertificates{RenewalId: &id, Renewed: []*hostv1.HostCertificate{{Name: "host/tls.crt"}}})
	if c := r.host("h1").GetStatus().GetCertificates(); c.GetRenewalId() != id || len(c.GetRenewed()) != 1 {
		t.Errorf("reported: %v", c)
	}
}
