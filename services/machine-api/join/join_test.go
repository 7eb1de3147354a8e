package join

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

type fixture struct {
	*Service
	tables    *kinds.Tables
	addresses int // given out
}

var gateways = []string{"127.9.9.1:6443", "127.9.9.2:6443"}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	st := etcdtest.Store(t)
	tables := kinds.New(st, protovalidate.GlobalValidator, nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, k := range tables.All() {
		group.Go(func() { _ = k.Run(ctx) })
	}
	t.Cleanup(func() { cancel(); group.Wait() })
	dir := t.TempDir()
	for _, name := range []string{AuthorityWindlass} {
		a, err := identity.NewAuthority(name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	signer, err := LoadSigner(dir, 30*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	tokens := NewTokens(st, tables.Machines, signer.AuthorityHash, func() []string { return gateways })
	return &fixture{Service: NewService(tokens, signer, tables.Machines), tables: tables}
}

func (f *fixture) machine(t *testing.T, name, role string) (*machinev1.Machine, string) {
	t.Helper()
	m, err := f.tables.Machines.Create(t.Context(),
		&machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{plan.LabelRole: role}}})
	if err != nil {
		t.Fatal(err)
	}
	// What machine-api takes over from the provider.
	m, err = f.tables.Machines.Modify(t.Context(), object.KeyOf(m), func(m *machinev1.Machine) error {
		f.addresses++
		m.Spec = &machinev1.MachineSpec{ProviderId: "test://c/" + name}
		m.Status = &machinev1.MachineStatus{
			Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: fmt.Sprintf("127.9.9.%d", 9+f.addresses)}},
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	boot, err := f.tokens.For(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if boot.Role != role || len(boot.Endpoints) != 2 {
		t.Errorf("bootstrap = %v", boot)
	}
	return m, boot.Token
}

// request asks for names that a client must not choose.
func request(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}, DNSNames: []string{"evil"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func certificate(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no certificate: %q", text)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAControlPlaneMachineJoins(t *testing.T) {
	f := newFixture(t)
	m, token := f.machine(t, "m-0", plan.RoleMaster)
	req := &machinev1.JoinRequest{Token: token, AgentRequest: request(t)}
	out, err := f.Join(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if out.NodeName != "m-0" || out.Role != plan.RoleMaster || out.Address != "127.9.9.10" ||
		out.ProviderId != "test://c/m-0" {
		t.Errorf("answer = %v", out)
	}
	if !slices.Equal(out.Gateways, gateways) {
		t.Errorf("gateways = %q", out.Gateways)
	}
	agent := certificate(t, out.AgentCertificate)
	if caller, err := identity.FromCertificate(agent); err != nil || caller.User != identity.NodeUser("m-0") ||
		caller.UID != m.GetMetadata().GetUid() || caller.In(identity.GroupMasters) {
		t.Errorf("the agent's certificate makes it %+v, %v", caller, err)
	}
	if len(agent.IPAddresses)+len(agent.DNSNames) > 0 || len(agent.ExtKeyUsage) != 1 ||
		agent.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("the agent's certificate is for %v %v with usages %v, want a client's alone", agent.DNSNames,
			agent.IPAddresses, agent.ExtKeyUsage)
	}
	if _, err := f.Join(t.Context(), req); err != nil {
		t.Errorf("the same request again: %v", err)
	}
	req.AgentRequest = request(t)
	if _, err := f.Join(t.Context(), req); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_BAD_TOKEN {
		t.Errorf("a used token with another key: %v, want BAD_TOKEN", err)
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	f := newFixture(t)
	m, token := f.machine(t, "w", plan.RoleWorker)
	gone, goneToken := f.machine(t, "gone", plan.RoleWorker)
	_, err := f.tables.Machines.Delete(t.Context(), gone.Metadata.Namespace, "gone", nil)
	if err != nil {
		t.Fatal(err)
	}
	joined, joinedToken := f.machine(t, "joined", plan.RoleWorker)
	_, err = f.tables.Machines.Modify(t.Context(), object.KeyOf(joined), func(m *machinev1.Machine) error {
		m.Status.NodeRef = &metav1.ObjectReference{Name: "joined"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	uid, rest, _ := strings.Cut(token, ".")
	for name, bad := range map[string]string{
		"rubbish":                         "x",
		"an empty proof":                  uid + "..x",
		"a forged proof":                  uid + "." + strings.Repeat("0", 64) + ".x",
		"another machine's proof":         gone.Metadata.Uid + "." + rest,
		"a machine that is being deleted": goneToken,
		"a machine that has a node":       joinedToken,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.Join(t.Context(), &machinev1.JoinRequest{Token: bad, AgentRequest: request(t)})
			if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_BAD_TOKEN {
				t.Errorf("Join = %v, want BAD_TOKEN", err)
			}
		})
	}
	out, err := f.Join(t.Context(), &machinev1.JoinRequest{Token: token, AgentRequest: request(t)})
	if err != nil || out.Role != plan.RoleWorker {
		t.Errorf("a worker gets %v, %v", out, err)
	}
	if err := f.tokens.Forget(t.Context(), m.Metadata.Uid); err != nil {
		t.Error(err)
	}
	if err := f.tokens.Forget(t.Context(), m.Metadata.Uid); err != nil {
		t.Errorf("forgetting twice: %v", err)
	}
}

func TestABadRequestDoesNotUseUpTheToken(t *testing.T) {
	f := newFixture(t)
	_, token := f.machine(t, "w", plan.RoleWorker)
	_, err := f.Join(t.Context(), &machinev1.JoinRequest{Token: token, AgentRequest: []byte("x")})
	if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != "agentRequest" {
		t.Errorf("Join = %v, want agentRequest named", err)
	}
	if _, err := f.Join(t.Context(), &machinev1.JoinRequest{Token: token, AgentRequest: request(t)}); err != nil {
		t.Errorf("the token should still be good: %v", err)
	}
}

func TestOnlyTheNodeItselfRenews(t *testing.T) {
	f := newFixture(t)
	m, _ := f.machine(t, "w", plan.RoleWorker)
	other, _ := f.machine(t, "x", plan.RoleWorker)
	if err := f.tables.Machines.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	as := func(user, uid string, groups ...string) context.Context {
		return identity.WithCaller(t.Context(), identity.Caller{User: user, UID: uid, Groups: groups})
	}
	uid := m.GetMetadata().GetUid()
	out, err := f.Renew(as(identity.NodeUser("w"), uid, identity.GroupNodes), &machinev1.RenewRequest{
		AgentRequest: request(t),
	})
	if err != nil || out.NodeName != "w" || !slices.Equal(out.Gateways, gateways) {
		t.Errorf("Renew = %v, %v", out, err)
	}
	for name, ctx := range map[string]context.Context{
		"a user":                              as("ada", "", identity.GroupMasters),
		"a node without a machine":            as(identity.NodeUser("y"), "gone", identity.GroupNodes),
		"an earlier machine of the same name": as(identity.NodeUser("w"), "gone", identity.GroupNodes),
		"another machine by this name":        as(identity.NodeUser("w"), other.GetMetadata().GetUid(), identity.GroupNodes),
		"a certificate that names no machine": as(identity.NodeUser("w"), "", identity.GroupNodes),
		"anonymous":                           t.Context(),
	} {
		if _, err := f.Renew(ctx, &machinev1.RenewRequest{AgentRequest: request(t)}); rpcerr.Reason(
			err) != metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
			t.Errorf("%s renews: %v, want FORBIDDEN", name, err)
		}
	}
}

// A label that reaches etcd past every rule still makes no worker a member.
func TestTheRoleIsThatOfTheSealedRecord(t *testing.T) {
	f := newFixture(t)
	m, token := f.machine(t, "w", plan.RoleWorker)
	m.Metadata.Labels[plan.LabelRole] = plan.RoleMaster
	boot, err := f.tokens.For(t.Context(), m)
	if err != nil || boot.Role != plan.RoleWorker || boot.Token != token {
		t.Errorf("bootstrap = %v, %v", boot, err)
	}
	out, _, err := f.answer(t.Context(), m, request(t))
	if err != nil || out.Role != plan.RoleWorker {
		t.Errorf("answer = %v, %v", out, err)
	}
}

func TestARenewalBesideTheEndOfAMachineLeavesNothing(t *testing.T) {
	f := newFixture(t)
	m, _ := f.machine(t, "w", plan.RoleWorker)
	if err := f.tables.Machines.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	uid := m.GetMetadata().GetUid()
	if err := f.tokens.Forget(t.Context(), uid); err != nil { // right before the machine's finalizer goes
		t.Fatal(err)
	}
	ctx := identity.WithCaller(t.Context(), identity.Caller{
		User: identity.NodeUser("w"), UID: uid,
		Groups: []string{identity.GroupNodes},
	})
	if _, err := f.Renew(ctx, &machinev1.RenewRequest{AgentRequest: request(t)}); rpcerr.Reason(
		err) != metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
		t.Errorf("Renew = %v, want FORBIDDEN", err)
	}
	if _, err := f.tokens.store.Get(t.Context(), sealedPrefix+uid); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("join record: %v, want none", err)
	}
}

// A creation, and a join, that read the machine before it was deleted write their records only after all of these were
// removed with the machine.
func TestWorkBegunBeforeADeletionLeavesNoRecord(t *testing.T) {
	for name, gone := range map[string]bool{"a machine that is being deleted": false, "a machine that is gone": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			read, _ := f.machine(t, "w", plan.RoleWorker)
			uid := read.GetMetadata().GetUid()
			if _, err := f.tables.Machines.Delete(t.Context(), read.Metadata.Namespace, "w", nil); err != nil {
				t.Fatal(err)
			}
			if err := f.tokens.Forget(t.Context(), uid); err != nil {
				t.Fatal(err)
			}
			if gone {
				_, err := f.tables.Machines.Modify(t.Context(), object.KeyOf(read), func(m *machinev1.Machine) error {
					m.Metadata.Finalizers = nil
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := f.tokens.For(t.Context(), read); !errors.Is(err, errLeaving) {
				t.Errorf("For = %v, want %v", err, errLeaving)
			}
			if err := f.tokens.Use(t.Context(), read, "keys"); !errors.Is(err, errLeaving) {
				t.Errorf("Use = %v, want %v", err, errLeaving)
			}
			for _, prefix := range []string{sealedPrefix, usedPrefix} {
				if _, err := f.tokens.store.Get(t.Context(), prefix+uid); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("record %s: %v, want none", prefix, err)
				}
			}
		})
	}
}

// A machine that changed since it was read still gets its records.
func TestAChangedMachineGetsItsRecords(t *testing.T) {
	f := newFixture(t)
	read, err := f.tables.Machines.Create(t.Context(), &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "w"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.tables.Machines.Modify(t.Context(), object.KeyOf(read), func(m *machinev1.Machine) error {
		m.Status = &machinev1.MachineStatus{Phase: proto.String("Provisioning")}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.tokens.For(t.Context(), read); err != nil {
		t.Errorf("For: %v", err)
	}
	if err := f.tokens.Use(t.Context(), read, "keys"); err != nil {
		t.Errorf("Use: %v", err)
	}
	if err := f.tokens.Use(t.Context(), read, "other keys"); !errors.Is(err, errOtherKeys) {
		t.Errorf("Use with other keys = %v, want %v", err, errOtherKeys)
	}
}

// The key of all tokens is sealed in etcd, also one that an older version stored in plain, and after a rotation by the
// new key.
func TestTheJoinKeyIsSealed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	if _, err := store.AddKey(path, time.Now()); err != nil {
		t.Fatal(err)
	}
	ring, err := store.OpenKeyRing(path)
	if err != nil {
		t.Fatal(err)
	}
	client, prefix := etcdtest.Client(t), etcdtest.Prefix(t)
	old := NewTokens(store.New(client, prefix), nil, func() string { return "sha256:00" }, nil)
	key, err := old.secret(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	st := store.New(client, prefix, store.WithSealer(ring))
	tokens := NewTokens(st, nil, func() string { return "sha256:00" }, nil)
	for want := uint64(1); want <= 2; want++ {
		for {
			if by, err := st.SealsBy(); err != nil || by == want {
				break
			}
		}
		if err := tokens.reseal(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := st.Get(t.Context(), keyRecord)
		if err != nil || r.SealedBy != want || !bytes.Equal(r.Value, key) {
			t.Errorf("sealed by %d (%v), want %d, with the same key", r.SealedBy, err, want)
		}
		raw, err := client.Get(t.Context(), prefix+keyRecord)
		if err != nil || bytes.Contains(raw.Kvs[0].Value, key) {
			t.Errorf("etcd knows the join key (%v)", err)
		}
		if _, err := store.AddKey(path, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}
