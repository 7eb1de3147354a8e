package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/node-agent/pki"
)

const (
	// syncEvery is how soon a host notices that something is asked of its certificates, and syncBusy how often it says how
	// far that is.
	syncEvery = 5 * time.Second
	syncBusy  = 500 * time.Millisecond
)

// Certificates does what the cluster asks of the certificates of a host. Its methods are for one goroutine.
type Certificates interface {
	// Report returns what the host has, and keys that it has encrypted for other hosts.
	Report(ctx context.Context) (*hostv1.HostCertificates, []*hostv1.SealedKey, error)
	// Follow does what an answer asks for, but for a renewal.
	Follow(ctx context.Context, answer *hostv1.SyncCertificatesResponse) error
	// Renew renews all certificates of the host now and returns them; conn is a connection as the host.
	Renew(ctx context.Context, conn grpc.ClientConnInterface) ([]*hostv1.HostCertificate, error)
}

// sync reports the certificates of the host and does what is asked of them, until ctx ends.
func (a *Agent) sync(ctx context.Context, conn grpc.ClientConnInterface) error {
	certificates, said, answer := a.cfg.Certificates, "", &hostv1.SyncCertificatesResponse{}
	if certificates == nil {
		certificates = &workerCertificates{agent: a, conn: conn}
	}
	for ctx.Err() == nil {
		next, err := a.syncOnce(ctx, conn, certificates)
		if err == nil {
			answer = next
		}
		if text := fmt.Sprint(err); text != said && ctx.Err() == nil {
			if said = text; err != nil {
				a.cfg.Log.WarnContext(ctx, "what is asked of the certificates of this host is not done yet", "error", err)
			}
		}
		pause := syncEvery
		if answer.GetRotation() != nil {
			pause = syncBusy
		}
		backoff.Sleep(ctx, pause)
	}
	return nil
}

func (a *Agent) syncOnce(ctx context.Context, conn grpc.ClientConnInterface, c Certificates) (
	*hostv1.SyncCertificatesResponse, error,
) {
	report, sealed, err := c.Report(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.lastRenewal(report); err != nil {
		return nil, err
	}
	answer, err := a.callSync(ctx, conn, report, sealed)
	if err != nil {
		return nil, err
	}
	if id := answer.GetRenewalId(); id != "" && id != report.GetRenewalId() {
		if err := a.renewAll(ctx, conn, c, report, id); err != nil {
			return answer, err
		}
	}
	return answer, c.Follow(ctx, answer)
}

func (a *Agent) callSync(ctx context.Context, conn grpc.ClientConnInterface, report *hostv1.HostCertificates,
	sealed []*hostv1.SealedKey,
) (*hostv1.SyncCertificatesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	return hostv1.NewHostServiceClient(conn).SyncCertificates(ctx, &hostv1.SyncCertificatesRequest{
		Name: a.cfg.Name, Certificates: report, SealedKeys: sealed,
	})
}

// renewAll renews all certificates, writes down which, and reports it.
func (a *Agent) renewAll(ctx context.Context, conn grpc.ClientConnInterface, c Certificates,
	report *hostv1.HostCertificates, id string,
) error {
	renewed, err := c.Renew(ctx, conn)
	record := &hostv1.HostCertificates{RenewalId: &id, Renewed: renewed}
	if err != nil {
		text := err.Error()
		text = strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
		record.RenewalFailure = &text
	}
	if err != nil {
		a.cfg.Log.WarnContext(ctx, "not all certificates renewed on request", "count", len(renewed), "error", err)
	} else {
		a.cfg.Log.InfoContext(ctx, "certificates renewed on request", "count", len(renewed))
	}
	raw, err := protojson.Marshal(record)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(a.renewalFile(), raw, 0o600); err != nil {
		return err
	}
	report.RenewalId, report.Renewed, report.RenewalFailure = record.RenewalId, record.Renewed, record.RenewalFailure
	_, err = a.callSync(ctx, conn, report, nil)
	return err
}

func (a *Agent) renewalFile() string { return filepath.Join(a.cfg.Dir, "host", "renewal.json") }

// lastRenewal adds to a report what the disk says of the last renewal on request.
func (a *Agent) lastRenewal(report *hostv1.HostCertificates) error {
	raw, err := os.ReadFile(a.renewalFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var record hostv1.HostCertificates
	if err := protojson.Unmarshal(raw, &record); err != nil {
		return fmt.Errorf("%s: %w", a.renewalFile(), err)
	}
	report.RenewalId, report.Renewed, report.RenewalFailure = record.RenewalId, record.Renewed, record.RenewalFailure
	return nil
}

// workerCertificates is Certificates of a worker, whose certificates the cluster signs.
type workerCertificates struct {
	agent    *Agent
	conn     grpc.ClientConnInterface
	rotation *hostv1.Rotation
	tried    time.Time // when the certificates were renewed last for the rotation
}

// renewPause is between two renewals for one step: each is in the audit log of machine-api.
const renewPause = 3 * time.Second

// leaf is one certificate of a worker and the authorities beside it.
type leaf struct{ name, cert, ca string }

func (w *workerCertificates) leaves() []leaf {
	dir := w.agent.cfg.Dir
	out := []leaf{{"host/tls.crt", w.agent.cfg.Files.Cert, w.agent.cfg.Files.CA}}
	node := leaf{"node/pki/agent.crt", filepath.Join(dir, "node/pki/agent.crt"), filepath.Join(dir, "node/pki/ca.crt")}
	if _, err := os.Stat(node.cert); err == nil {
		out = append(out, node)
	}
	return out
}

// Report implements Certificates.
func (w *workerCertificates) Report(context.Context) (*hostv1.HostCertificates, []*hostv1.SealedKey, error) {
	out := &hostv1.HostCertificates{}
	if w.rotation == nil || w.rotation.GetAuthority() != servicesAuthority {
		return out, nil, nil
	}
	id := w.rotation.GetId()
	out.RotationId = &id
	trust, pending, err := w.state()
	if err != nil {
		return nil, nil, err
	}
	if trust != "" {
		out.Trust = &trust
	}
	if pending != "" {
		out.Pending = &pending
	} else {
		completed := map[hostv1.Rotation_Step]string{
			hostv1.Rotation_STEP_PREPARE: "Prepare", hostv1.Rotation_STEP_ACTIVATE: "Activate",
			hostv1.Rotation_STEP_RETIRE: "Retire",
		}[w.rotation.GetStep()]
		out.Completed = &completed
	}
	return out, nil, nil
}

// servicesAuthority is the only authority of which a worker has certificates.
const servicesAuthority = "windlass"

// state returns the hash of what the host trusts, empty if its files differ, and what is not done yet of the present
// step.
func (w *workerCertificates) state() (trust, pending string, err error) {
	for i, l := range w.leaves() {
		bundle, err := os.ReadFile(l.ca)
		if err != nil {
			return "", "", err
		}
		hash, err := identity.TrustHash(bundle)
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", l.ca, err)
		}
		if i == 0 {
			trust = hash
		} else if hash != trust {
			trust = ""
		}
		if hash != w.rotation.GetTrust() {
			pending = "it does not have the authorities to trust yet"
		}
		if w.rotation.GetStep() == hostv1.Rotation_STEP_PREPARE {
			continue
		}
		cert, err := identity.ReadCertificate(l.cert)
		if err != nil {
			return "", "", err
		}
		if of, err := identity.IssuedBy(w.rotation.GetNextCertificate(), cert); err != nil || !of {
			pending = "certificate " + l.name + " is of the former authority"
		}
	}
	if uid, err := w.agent.machine.uid(); err != nil || uid != "" && len(w.leaves()) == 1 {
		return trust, "its machine has not joined yet", err
	}
	return trust, pending, nil
}

// Follow implements Certificates: until the certificates are what the step asks for, they are renewed. A host of the
// control plane that is a step behind may have signed them.
func (w *workerCertificates) Follow(ctx context.Context, answer *hostv1.SyncCertificatesResponse) error {
	w.rotation = answer.GetRotation()
	if w.rotation == nil || w.rotation.GetAuthority() != servicesAuthority {
		return nil
	}
	if _, pending, err := w.state(); err != nil || pending == "" || time.Since(w.tried) < renewPause {
		return err
	}
	w.tried = time.Now()
	_, err := w.Renew(ctx, w.conn)
	return err
}

// Renew implements Certificates.
func (w *workerCertificates) Renew(ctx context.Context, conn grpc.ClientConnInterface) ([]*hostv1.HostCertificate,
	error,
) {
	if err := w.agent.renewOnce(ctx, conn); err != nil {
		return nil, fmt.Errorf("certificate of the host: %w", err)
	}
	leaves := w.leaves()
	if len(leaves) > 1 {
		endpoints, err := w.agent.cfg.gateways()
		if err != nil {
			return nil, err
		}
		if err := pki.NewStore(w.agent.machine.path(), endpoints, "").RenewNow(ctx, w.agent.cfg.Log); err != nil {
			return nil, fmt.Errorf("certificate of the machine: %w", err)
		}
	}
	var out []*hostv1.HostCertificate
	for _, l := range leaves {
		cert, err := identity.ReadCertificate(l.cert)
		if err != nil {
			return out, err
		}
		out = append(out, &hostv1.HostCertificate{Name: l.name, ExpiryTime: timestamppb.New(cert.NotAfter)})
	}
	return out, nil
}
