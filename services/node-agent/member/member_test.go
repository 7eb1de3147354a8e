package member

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/windlass-dev/windlass/kit/process"
)

func TestHasData(t *testing.T) {
	for _, tc := range []struct {
		name string
		file string
		want bool
	}{
		{"nothing", "tls/peer.key", false},
		{"a database that a failed start left", "data/member/snap/db", false},
		{"a log", "data/member/wal/0000000000000000-0000000000000000.wal", true},
		{"a log that was not finished", "data/member/wal.tmp/0.tmp", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, tc.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			log := slog.New(slog.NewTextHandler(io.Discard, nil))
			m := New(Config{Dir: dir, Command: []string{"/bin/true"}}, process.NewSupervisor(filepath.Join(dir, "run"), log),
				log)
			if got := m.HasData(); got != tc.want {
				t.Errorf("HasData = %v", got)
			}
		})
	}
}
