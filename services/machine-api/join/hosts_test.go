package join

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// inventory keeps the hosts that were registered, by the rule of RegisterHost.
type inventory struct {
	hostv1.HostServiceClient
	hosts map[string]*hostv1.Host
	away  bool
}

func (i *inventory) RegisterHost(_ context.Context, r *hostv1.RegisterHostRequest, _ ...grpc.CallOption) (*hostv1.Host,
	error,
) {
	if i.away {
		return nil, rpcerr.Unavailable("away")
	}
	if h := i.hosts[r.GetName()]; h != nil {
		if h.GetSpec().GetAddress() == r.GetAddress() {
			return h, nil
		}
		return nil, rpcerr.Exists("Host", r.GetName())
	}
	h := &hostv1.Host{
		Metadata: &metav1.ObjectMeta{Name: r.GetName(), Labels: r.GetLabels(), Uid: "uid-" + r.GetLabels()[tokenLabel][:1]},
		Spec:     &hostv1.HostSpec{Roles: r.GetRoles(), Address: r.GetAddress(), Zone: r.GetZone()},
	}
	i.hosts[r.GetName()] = h
	return h, nil
}

func (i *inventory) GetHost(_ context.Context, r *hostv1.GetHostRequest, _ ...grpc.CallOption) (*hostv1.Host, error) {
	if h := i.hosts[r.GetName()]; h != nil {
		return h, nil
	}
	return nil, rpcerr.NotFound("Host", r.GetName())
}

type hostFixture struct {
	*Hosts
	inventory *inventory
	clock     time.Time
}

func newHostFixture(t *testing.T) *hostFixture {
	t.Helper()
	f := &hostFixture{inventory: &inventory{hosts: map[string]*hostv1.Host{}}, clock: time.Now()}
	f.Hosts = NewHosts(etcdtest.Store(t), newFixture(t).signer, f.inventory, "main", func() []string { return gateways },
		func() []string { return []string{"https://192.0.2.1:2389"} }, func() time.Time { return f.clock },
		slog.New(slog.DiscardHandler))
	return f
}

const tokenID = "00112233445566778899aabbccddeeff"

func proof() []byte { return []byte(strings.Repeat("p", 32)) }

func (f *hostFixture) token(t *testing.T, id string) {
	t.Helper()
	hash := sha256.Sum256(proof())
	out, err := f.CreateHostToken(t.Context(), &machinev1.CreateHostTokenRequest{
		Id: id, ProofHash: hash[:], Roles: []string{"control-plane"}, Ttl: durationpb.New(10 * time.Minute),
		Bundle: []byte("sealed"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if out.GetAuthorityHash() != f.signer.AuthorityHash() || len(out.GetGateways()) != 2 ||
		!out.GetExpiryTime().AsTime().Equal(f.clock.Add(10*time.Minute).UTC()) {
		t.Errorf("token %v", out)
	}
}

func (f *hostFixture) join(t *testing.T, change func(*machinev1.JoinHostRequest)) (*machinev1.JoinHostResponse, error) {
	t.Helper()
	r := &machinev1.JoinHostRequest{
		Id: tokenID, Proof: proof(), Name: "b", Address: "192.0.2.2", Zone: "rack-2", AgentRequest: request(t),
	}
	change(r)
	return f.JoinHost(t.Context(), r)
}

func TestAHostJoinsByATokenOnce(t *testing.T) {
	f := newHostFixture(t)
	f.token(t, tokenID)
	keys := request(t)
	out, err := f.join(t, func(r *machinev1.JoinHostRequest) { r.AgentRequest = keys })
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(out.GetAgentCertificate())
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if caller, err := identity.FromCertificate(certificate); err != nil || caller.User != "system:host:b" ||
		caller.UID != "uid-0" {
		t.Errorf("the certificate is of %q, %v", caller.User, err)
	}
	if len(out.GetEtcdEndpoints()) != 1 || string(out.GetBundle()) != "sealed" || out.GetCluster() != "main" ||
		len(out.GetRoles()) != 1 {
		t.Errorf("answer %v", out)
	}
	if h := f.inventory.hosts["b"]; h.GetSpec().GetAddress() != "192.0.2.2" || h.GetSpec().GetZone() != "rack-2" {
		t.Errorf("registered %v", h)
	}
	if _, err := f.join(t, func(r *machinev1.JoinHostRequest) { r.AgentRequest = keys }); err != nil {
		t.Errorf("the same once more, after a lost answer: %v", err)
	}
	for name, change := range map[string]func(*machinev1.JoinHostRequest){
		"other keys":    func(*machinev1.JoinHostRequest) {},
		"another name":  func(r *machinev1.JoinHostRequest) { r.AgentRequest, r.Name = keys, "c" },
		"other address": func(r *machinev1.JoinHostRequest) { r.AgentRequest, r.Address = keys, "192.0.2.3" },
	} {
		if _, err := f.join(t, change); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_BAD_TOKEN ||
			!strings.Contains(err.Error(), "make a new one with `windlass host token`") {
			t.Errorf("a used token with %s: %v", name, err)
		}
	}
	delete(f.inventory.hosts, "b")
	if _, err := f.join(t, func(r *machinev1.JoinHostRequest) { r.AgentRequest = keys }); rpcerr.Reason(
		err) != metav1.ErrorReason_ERROR_REASON_BAD_TOKEN {
		t.Errorf("a host that was removed joins by the same token: %v", err)
	}
}

func TestATokenThatIsNotValidIsRefused(t *testing.T) {
	f := newHostFixture(t)
	f.token(t, tokenID)
	for name, change := range map[string]func(*machinev1.JoinHostRequest){
		"another id":    func(r *machinev1.JoinHostRequest) { r.Id = strings.Repeat("0", 32) },
		"another proof": func(r *machinev1.JoinHostRequest) { r.Proof = []byte(strings.Repeat("q", 32)) },
		"no proof":      func(r *machinev1.JoinHostRequest) { r.Proof = nil },
		"time":          func(*machinev1.JoinHostRequest) { f.clock = f.clock.Add(10 * time.Minute) },
	} {
		if out, err := f.join(t, change); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_BAD_TOKEN ||
			!strings.Contains(err.Error(), "make a new one with `windlass host token`") {
			t.Errorf("%s: %v, %v", name, out, err)
		}
	}
	if len(f.inventory.hosts) != 0 {
		t.Errorf("registered %v", f.inventory.hosts)
	}
	f.clock = f.clock.Add(-time.Hour)
	if out, err := f.join(t, func(*machinev1.JoinHostRequest) {}); err == nil {
		t.Errorf("an expired token is valid again after the clock was set back: %v", out)
	}
	f.token(t, strings.Repeat("2", 32))
	f.clock = f.clock.Add(time.Hour)
	f.token(t, strings.Repeat("1", 32)) // removes the one that has expired
	for _, prefix := range []string{hostTokens, hostBundles} {
		page, err := f.store.List(t.Context(), prefix, store.ListOptions{})
		if err != nil || len(page.Records) != 1 {
			t.Errorf("%d records %s are stored, %v", len(page.Records), prefix, err)
		}
	}
}

// A token is no right to the certificate of a host that exists.
func TestAHostThatExistsCannotBeJoinedAs(t *testing.T) {
	f := newHostFixture(t)
	f.inventory.hosts["a"] = &hostv1.Host{
		Metadata: &metav1.ObjectMeta{Name: "a"}, Spec: &hostv1.HostSpec{Address: "192.0.2.1"},
	}
	f.token(t, tokenID)
	for _, address := range []string{"192.0.2.1", "192.0.2.9"} {
		out, err := f.join(t, func(r *machinev1.JoinHostRequest) { r.Name, r.Address = "a", address })
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("joined as a at %s: %v, %v", address, out, err)
		}
	}
	if _, err := f.join(t, func(*machinev1.JoinHostRequest) {}); err != nil {
		t.Errorf("the token is used up by refused names: %v", err)
	}
}

func TestAJoinIsRepeatedAfterTheInventoryWasAway(t *testing.T) {
	f := newHostFixture(t)
	f.token(t, tokenID)
	keys := request(t)
	same := func(r *machinev1.JoinHostRequest) { r.AgentRequest = keys }
	f.inventory.away = true
	if _, err := f.join(t, same); status.Code(err) != codes.Unavailable {
		t.Errorf("the inventory is away: %v", err)
	}
	f.inventory.away = false
	if _, err := f.join(t, same); err != nil {
		t.Errorf("it is back: %v", err)
	}
}

func TestTokensOfHostsAreLimited(t *testing.T) {
	f := newHostFixture(t)
	hash := sha256.Sum256(proof())
	make := func(i int, roles []string, bundle string) error {
		_, err := f.CreateHostToken(t.Context(), &machinev1.CreateHostTokenRequest{
			Id:        strings.Repeat("0", 30) + string("0123456789abcdef"[i/16]) + string("0123456789abcdef"[i%16]),
			ProofHash: hash[:], Roles: roles, Ttl: durationpb.New(time.Minute), Bundle: []byte(bundle),
		})
		return err
	}
	for i := range maxHostTokens {
		if err := make(i, []string{"control-plane"}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := make(maxHostTokens, []string{"control-plane"}, "x"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	f.clock = f.clock.Add(time.Minute)
	if err := make(maxHostTokens, []string{"control-plane"}, "x"); err != nil {
		t.Errorf("after they have expired: %v", err)
	}
	if err := make(40, []string{"control-plane"}, ""); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a control-plane host without a bundle: %v", err)
	}
	if err := make(41, []string{"worker"}, "x"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a worker with a bundle: %v", err)
	}
}

func TestAWorkerGetsItsCertificateAlone(t *testing.T) {
	f := newHostFixture(t)
	hash := sha256.Sum256(proof())
	if _, err := f.CreateHostToken(t.Context(), &machinev1.CreateHostTokenRequest{
		Id: tokenID, ProofHash: hash[:], Roles: []string{"worker"}, Ttl: durationpb.New(time.Minute),
	}); err != nil {
		t.Fatal(err)
	}
	out, err := f.join(t, func(*machinev1.JoinHostRequest) {})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.GetBundle()) > 0 || len(out.GetEtcdEndpoints()) > 0 || len(out.GetAgentCertificate()) == 0 ||
		len(out.GetGateways()) != 2 || len(out.GetRoles()) != 1 || out.GetRoles()[0] != "worker" {
		t.Errorf("answer %v", out)
	}
	if h := f.inventory.hosts["b"]; len(h.GetSpec().GetRoles()) != 1 || h.GetSpec().GetRoles()[0] != "worker" {
		t.Errorf("registered %v", h)
	}
}

func TestOnlyAHostOfTheInventoryRenews(t *testing.T) {
	f := newHostFixture(t)
	renew := func(c identity.Caller) (*machinev1.JoinHostResponse, error) {
		return f.RenewHost(identity.WithCaller(t.Context(), c), &machinev1.RenewHostRequest{AgentRequest: request(t)})
	}
	host := identity.Caller{User: "system:host:b", UID: "u", Groups: []string{"system:hosts"}}
	if _, err := renew(host); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a host that is not registered: %v", err)
	}
	f.inventory.hosts["b"] = &hostv1.Host{Metadata: &metav1.ObjectMeta{Name: "b", Uid: "u"}, Spec: &hostv1.HostSpec{
		Roles: []string{"worker"},
	}}
	if out, err := renew(host); err != nil || len(out.GetAgentCertificate()) == 0 || len(out.GetBundle()) != 0 {
		t.Errorf("%v, %v", out, err)
	}
	host.UID = "v"
	if _, err := renew(host); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an earlier host of the name: %v", err)
	}
	for _, user := range []string{"system:node:b", "system:windlass:scheduler", "admin"} {
		if _, err := renew(identity.Caller{User: user}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", user, err)
		}
	}
}

func TestWithoutAnInventoryNoHostJoins(t *testing.T) {
	f := newHostFixture(t)
	f.Hosts.inventory = nil
	if _, err := f.join(t, func(*machinev1.JoinHostRequest) {}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("JoinHost: %v", err)
	}
	if _, err := f.CreateHostToken(t.Context(), &machinev1.CreateHostTokenRequest{}); status.Code(
		err) != codes.FailedPrecondition {
		t.Errorf("CreateHostToken: %v", err)
	}
}
