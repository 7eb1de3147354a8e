package service_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

func stable(names ...string) func(q *etcdv1.Quorum) bool {
	return func(q *etcdv1.Quorum) bool {
		if q.GetPhase() != "Stable" || int(q.GetVoters()) != len(names) || q.GetHealthyVoters() != q.GetVoters() ||
			q.GetPermit() != nil || !q.GetBootstrapRetired() {
			return false
		}
		for i, m := range q.GetMembers() {
			if m.GetName() != names[i] && !has(q, names[i]) {
				return false
			}
		}
		return true
	}
}

func has(q *etcdv1.Quorum, name string) bool {
	for _, m := range q.GetMembers() {
		if m.GetName() == name {
			return true
		}
	}
	return false
}

// awaitHook waits until a machine has or has not our hook.
func (c *cluster) awaitHook(name string, want bool) {
	c.t.Helper()
	c.await(fmt.Sprintf("hook of %s: %v", name, want), func() bool {
		m, ok := c.machines.Lookup("openshift-machine-api", name)
		return ok && hooked(m) == want
	})
}

func (c *cluster) await(what string, holds func() bool) {
	c.t.Helper()
	end := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(end) {
			c.t.Fatalf("%s did not come about within %s", what, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func hooked(m *machinev1.Machine) bool {
	for _, h := range m.GetSpec().GetLifecycleHooks().GetPreDrain() {
		if h.GetName() == "EtcdQuorumOperator" && h.GetOwner() == "clusteroperator/etcd" {
			return true
		}
	}
	return false
}

func (c *cluster) deleteMachine(name string) {
	c.t.Helper()
	_, err := c.machines.Delete(c.t.Context(), "openshift-machine-api", name, nil)
	c.check(err)
}

// drop lets a machine go whose hook is gone.
func (c *cluster) drop(a *agent) {
	c.t.Helper()
	a.end()
	_, err := c.machines.Modify(c.t.Context(), object.Key{Namespace: "openshift-machine-api", Name: a.name},
		func(m *machinev1.Machine) error {
			m.Metadata.Finalizers = nil
			return nil
		})
	c.check(err)
}

func TestTheQuorumMovesOntoTheMachinesAndOutlivesThem(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	_, took := c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	t.Logf("bootstrap member: %s", took)
	w := c.startWriter()
	agents := map[string]*agent{}
	begin := time.Now()
	for _, name := range []string{"m0", "m1", "m2"} {
		agents[name] = c.newMachine(name)
	}
	c.until("the pivot", stable("m0", "m1", "m2"))
	t.Logf("pivot: %s, longest write %s", time.Since(begin), w.gap())
	for name := range agents {
		c.awaitHook(name, true)
	}

	q, _ := c.until("a leader", func(q *etcdv1.Quorum) bool { return leaderOf(q) != "" })
	old := leaderOf(q)
	begin = time.Now()
	c.deleteMachine(old)
	agents["m3"] = c.newMachine("m3")
	c.awaitHook(old, false)
	t.Logf("replacement of the leader: %s until its hook was gone, longest write %s", time.Since(begin), w.gap())
	c.until("three voters without "+old, func(q *etcdv1.Quorum) bool {
		return stable("m3")(three(q)) &&
			q.GetVoters() == 3 && !has(q, old)
	})
	c.drop(agents[old])

	var rest []string
	for _, name := range []string{"m0", "m1", "m2"} {
		if name != old {
			rest = append(rest, name)
		}
	}
	begin = time.Now()
	for _, name := range rest {
		c.deleteMachine(name)
	}
	agents["m4"], agents["m5"] = c.newMachine("m4"), c.newMachine("m5")
	for _, name := range rest {
		c.awaitHook(name, false)
	}
	c.until("three new voters", stable("m3", "m4", "m5"))
	t.Logf("two replacements at once: %s, longest write %s", time.Since(begin), w.gap())
	w.verify(t)
	t.Logf("what was done:\n%s", c.actions())
	c.checkPermit()
	c.checkAgents(agents["m3"])
}

// checkPermit has the permit taken, refused and given back.
func (c *cluster) checkPermit() {
	c.t.Helper()
	acquire := func(name string) (*etcdv1.DisruptionPermit, error) {
		return c.quorum.AcquireDisruptionPermit(c.t.Context(), &etcdv1.AcquireDisruptionPermitRequest{
			Machine: &metav1.ObjectReference{Kind: "Node", Name: name}, Reason: "drain",
		})
	}
	var p *etcdv1.DisruptionPermit
	var err error
	c.await("the permit", func() bool { // on a busy machine a voter's answer may be late for a moment
		p, err = acquire("m3")
		return rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK
	})
	c.check(err)
	again, err := acquire("m3")
	c.check(err)
	if !p.GetHeld() || p.GetHolder() != "admin" || p.GetMachine().GetName() != "m3" ||
		!again.GetAcquireTime().AsTime().Equal(p.GetAcquireTime().AsTime()) {
		c.t.Errorf("permit %v, and again %v", p, again)
	}
	if _, err := acquire("m4"); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER {
		c.t.Errorf("a second permit: %v, want HELD_BY_OTHER", err)
	}
	if p, err := acquire("worker"); err != nil || p.GetHeld() {
		c.t.Errorf("a machine without a voter: %v, %v", p, err)
	}
	// What was given stays over a crash.
	c.killGuardian()
	c.startGuardian()
	c.until("the permit after a crash", func(q *etcdv1.Quorum) bool {
		return q.GetPermit().GetMachine().GetName() == "m3"
	})
	_, err = c.quorum.ReleaseDisruptionPermit(c.t.Context(), &etcdv1.ReleaseDisruptionPermitRequest{
		Machine: p.GetMachine(),
	}, grpc.WaitForReady(true))
	c.check(err)
	c.until("no permit", func(q *etcdv1.Quorum) bool { return q.GetPermit() == nil && q.GetHealthyVoters() == 3 })
}

// checkAgents has an agent speak for another node, and offer an address that is not its own.
func (c *cluster) checkAgents(a *agent) {
	c.t.Helper()
	for _, r := range []*etcdv1.AttendMemberRequest{
		{Node: "m4", PeerUrl: a.peer, ClientUrl: a.client},
		{Node: a.name, PeerUrl: c.bootstrap[1], ClientUrl: a.client},
	} {
		stream, err := etcdv1.NewQuorumServiceClient(a.conn).AttendMember(c.t.Context(), r, grpc.WaitForReady(true))
		c.check(err)
		if _, err := stream.Recv(); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
			c.t.Errorf("%v: %v, want FORBIDDEN", r, err)
		}
	}
}

func TestALearnerThatNeverComesOnMakesRoomForAnother(t *testing.T) {
	c := newCluster(t)
	c.extra = []string{"--learner-timeout", "1s"}
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	a := c.newMachine("a0", func(a *agent) { a.lazy = true })
	q, _ := c.until("a learner", func(q *etcdv1.Quorum) bool { return len(q.GetMembers()) == 2 })
	if q.GetMembers()[0].GetName() != "a0" && q.GetMembers()[1].GetName() != "a0" {
		t.Errorf("the learner is not called after its node: %v", q)
	}
	for _, name := range []string{"m1", "m2", "m3"} {
		c.newMachine(name)
	}
	c.until("three voters", stable("m1", "m2", "m3"))
	if !strings.Contains(a.log.String(), "command Wipe") {
		t.Errorf("the agent was not notified that its member is gone:\n%s", a.log.String())
	}
	t.Logf("what was done:\n%s", c.actions())
}

// A machine goes without its hook, such as one that was forgotten, and another one gets its name and its address.
func TestASuccessorOfTheSameNameGetsAMemberOfItsOwn(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	agents := map[string]*agent{}
	for _, name := range []string{"m0", "m1", "m2"} {
		agents[name] = c.newMachine(name)
	}
	q, _ := c.until("the pivot", stable("m0", "m1", "m2"))
	ids := map[string]string{}
	for _, m := range q.GetMembers() {
		ids[m.GetName()] = m.GetId()
	}
	former := agents["m1"]
	former.end()
	c.deleteMachine("m1")
	_, err := c.machines.Modify(t.Context(), object.Key{Namespace: "openshift-machine-api", Name: "m1"},
		func(m *machinev1.Machine) error {
			m.Metadata.Finalizers, m.Spec.LifecycleHooks = nil, nil
			return nil
		})
	c.check(err)
	c.newMachine("m1", func(a *agent) {
		a.dir, a.client, a.peer = filepath.Join(c.dir, "successor"), former.client, former.peer
	})
	c.until("a member of the successor's own", func(q *etcdv1.Quorum) bool {
		if !stable("m0", "m1", "m2")(q) {
			return false
		}
		for _, m := range q.GetMembers() {
			if (m.GetName() == "m1") == (m.GetId() == ids[m.GetName()]) {
				return false
			}
		}
		return true
	})
}

func TestItAnswersWhileEtcdDoesNot(t *testing.T) {
	c := newCluster(t)
	c.member = "/bin/false"
	c.startGuardian()
	q,
		_ := c.until("an answer", func(q *etcdv1.Quorum) bool {
		return strings.Contains(q.GetWaitsFor(), "it cannot be reached")
	})
	if q.GetPhase() != "Bootstrapping" || q.GetVoters() != 0 {
		t.Errorf("quorum: %v", q)
	}
	_, err := c.quorum.AcquireDisruptionPermit(t.Context(), &etcdv1.AcquireDisruptionPermitRequest{
		Machine: &metav1.ObjectReference{Name: "m0"}, Reason: "drain",
	})
	if err == nil {
		t.Error("a permit was given without etcd")
	}
}

// actions returns what the guardian did, one line each.
func (c *cluster) actions() string {
	var out strings.Builder
	for line := range strings.Lines(c.guardianLog.String()) {
		var l struct {
			Time, Msg, Action, Member, Machine string
			Elapsed                            int `json:"elapsed_ms"`
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "done" {
			at, _ := time.Parse(time.RFC3339Nano, l.Time)
			fmt.Fprintf(&out, "%s %-16s %s %s (%d ms)\n", at.Format("05.000"), l.Action, l.Member, l.Machine, l.Elapsed)
		}
	}
	return out.String()
}

// three cuts a quorum down to what stable compares when only one name matters.
func three(q *etcdv1.Quorum) *etcdv1.Quorum {
	out := &etcdv1.Quorum{
		Phase: q.GetPhase(), Voters: 1, HealthyVoters: 1 - (q.GetVoters() - q.GetHealthyVoters()),
		Permit: q.GetPermit(), BootstrapRetired: q.GetBootstrapRetired(),
	}
	for _, m := range q.GetMembers() {
		if m.GetName() == "m3" {
			out.Members = append(out.Members, m)
		}
	}
	return out
}

func leaderOf(q *etcdv1.Quorum) string {
	for _, m := range q.GetMembers() {
		if m.GetLeader() {
			return m.GetName()
		}
	}
	return ""
}

func TestKilledAtEveryActionTheGuardianGoesOn(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	w := c.startWriter()
	agents := map[string]*agent{}
	for _, name := range []string{"m0", "m1", "m2"} {
		agents[name] = c.newMachine(name)
	}
	// Killed when it has done something, however little, until everything is done.
	kills := c.killAfterEachAction(stable("m0", "m1", "m2"))
	t.Logf("pivot with the guardian killed %d times, longest write %s", kills, w.gap())
	c.deleteMachine("m1")
	agents["m3"] = c.newMachine("m3")
	kills = c.killAfterEachAction(stable("m0", "m2", "m3"))
	c.awaitHook("m1", false)
	t.Logf("replacement with the guardian killed %d times, longest write %s", kills, w.gap())
	w.verify(t)
	t.Logf("what was done:\n%s", c.actions())
}

// killAfterEachAction kills and starts the guardian as soon as its log shows an action after which it was not killed
// yet, until the quorum is as wanted.
func (c *cluster) killAfterEachAction(done func(*etcdv1.Quorum) bool) int {
	c.t.Helper()
	killed := map[string]bool{}
	for line := range strings.Lines(c.actions()) {
		killed[actionOf(line)] = true
	}
	before := len(killed)
	for {
		asked := time.Time{}
		finished, another := false, ""
		c.await("another action, or the end", func() bool {
			for line := range strings.Lines(c.actions()) {
				if a := actionOf(line); !killed[a] {
					another = a
					return true
				}
			}
			if time.Since(asked) > 50*time.Millisecond {
				asked = time.Now()
				ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
				defer cancel()
				q, err := c.quorum.GetQuorum(ctx, &etcdv1.GetQuorumRequest{}, grpc.WaitForReady(true))
				finished = err == nil && done(q)
			}
			return finished
		})
		if finished {
			return len(killed) - before
		}
		killed[another] = true
		c.killGuardian()
		c.startGuardian()
	}
}

// actionOf returns the action in a log line, without its times.
func actionOf(line string) string {
	f := strings.Fields(line)
	return strings.Join(f[1:min(3, len(f))], " ")
}

// TestThePermitIsNotForAQuorumThatIsAlreadyDamaged kills real voters while a permit is asked for, held, and asked for
// again before a reboot.
func TestThePermitIsNotForAQuorumThatIsAlreadyDamaged(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	agents := map[string]*agent{}
	for _, name := range []string{"m0", "m1", "m2"} {
		agents[name] = c.newMachine(name)
	}
	c.until("the pivot", stable("m0", "m1", "m2"))
	acquire := func(name string) error {
		_, err := c.quorum.AcquireDisruptionPermit(t.Context(), &etcdv1.AcquireDisruptionPermitRequest{
			Machine: &metav1.ObjectReference{Kind: "Node", Name: name}, Reason: "reboot",
		})
		return err
	}
	down := func(name string) { // the process alone: its agent and its data stay
		t.Helper()
		agents[name].kill()
		c.until(name+" is silent", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 2 })
	}
	up := func(name string) {
		t.Helper()
		agents[name].again()
		c.until(name+" is back", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 3 })
	}

	// On a busy host another member may miss a look for a moment, so an answer that is due is waited for. A permit that is
	// not due fails at once.
	granted := func(name string) {
		t.Helper()
		c.await("the permit for "+name, func() bool { return acquire(name) == nil })
	}
	refused := func(name string, reason metav1.ErrorReason, why string) {
		t.Helper()
		c.await(fmt.Sprintf("%s for %s, which names %q", reason, name, why), func() bool {
			err := acquire(name)
			if err == nil {
				t.Fatalf("%s got the permit, want %s", name, reason)
			}
			return rpcerr.Reason(err) == reason && strings.Contains(err.Error(), why)
		})
	}

	down("m2")
	refused("m0", metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, "m2")
	granted("m2") // its own voter is down already
	up("m2")
	refused("m0", metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER, "m2")
	m2 := &metav1.ObjectReference{Kind: "Node", Name: "m2"}
	_, err := c.quorum.ReleaseDisruptionPermit(t.Context(), &etcdv1.ReleaseDisruptionPermitRequest{
		Machine: m2, Holder: "another",
	})
	c.check(err)
	refused("m0", metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER, "m2") // it is not the other's to give back
	_, err = c.quorum.ReleaseDisruptionPermit(t.Context(), &etcdv1.ReleaseDisruptionPermitRequest{Machine: m2})
	c.check(err)
	c.until("no permit", func(q *etcdv1.Quorum) bool { return q.GetPermit() == nil })

	// Granted, and then another voter dies before the reboot: asking again says no, and the permit does not stay with who
	// may not use it.
	granted("m0")
	down("m1")
	refused("m0", metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, "m1")
	c.until("the permit is withdrawn", func(q *etcdv1.Quorum) bool { return q.GetPermit() == nil })
	up("m1")
	granted("m0")

	// Without a majority it says who is missing and since when, and proposes nothing.
	agents["m1"].kill()
	agents["m2"].kill()
	q, _ := c.until("the loss is named", func(q *etcdv1.Quorum) bool {
		return strings.Contains(q.GetWaitsFor(), "1 of 3 run")
	})
	if text := q.GetWaitsFor(); !strings.Contains(text, "member m1 (silent since 2") ||
		!strings.Contains(text, "member m2 (silent since 2") || q.GetNext() != nil {
		t.Errorf("without a majority: waits for %q, next %v", text, q.GetNext())
	}
	for _, m := range q.GetMembers() {
		if (m.GetSilentTime() == nil) != (m.GetName() == "m0") && m.GetName() != "m0" {
			t.Errorf("member %s: silent since %v", m.GetName(), m.GetSilentTime())
		}
	}
}

// TestPeerCertificatesAreForPlannedMembersAlone has agents ask for certificates, and uses the certificate of a member
// that was removed against a live peer port.
func TestPeerCertificatesAreForPlannedMembersAlone(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	agents := map[string]*agent{}
	for _, name := range []string{"m0", "m1", "m2"} {
		agents[name] = c.newMachine(name)
	}
	c.until("the pivot", stable("m0", "m1", "m2"))
	leaver := agents["m1"]
	cert, err := identity.ReadCertificate(leaver.tls("peer.crt"))
	c.check(err)
	if _, _, err := identity.MemberFrom(cert); err != nil || cert.Subject.CommonName != "m1" || len(cert.DNSNames) > 0 ||
		len(cert.IPAddresses) != 1 || !cert.IPAddresses[0].Equal(hostOf(leaver.peer)) {
		t.Errorf("m1's certificate is for %v, %v %v, member %v", cert.Subject, cert.DNSNames, cert.IPAddresses, err)
	}
	if life := time.Until(cert.NotAfter); life > 25*time.Hour {
		t.Errorf("it lives for %s, want a day", life)
	}
	peers := leaver.peerClient() // with the certificate that m1 has now
	if code := get(t, peers, agents["m0"].peer+"/members"); code != http.StatusOK {
		t.Errorf("a member asks a peer: %d, want 200", code)
	}

	// Each is in the audit log before it is signed.
	records, err := os.ReadFile(filepath.Join(c.dir, "guardian", audit.ChangesFile))
	c.check(err)
	before := 0
	for line := range strings.Lines(string(records)) {
		if strings.Contains(line, `"detail":"certificates of etcd member`) && strings.Contains(line, `"stage":"requested"`) {
			before++
		}
	}
	if before < 3 {
		t.Errorf("%d of the three members' certificates are in the audit log before they were signed:\n%s", before, records)
	}

	// One node may not ask for another, and a machine without a member gets nothing.
	_, err = etcdv1.NewQuorumServiceClient(leaver.conn).CertifyMember(t.Context(), &etcdv1.CertifyMemberRequest{
		Node: "m0", ServerRequest: []byte("x"), PeerRequest: []byte("x"),
	})
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
		t.Errorf("m1 asks for m0's: %v, want FORBIDDEN", err)
	}
	twin := c.dial("twin", identity.Request{CommonName: "m0", URI: identity.NodeURI("m0", "another-uid"), Client: true})
	_, err = etcdv1.NewQuorumServiceClient(twin).CertifyMember(t.Context(), &etcdv1.CertifyMemberRequest{
		Node: "m0", ServerRequest: []byte("x"), PeerRequest: []byte("x"),
	})
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
		t.Errorf("a node of another machine with m0's name: %v, want FORBIDDEN", err)
	}

	stream, err := etcdv1.NewQuorumServiceClient(twin).AttendMember(t.Context(), &etcdv1.AttendMemberRequest{
		Node: "m0", PeerUrl: agents["m0"].peer, ClientUrl: agents["m0"].client, HasData: true,
	})
	c.check(err)
	if _, err := stream.Recv(); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FORBIDDEN {
		t.Errorf("a node of another machine with m0's name attends: %v, want FORBIDDEN", err)
	}

	c.deleteMachine("m1")
	agents["m3"] = c.newMachine("m3")
	c.awaitHook("m1", false)
	c.until("three voters without m1", stable("m0", "m2", "m3"))
	if err := leaver.certify(t.Context()); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION {
		t.Errorf("the agent of a removed member: %v, want FAILED_PRECONDITION", err)
	}
	for _, name := range []string{"m0", "m2", "m3"} {
		for what, client := range map[string]*http.Client{
			"the connection that it had": peers,
			"a new connection":           leaver.peerClient(),
		} {
			for _, path := range []string{"/members", "/raft", "/raft/probing", "/version"} {
				if code := get(t, client, agents[name].peer+path); code != http.StatusGone {
					t.Errorf("a removed member asks %s for %s on %s: %d, want 410", name, path, what, code)
				}
			}
		}
	}
	// What the peer authority signed for something else than a member is no peer either.
	c.issue(leaver.tlsDir(), "peer", c.peer, identity.Request{
		CommonName: "m0", IPs: []net.IP{hostOf(agents["m0"].peer)},
		Server: true, Client: true,
	})
	if code := get(t, leaver.peerClient(), agents["m0"].peer+"/members"); code != http.StatusUnauthorized {
		t.Errorf("a certificate that names no member: %d, want 401: 403 would end its member permanently", code)
	}
}

func (a *agent) tlsDir() string         { return filepath.Join(a.dir, "tls") }
func (a *agent) tls(name string) string { return filepath.Join(a.tlsDir(), name) }

// peerClient returns a client with the peer certificate that the agent has now.
func (a *agent) peerClient() *http.Client {
	a.c.t.Helper()
	pair, err := tls.LoadX509KeyPair(a.tls("peer.crt"), a.tls("peer.key"))
	a.c.check(err)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			Certificates: []tls.Certificate{pair}, RootCAs: a.c.peer.Pool(),
			MinVersion: tls.VersionTLS13,
		},
	}}
	a.c.t.Cleanup(client.CloseIdleConnections)
	return client
}

func get(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	r, err := client.Get(url)
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return 0
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	return r.StatusCode
}

// TestAGuardianThatLostItsDirectoryStartsNoSecondEtcd has one come up with a fresh directory beside a live cluster.
func TestAGuardianThatLostItsDirectoryStartsNoSecondEtcd(t *testing.T) {
	c := newCluster(t)
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	agents := map[string]*agent{}
	for _, name := range []string{"m0", "m1", "m2"} {
		agents[name] = c.newMachine(name)
	}
	before, _ := c.until("the pivot", stable("m0", "m1", "m2"))
	c.await("the pivot takes the permission away",
		func() bool { _, err := os.Stat(c.allowed()); return os.IsNotExist(err) })

	c.killGuardian()
	c.check(os.RemoveAll(filepath.Join(c.dir, "guardian")))
	for _, a := range agents {
		a.pauseAttending(true)
	}
	c.startGuardian()
	q, _ := c.until("it says why it starts none", func(q *etcdv1.Quorum) bool {
		return strings.Contains(q.GetWaitsFor(), "an empty bootstrap member is not started")
	})
	if q.GetVoters() != 0 || !strings.Contains(q.GetWaitsFor(), c.allowed()) {
		t.Errorf("quorum of a fresh directory: %d voters, waits for %q", q.GetVoters(), q.GetWaitsFor())
	}
	if _, err := os.Stat(filepath.Join(c.dir, "guardian", "bootstrap", "data")); err == nil {
		t.Error("a second etcd was started")
	}

	// The members are learned from the agents that have them.
	for _, a := range agents {
		a.pauseAttending(false)
	}
	after, _ := c.until("the members are learned", stable("m0", "m1", "m2"))
	if after.GetClusterId() != before.GetClusterId() {
		t.Errorf("cluster %s, want %s", after.GetClusterId(), before.GetClusterId())
	}
}

// TestSpaceIsGivenBackAndWritesWorkAgain fills a real etcd with a small quota by overwriting one key, until it refuses
// writes.
func TestSpaceIsGivenBackAndWritesWorkAgain(t *testing.T) {
	c := newCluster(t)
	c.member += ",--quota-backend-bytes=16777216"
	c.startGuardian()
	c.until("a bootstrap member that answers", func(q *etcdv1.Quorum) bool { return q.GetHealthyVoters() == 1 })
	client := c.etcdAs("machine-api")
	c.killGuardian()
	value, refused := strings.Repeat("x", 256<<10), false
	for i := 0; i < 200 && !refused; i++ {
		_, err := client.Put(t.Context(), "/windlass/machine-api/big", value)
		if err != nil && !strings.Contains(err.Error(), "database space exceeded") {
			t.Fatal(err)
		}
		refused = err != nil
	}
	if !refused {
		t.Fatal("16 MiB were never full")
	}
	// A guardian that starts now wins no election: its lease cannot be written.
	c.startGuardian()
	c.await("writes work again", func() bool {
		_, err := client.Put(t.Context(), "/windlass/machine-api/after", "x")
		return err == nil
	})
	q, _ := c.until("no alarm is left", func(q *etcdv1.Quorum) bool {
		return len(q.GetMembers()) == 1 && len(q.GetMembers()[0].GetAlarms()) == 0
	})
	if m := q.GetMembers()[0]; m.GetDbQuotaBytes() != 16<<20 || m.GetDbSizeBytes() > 8<<20 {
		t.Errorf("after it: %d bytes of %d", m.GetDbSizeBytes(), m.GetDbQuotaBytes())
	}
	for _, action := range []string{"Compact", "Defragment", "Disarm"} {
		if !strings.Contains(c.actions(), action) {
			t.Errorf("what was done lacks %s:\n%s", action, c.actions())
		}
	}
}
