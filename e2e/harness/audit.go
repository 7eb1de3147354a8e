package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/windlass-dev/windlass/kit/audit"
)

// Audit returns what the audit logs of all services have, those that were rotated included, in no particular order
// between logs.
func (s *site) Audit() ([]audit.Record, error) {
	var files []string
	for _, name := range audit.Files {
		found, err := filepath.Glob(s.Dir("services", "*", name+"*"))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	var out []audit.Record
	for _, f := range files {
		records, err := readAudit(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		out = append(out, records...)
	}
	return out, nil
}

func readAudit(path string) ([]audit.Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []audit.Record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r audit.Record
		if json.Unmarshal(lines.Bytes(), &r) == nil { // a line that a kill cut off is none
			out = append(out, r)
		}
	}
	return out, lines.Err()
}
