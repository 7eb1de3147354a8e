package rotation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

const (
	// maxText is how much the inventory takes of what is pending.
	maxText = 1000
	// callPatience bounds one call or probe.
	callPatience = 10 * time.Second
)

// Follower does on a control-plane host what a rotation of its cluster asks for. It is for one goroutine.
type Follower struct {
	cluster  *cluster.Cluster
	log      *slog.Logger
	key      key
	signed   []byte           // certificate of the authority that signed the key
	sig      []byte           // its signature
	rotation *hostv1.Rotation // as the inventory said last; nil if there is none
	sealed   []*hostv1.SealedKey
	probed   string // rotation and step for which all programs were probed
	failure  string // of the last attempt to do something
}

// NewFollower returns a Follower for this host.
func NewFollower(c *cluster.Cluster, log *slog.Logger) (*Follower, error) {
	k, err := newKey()
	return &Follower{cluster: c, log: log, key: k}, err
}

// Report returns what this host has, and the keys that it has encrypted for others since the last call.
func (f *Follower) Report(ctx context.Context) (*hostv1.HostCertificates, []*hostv1.SealedKey, error) {
	out := &hostv1.HostCertificates{}
	if r := f.rotation; r != nil {
		out.RotationId = new(r.GetId())
		st, err := f.cluster.RotationState(r.GetAuthority())
		if err != nil {
			return nil, nil, err
		}
		out.Step, out.Trust = new(stepNames[st.Step]), text(st.Trust)
		pending, err := f.pending(ctx, st)
		if err != nil {
			return nil, nil, err
		}
		switch { // a host that has done its part may still have failed to encrypt the key for others
		case pending == "":
			pending = f.failure
		case f.failure != "":
			pending += ": " + f.failure
		}
		if out.Pending = text(strings.ToValidUTF8(pending[:min(len(pending), maxText)], "")); pending == "" {
			out.Completed = new(completed[r.GetStep()])
		}
		if r.GetStep() == hostv1.Rotation_STEP_PREPARE && !has(st, r) {
			if err := f.sign(out); err != nil {
				return nil, nil, err
			}
		}
	}
	sealed := f.sealed
	f.sealed = nil
	return out, sealed, nil
}

var stepNames = map[identity.RotationStep]string{
	identity.Steady: "Steady", identity.Prepared: "Prepared", identity.Activated: "Activated",
	identity.Retired: "Retired",
}

var completed = map[hostv1.Rotation_Step]string{
	hostv1.Rotation_STEP_PREPARE: "Prepare", hostv1.Rotation_STEP_ACTIVATE: "Activate",
	hostv1.Rotation_STEP_RETIRE: "Retire",
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// has reports whether this host has the next authority of a rotation with its key.
func has(st cluster.RotationState, r *hostv1.Rotation) bool {
	return bytes.Equal(st.Next, r.GetNextCertificate()) || signs(st, r)
}

func signs(st cluster.RotationState, r *hostv1.Rotation) bool {
	return bytes.Equal(st.Signing, r.GetNextCertificate())
}

// sign adds the key of this process, with a signature that only a control-plane host can make.
func (f *Follower) sign(out *hostv1.HostCertificates) error {
	services, err := identity.LoadAuthority(f.cluster.Dir("pki"), topology.APIAuthority)
	if err != nil {
		return err
	}
	if !bytes.Equal(f.signed, services.PEM()) { // signatures differ each time, and a report is stored when it differs
		if f.sig, err = services.SignStatement(forSealing+f.cluster.Member.Name, f.key.public()); err != nil {
			return err
		}
		f.signed = services.PEM()
	}
	out.SealingKey, out.SealingSignature = f.key.public(), f.sig
	return nil
}

// pending returns what this host has not done yet of the present step; empty if it has done all.
func (f *Follower) pending(ctx context.Context, st cluster.RotationState) (string, error) {
	r := f.rotation
	switch {
	case !has(st, r):
		return "it waits for the key of the next authority, which another control-plane host encrypts for it", nil
	case r.GetStep() != hostv1.Rotation_STEP_PREPARE && !signs(st, r):
		return "it signs with the former authority", nil
	case r.GetStep() != hostv1.Rotation_STEP_PREPARE && st.Others > 0:
		return fmt.Sprintf("it has %d certificates of the former authority", st.Others), nil
	case st.Trust != r.GetTrust():
		return "not all its programs have the authorities to trust", nil
	}
	if r.GetStep() == hostv1.Rotation_STEP_PREPARE && r.GetAuthority() == topology.APIAuthority {
		if joins, err := f.cluster.MachineJoins(); err != nil || joins {
			return "its machine has not joined yet", err
		}
	}
	probe := r.GetId() + r.GetStep().String()
	// A member of etcd may come later, or be started by an etcd-guardian that leads elsewhere.
	if f.probed == probe && r.GetAuthority() == topology.APIAuthority {
		return "", nil
	}
	pending := f.probe(ctx)
	if pending == "" {
		f.probed = probe
	}
	return pending, nil
}

// probe returns which program of this host, or whether its member of etcd, does not use yet what the disk says; empty
// if all do.
func (f *Follower) probe(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	name := f.rotation.GetAuthority()
	if name != topology.APIAuthority {
		return f.probeMember(ctx)
	}
	for _, program := range f.cluster.Programs() {
		if err := ProbeProgram(ctx, f.cluster, name, program); err != nil {
			return fmt.Sprintf("%s does not use the authorities yet: %v", program, err)
		}
	}
	return ""
}

// probeMember is probe for an authority of etcd. A member reads its authorities when it starts, and is started again by
// etcd-guardian, which reads them on the host where it leads.
func (f *Follower) probeMember(ctx context.Context) string {
	files := f.cluster.AdminFiles()
	conn, err := client.Dial(client.Target{Server: f.cluster.Gateway(), CA: files.CA, Cert: files.Cert, Key: files.Key})
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	q, err := etcdv1.NewQuorumServiceClient(conn).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
	if err != nil {
		return "etcd-guardian does not answer: " + err.Error()
	}
	trust, err := f.cluster.MemberTrust()
	if err != nil {
		return err.Error()
	}
	if q.GetTrust() != trust {
		return "etcd-guardian has other authorities on the host where it leads"
	}
	for _, m := range q.GetMembers() {
		if !f.own(m) {
			continue
		}
		switch {
		case !m.GetHealthy():
			return fmt.Sprintf("member %s of etcd is not healthy: %s", m.GetName(), m.GetMessage())
		case m.GetTrust() != trust:
			return fmt.Sprintf("member %s of etcd has not been started again", m.GetName())
		}
		if err := ProbeMember(ctx, f.cluster, f.rotation.GetAuthority(), m); err != nil {
			return fmt.Sprintf("member %s of etcd does not use the authorities yet: %v", m.GetName(), err)
		}
	}
	return ""
}

// own reports whether a member of etcd is on this host.
func (f *Follower) own(m *etcdv1.Member) bool {
	for _, address := range m.GetPeerUrls() {
		if u, err := url.Parse(address); err == nil && u.Hostname() == f.cluster.Host() {
			return true
		}
	}
	return false
}

// Follow does what an answer of the inventory asks for. Each step may be cut off anywhere: the next call completes it.
func (f *Follower) Follow(ctx context.Context, answer *hostv1.SyncCertificatesResponse) error {
	r := answer.GetRotation()
	f.rotation = r
	err := f.follow(ctx, r, answer.GetWanted())
	f.failure = ""
	if err != nil {
		f.failure = err.Error()
	}
	return err
}

func (f *Follower) follow(ctx context.Context, r *hostv1.Rotation, wanted []*hostv1.SealingKey) error {
	if r == nil {
		for _, name := range topology.Authorities() {
			if err := f.end(ctx, name); err != nil {
				return err
			}
		}
		return nil
	}
	name := r.GetAuthority()
	st, err := f.cluster.RotationState(name)
	if err != nil {
		return err
	}
	if st.Step == identity.Retired && !signs(st, r) { // of the rotation before, which all hosts have completed
		return f.end(ctx, name)
	}
	switch {
	case !has(st, r):
		err = f.adopt(r)
	case r.GetStep() == hostv1.Rotation_STEP_PREPARE:
		err = f.seal(r, wanted)
	case st.Step == identity.Prepared:
		f.log.InfoContext(ctx, "the next authority signs on this host", "authority", name)
		err = f.cluster.ActivateRotation(name)
	case r.GetStep() == hostv1.Rotation_STEP_RETIRE && st.Step == identity.Activated:
		f.log.InfoContext(ctx, "the former authority is not trusted on this host any more", "authority", name)
		err = f.cluster.RetireFormer(name)
	}
	if err != nil {
		return err
	}
	_, err = f.cluster.EnsureCertificates(time.Now()) // a step may have been cut off before the files were written
	return err
}

// end ends a rotation that no host waits for any more.
func (f *Follower) end(ctx context.Context, name string) error {
	step, err := f.cluster.Rotation(name)
	if err != nil || step != identity.Retired {
		return err
	}
	f.log.InfoContext(ctx, "rotation finished", "authority", name)
	return f.cluster.EndRotation(name)
}

// adopt takes the key of the next authority, once another host has encrypted it for this one.
func (f *Follower) adopt(r *hostv1.Rotation) error {
	present, err := identity.LoadAuthority(f.cluster.Dir("pki"), r.GetAuthority())
	if err != nil {
		return err
	}
	if err := present.CheckStatement(forNext+r.GetAuthority(), r.GetNextCertificate(), r.GetSignature()); err != nil {
		return fmt.Errorf("the next authority is refused: %w", err)
	}
	for _, k := range r.GetSealedKeys() {
		if k.GetHost() != f.cluster.Member.Name || !bytes.Equal(k.GetSealingKey(), f.key.public()) {
			continue
		}
		keyPEM, err := f.key.open(r, f.cluster.Member.Name, k)
		if err != nil {
			return fmt.Errorf("the key of the next authority: %w", err)
		}
		return f.cluster.AdoptNext(r.GetAuthority(), r.GetNextCertificate(), keyPEM)
	}
	return nil
}

// seal encrypts the key of the next authority for the hosts that want it.
func (f *Follower) seal(r *hostv1.Rotation, wanted []*hostv1.SealingKey) error {
	if len(wanted) == 0 {
		return nil
	}
	dir := f.cluster.Dir("pki")
	services, err := identity.LoadAuthority(dir, topology.APIAuthority)
	if err != nil {
		return err
	}
	next, err := identity.NextAuthority(dir, r.GetAuthority())
	if err != nil {
		return err
	}
	keyPEM, err := next.KeyPEM()
	if err != nil {
		return err
	}
	var failed []error
	for _, w := range wanted {
		k, err := seal(services, r, w, keyPEM)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		f.sealed = append(f.sealed, k)
	}
	return errors.Join(failed...)
}

// Renew renews all certificates of this host now.
func (f *Follower) Renew(context.Context, grpc.ClientConnInterface) ([]*hostv1.HostCertificate, error) {
	return Renew(f.cluster)
}

// Renew renews all certificates of a control-plane host now, by the authorities on its disk, and returns those that it
// has renewed, also if others failed.
func Renew(c *cluster.Cluster) ([]*hostv1.HostCertificate, error) {
	list, err := c.RenewCertificates()
	var out []*hostv1.HostCertificate
	for _, c := range list {
		out = append(out, &hostv1.HostCertificate{Name: c.Path, ExpiryTime: timestamppb.New(c.NotAfter)})
	}
	return out, err
}
