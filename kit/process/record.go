package process

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/durable"
)

const recordSuffix = ".json"

// record is the stored record of a process. The zero record means none.
type record struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks after boot, field 22 of /proc/<pid>/stat
	Boot      string `json:"bootID"`    // pids and start times are not valid after a reboot
	// or in another container; empty in records of earlier versions
	Namespace string `json:"pidNamespace,omitempty"`
	// random ID, in the environment of this start; empty in records of earlier versions
	Mark   string `json:"mark,omitempty"`
	Cgroup string `json:"cgroup,omitempty"` // directory of its control group; empty without one
	// its groups in hierarchies of version 1
	Controllers cgroup.Controllers `json:"controllers,omitzero"`

	Pool   string        `json:"pool,omitempty"` // Spec.Pool
	UID    uint32        `json:"uid,omitempty"`  // of Spec.User; 0: the supervisor's
	Path   string        `json:"path,omitempty"`
	Args   []string      `json:"args,omitempty"`
	Digest string        `json:"digest"` // of the Spec
	Grace  time.Duration `json:"graceNanoseconds,omitempty"`
	Once   bool          `json:"once,omitempty"` // the record is kept after its end
	// Spec.Wrapper
	Wrapper bool `json:"wrapper,omitempty"`
	// inode of the mount namespace that it was started with; 0: the supervisor's
	Mounts uint64 `json:"mounts,omitempty"`
	Exit   *Exit  `json:"exit,omitempty"` // if Once
}

// readRecord returns the zero record if there is none.
func readRecord(dir, name string) (record, error) {
	data, err := os.ReadFile(filepath.Join(dir, name+recordSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("record of %q: %w", name, err)
	}
	return r, nil
}

// write replaces the record atomically. It is synced only with Once, since that must be known after a crash of the
// host; no other process survives such a crash.
func (r record) write(dir, name string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name+recordSuffix)
	if r.Once {
		return durable.WriteFile(path, append(data, '\n'), 0o600)
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// removeRecord ignores errors: the record of a process that is gone has no effect.
func removeRecord(dir, name string) {
	_ = os.Remove(filepath.Join(dir, name+recordSuffix))
}

// group returns the control group of the process.
func (r record) group() cgroup.Group { return cgroup.Group{Path: r.Cgroup, Controllers: r.Controllers} }

// runs reports whether the process was started with spec. The user is compared, too: any process may have the digest in
// its environment.
func (r record) runs(spec Spec) bool {
	var uid uint32
	if spec.User != nil && spec.User.UID != uint32(os.Geteuid()) {
		uid = spec.User.UID
	}
	return r.Digest == spec.digest() && r.UID == uid
}

// digest returns a hash that differs for specs that are different processes. What only says how a process is isolated
// is not a part, nor the limit of processes: an earlier version, which does not know that, takes the process over, too,
// and the process of an earlier version is taken over.
func (spec Spec) digest() string {
	what := []any{spec.Path, spec.Args, spec.Env, spec.Dir, spec.LogFile}
	if spec.Stdout != "" {
		what = append(what, "pipes", spec.Stdout, spec.Stderr)
	}
	if spec.OnlyEnv {
		what = append(what, "only this environment")
	}
	if spec.Serial != 0 {
		what = append(what, spec.Serial)
	}
	if spec.User != nil {
		what = append(what, User{UID: spec.User.UID, GID: spec.User.GID})
	}
	if len(spec.Files) > 0 {
		what = append(what, spec.Files)
	}
	if spec.Pool != "" {
		what = append(what, "pool", spec.Pool)
	}
	spec.PoolLimits.Processes = 0
	if spec.Limits != (cgroup.Limits{}) || spec.PoolLimits != (cgroup.Limits{}) {
		what = append(what, spec.Limits, spec.PoolLimits)
	}
	data, _ := json.Marshal(what) // strings and numbers always encode
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
