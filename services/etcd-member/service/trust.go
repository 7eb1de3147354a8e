package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/windlass-dev/windlass/kit/identity"
)

// trustHeader is the header of the answer to Status in which a member says which authorities it trusts since its start,
// as identity.TrustHash does of those of clients and of peers. The guardian starts a member again that trusts others
// than it has to.
const trustHeader = "windlass-trust"

const statusMethod = "/etcdserverpb.Maintenance/Status"

// pinned is the copy of a file of authorities that etcd reads.
func (m *member) pinned(name string) string { return filepath.Join(m.cfg.dataDir, "trusted-"+name) }

// pin copies the authorities for one start of etcd, which reads them several times, and returns their hash: what the
// member says of itself is then what etcd trusts, also if the files change while it starts.
func (m *member) pin() (string, error) {
	var bundles [][]byte
	for _, name := range []string{clientCAFile, peerCAFile} {
		raw, err := os.ReadFile(m.cfg.tls(name))
		if err != nil {
			return "", fmt.Errorf("--tls-dir: %w", err)
		}
		if err := os.WriteFile(m.pinned(name), raw, 0o600); err != nil {
			return "", err
		}
		bundles = append(bundles, raw)
	}
	trust, err := identity.TrustHash(bundles...)
	if err != nil {
		return "", usageError{fmt.Errorf("--tls-dir: %w", err)}
	}
	return trust, nil
}

// sayTrust puts what the member trusts into the answer to Status. One that cannot be sent says nothing, and the
// guardian asks again.
func (g *gate) sayTrust(ctx context.Context, method string) {
	if trust := g.trust.Load(); trust != nil && method == statusMethod {
		_ = grpc.SetHeader(ctx, metadata.Pairs(trustHeader, *trust))
	}
}
