package snapshot

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// RevisionBump is what is added to the revision of restored data, and all up to there counts as compacted: a watch or a
// cache that has seen more than the data has is refused, and lists again, instead of missing changes silently. It is
// more than the writes of a cluster in the time between two snapshots. Source: OpenShift's restore, which adds as much
// where it does not know the last index.
const RevisionBump = 1_000_000_000

// Restored is how the first member of a cluster is made from a snapshot.
type Restored struct {
	File    string // of the snapshot
	Raw     bool   // File is a member's database, and has no hash at its end
	DataDir string // of the new member; must not exist or be empty
	Name    string // of the new member
	PeerURL string // of the new member
	Token   string // of the new cluster; empty: one that no cluster had before
}

// Restore makes the data of a cluster with one member from a snapshot. A member of the old cluster can never take part
// in it, since it has another token.
func Restore(r Restored) error {
	info, err := checkFile(r)
	if err != nil {
		return err
	}
	if info.Revision > math.MaxInt64-RevisionBump {
		return fmt.Errorf("revision %d of %s is too large", info.Revision, filepath.Base(r.File))
	}
	token := r.Token
	if token == "" {
		if token, err = NewToken(); err != nil {
			return err
		}
	}
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: r.File, Name: r.Name, OutputDataDir: r.DataDir, PeerURLs: []string{r.PeerURL},
		InitialCluster: r.Name + "=" + r.PeerURL, InitialClusterToken: token, SkipHashCheck: r.Raw,
		RevisionBump: RevisionBump, MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("restore %s: %w", filepath.Base(r.File), err)
	}
	return nil
}

func checkFile(r Restored) (Info, error) {
	if r.Raw {
		return inspect(r.File)
	}
	return Verify(r.File)
}

// NewToken returns a token that no cluster had before.
func NewToken() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return "windlass-" + hex.EncodeToString(b), nil
}
