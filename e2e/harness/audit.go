package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/windlass-dev/windlass/kit/identity"
)

// Audit returns what the audit logs of all services hold, those that were rotated included, in no particular order between services.
func (s *site) Audit() ([]identity.Record, error) {
	files, err := filepath.Glob(s.Dir("services", "*", "audit.log*"))
	if err != nil {
		return nil, err
	}
	var out []identity.Record
	for _, f := range files {
		records, err := readAudit(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		out = append(out, records...)
	}
	return out, nil
}

func readAudit(path string) ([]identity.Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []identity.Record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r identity.Record
		if json.Unmarshal(lines.Bytes(), &r) == nil { // a line that a kill cut off is none
			out = append(out, r)
		}
	}
	return out, lines.Err()
}
