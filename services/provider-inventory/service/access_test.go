package service_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
)

func sha(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// planeHost is a control-plane host as another program has it: its files, and the generation that they had last.
type planeHost struct {
	t              *testing.T
	name           string
	policy, tokens string
	generation     int32
	had            []string // what the inventory wrote
	wanted         bool
}

// sync reports the files of a host to a replica, and writes what it answers.
func (h *planeHost) sync(r *replica) *hostv1.SyncAccessResponse {
	h.t.Helper()
	policy, tokens := sha(h.policy), sha(h.tokens)
	request := &hostv1.SyncAccessRequest{
		Name: h.name, Access: &hostv1.HostAccess{Generation: &h.generation, PolicyHash: &policy, TokensHash: &tokens},
	}
	if h.generation > 0 {
		for name, text := range map[string]string{"policy.yaml": h.policy, "tokens": h.tokens} {
			if !slices.Contains(h.had, text) {
				request.Access.Changed = append(request.Access.Changed, name)
			}
		}
	}
	if h.wanted {
		request.Policy, request.Tokens = &h.policy, &h.tokens
	}
	c := hostv1.NewHostServiceClient(r.inventory.ground.Dial(r.address, servetest.Host(h.name, r.uid(h.name))))
	out, err := c.SyncAccess(h.t.Context(), request)
	if err != nil {
		h.t.Fatal(err)
	}
	h.wanted = out.GetWanted()
	if out.Policy != nil {
		h.policy = out.GetPolicy()
	}
	if out.Tokens != nil {
		h.tokens = out.GetTokens()
	}
	if sha(h.policy) == out.GetPolicyHash() && sha(h.tokens) == out.GetTokensHash() {
		h.generation, h.had = out.GetGeneration(), []string{h.policy, h.tokens}
	}
	return out
}

// states returns the state of each host in one text.
func (r *replica) states() string {
	r.inventory.t.Helper()
	p, err := r.hosts.PlanClusterAccess(r.inventory.t.Context(), &hostv1.PlanClusterAccessRequest{})
	if err != nil {
		r.inventory.t.Fatal(err)
	}
	var out []string
	for _, h := range p.GetHosts() {
		out = append(out, h.GetName()+"="+h.GetState())
	}
	return strings.Join(out, " ")
}

// said reports whether there is an event of a reason with a text.
func (r *replica) said(reason, text string) {
	t := r.inventory.t
	t.Helper()
	events := eventv1.NewEventServiceClient(r.inventory.ground.Dial(r.address, servetest.Admin()))
	servetest.Await(t, func() string {
		list, err := events.ListEvents(t.Context(), &eventv1.ListEventsRequest{})
		if err != nil {
			return err.Error()
		}
		for _, e := range list.GetItems() {
			if e.GetReason() == reason && strings.Contains(e.GetMessage(), text) {
				return ""
			}
		}
		return "there is no event " + reason + " with " + text
	})
}

// begun returns a replica with two control-plane hosts, of which the first has its files recorded.
func begun(t *testing.T, second string) (*inventory, *replica, *planeHost, *planeHost) {
	t.Helper()
	in := newInventory(t, long)
	in.host = "h1"
	r := in.start().leads()
	policy := string(identity.DefaultPolicy())
	a := &planeHost{t: t, name: "h1", policy: policy}
	b := &planeHost{t: t, name: "h2", policy: policy + second}
	for i, name := range []string{"h1", "h2"} {
		r.register(name, "192.0.2."+string(rune('1'+i)), "a", "control-plane")
		in.attend(name, r)
		r.phase(name, "Available")
	}
	if out := b.sync(r); out.GetWanted() || out.GetGeneration() != 0 {
		t.Fatalf("a host that does not lead is asked for its files: %v", out)
	}
	if _, err := r.hosts.GetClusterAccess(t.Context(), &hostv1.GetClusterAccessRequest{}); status.Code(err) !=
		codes.NotFound {
		t.Fatalf("before anything is recorded: %v", err)
	}
	for range 3 {
		a.sync(r)
	}
	return in, r, a, b
}

func TestTheFirstContentIsThatOfTheLeadersHostAndOthersAreNamed(t *testing.T) {
	_, r, a, b := begun(t, "# of h2\n")
	is, err := r.hosts.GetClusterAccess(t.Context(), &hostv1.GetClusterAccessRequest{})
	if err != nil || is.GetGeneration() != 1 || is.GetPolicy() != a.policy || is.GetHost() != "h1" {
		t.Fatalf("recorded: generation %d of %q, %v", is.GetGeneration(), is.GetHost(), err)
	}
	own := b.policy
	for range 3 {
		b.sync(r)
	}
	if b.policy != own || r.states() != "h1=InForce h2=Differs" {
		t.Errorf("%s, the policy of h2 was replaced: %v", r.states(), b.policy != own)
	}
	r.said("AccessFilesDiffer", "policy.yaml: not the same as on host h1")
	servetest.Await(t, func() string {
		if s := r.operator(t.Context()); !s.Degraded || s.Reason != "AccessFilesDiffer" ||
			!strings.Contains(s.Message, "host h2: policy.yaml: not the same") {
			return fmt.Sprintf("the state of the service is %+v", s)
		}
		return ""
	})
	if _, err := r.hosts.SetClusterAccess(t.Context(), &hostv1.SetClusterAccessRequest{
		Generation: 1, Tokens: new("# none\n"),
	}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "host h2 has other files") {
		t.Errorf("tokens before the policy was decided on: %v", err)
	}
	now, err := r.hosts.SetClusterAccess(t.Context(), &hostv1.SetClusterAccessRequest{
		Generation: 1, Policy: &is.Policy,
	})
	if err != nil || now.GetGeneration() != 2 || now.GetHost() != "" || now.GetChangedBy() != "alice" {
		t.Fatalf("confirmed: %d %q %q, %v", now.GetGeneration(), now.GetHost(), now.GetChangedBy(), err)
	}
	for _, h := range []*planeHost{a, b, a, b} {
		h.sync(r)
	}
	if b.policy != a.policy || r.states() != "h1=InForce h2=InForce" {
		t.Errorf("%s, both have the same: %v", r.states(), b.policy == a.policy)
	}
	servetest.Await(t, func() string {
		if s := r.operator(t.Context()); s.Degraded {
			return fmt.Sprintf("the state of the service is %+v", s)
		}
		return ""
	})
}

func TestAChangeReachesAllHostsAndSurvivesTheLeader(t *testing.T) {
	in, r, a, b := begun(t, "")
	b.sync(r)
	b.sync(r)
	if r.states() != "h1=InForce h2=InForce" {
		t.Fatal(r.states())
	}
	next := a.policy + "# changed\n"
	set := func(generation int32, policy, tokens *string) (*hostv1.ClusterAccess, error) {
		return r.hosts.SetClusterAccess(t.Context(), &hostv1.SetClusterAccessRequest{
			Generation: generation, Policy: policy, Tokens: tokens,
		})
	}
	if now, err := set(1, &next, nil); err != nil || now.GetPolicyGeneration() != 2 {
		t.Fatalf("changed: %v, %v", now, err)
	}
	r.said("AccessChanged", `by order of user "alice"`)
	if r.states() != "h1=Pending h2=Pending" {
		t.Errorf("before the hosts have it: %s", r.states())
	}
	if _, err := set(1, &a.policy, nil); status.Code(err) != codes.Aborted ||
		!strings.Contains(err.Error(), "the policy changed in generation 2") {
		t.Errorf("a change of the policy before: %v", err)
	}
	_, entry, err := identity.NewToken("ann", nil, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	line, err := identity.AppendToken(nil, entry)
	if err != nil {
		t.Fatal(err)
	}
	tokens := string(line)
	if now, err := set(1, nil, &tokens); err != nil || now.GetGeneration() != 3 { // which were not changed since then
		t.Fatalf("tokens: %v", err)
	}
	a.sync(r)
	r.stop()
	in.host = "h2"
	r = in.start().leads()
	for _, h := range []string{"h1", "h2"} {
		in.attend(h, r)
		r.phase(h, "Available")
	}
	for _, h := range []*planeHost{b, a, b} {
		if out := h.sync(r); out.GetGeneration() != 3 || out.GetWanted() {
			t.Errorf("%s gets %d after a change of the leader", h.name, out.GetGeneration())
		}
	}
	if b.policy != next || b.tokens != tokens || r.states() != "h1=InForce h2=InForce" {
		t.Errorf("%s: the policy of h2 is the new one: %v, and its tokens: %v", r.states(), b.policy == next,
			b.tokens == tokens)
	}
	b.tokens = "" // by a user of that host
	b.sync(r)
	r.said("AccessFilesChanged", "tokens changed on the host, and replaced by generation 3")
	if b.tokens != tokens {
		t.Error("the tokens of h2 were not put back")
	}
	all, err := etcdtest.Client(t).Get(t.Context(), topology.Prefix(topology.ProviderInventory), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range all.Kvs {
		if bytes.Contains(kv.Value, []byte(entry.SHA256)) {
			t.Errorf("%s has the hash of a token, not sealed", kv.Key)
		}
	}
}

func TestWhatProgramsCouldNotUseIsNotRecorded(t *testing.T) {
	_, r, a, _ := begun(t, "")
	noGateway := strings.ReplaceAll(a.policy, "name: system:windlass\n", "name: nothing\n")
	for name, test := range map[string]struct {
		policy, tokens *string
		code           codes.Code
		text           string
	}{
		"nothing": {code: codes.InvalidArgument, text: "policy"},
		"a policy cut off": {
			policy: new(a.policy[:len(a.policy)-30]), code: codes.InvalidArgument,
			text: "policy: document",
		},
		"no policy": {
			policy: new("# empty\n"), code: codes.InvalidArgument,
			text: "policy: there is no ClusterRoleBinding",
		},
		"tokens cut off": {tokens: new(`{"sha256":"00`), code: codes.InvalidArgument, text: "tokens: line 1"},
		"rights of programs": {
			policy: &noGateway, code: codes.FailedPrecondition,
			text: "takes rights from you or from the programs",
		},
	} {
		_, err := r.hosts.SetClusterAccess(t.Context(), &hostv1.SetClusterAccessRequest{
			Generation: 1, Policy: test.policy, Tokens: test.tokens,
		})
		if status.Code(err) != test.code || err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, want %v with %q", name, err, test.code, test.text)
		}
	}
	if now, err := r.hosts.SetClusterAccess(t.Context(), &hostv1.SetClusterAccessRequest{
		Generation: 1, Policy: &noGateway, Force: true,
	}); err != nil || now.GetGeneration() != 2 {
		t.Errorf("forced: generation %d, %v", now.GetGeneration(), err)
	}
}

func TestWhoMayChangeThePolicyOfHosts(t *testing.T) {
	in, r, a, _ := begun(t, "")
	r.register("w1", "192.0.2.9", "a", "worker")
	dial := func(name, host string) hostv1.HostServiceClient {
		return hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Host(name, r.uid(host))))
	}
	report := &hostv1.HostAccess{PolicyHash: new("x"), TokensHash: new("x")}
	editor := hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.User("eve", "windlass:editors")))
	for name, call := range map[string]func(context.Context) error{
		"a host reports for another": func(ctx context.Context) error {
			_, err := dial("h2", "h2").SyncAccess(ctx, &hostv1.SyncAccessRequest{Name: "h1", Access: report})
			return err
		},
		"a worker reports": func(ctx context.Context) error {
			_, err := dial("w1", "w1").SyncAccess(ctx, &hostv1.SyncAccessRequest{Name: "w1", Access: report})
			return err
		},
		"an administrator reports for a host": func(ctx context.Context) error {
			_, err := r.hosts.SyncAccess(ctx, &hostv1.SyncAccessRequest{Name: "h1", Access: report})
			return err
		},
		"a host changes the policy": func(ctx context.Context) error {
			_, err := dial("h1", "h1").SetClusterAccess(ctx, &hostv1.SetClusterAccessRequest{Generation: 1, Policy: &a.policy})
			return err
		},
		"a host reads the tokens": func(ctx context.Context) error {
			_, err := dial("h1", "h1").GetClusterAccess(ctx, &hostv1.GetClusterAccessRequest{})
			return err
		},
		"an editor changes the policy": func(ctx context.Context) error {
			_, err := editor.SetClusterAccess(ctx, &hostv1.SetClusterAccessRequest{Generation: 1, Policy: &a.policy})
			return err
		},
		"an editor reads the tokens": func(ctx context.Context) error {
			_, err := editor.GetClusterAccess(ctx, &hostv1.GetClusterAccessRequest{})
			return err
		},
	} {
		if err := call(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, want PERMISSION_DENIED", name, err)
		}
	}
	if p, err := editor.PlanClusterAccess(t.Context(), &hostv1.PlanClusterAccessRequest{}); err != nil ||
		p.GetAccess().GetPolicy()+p.GetAccess().GetTokens() != "" {
		t.Errorf("the state for an editor: %v, %v", p.GetAccess(), err)
	}
}
