package command

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/audit"
)

func TestAuditVerifyChecksEveryPath(t *testing.T) {
	dir := t.TempDir()
	trail, err := audit.Open(audit.Config{Dir: dir, Service: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := trail.Close(); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	var out, stderr bytes.Buffer
	err = (&env{out: &out, err: &stderr}).verifyAudit([]string{missing, dir})
	var code exitError
	if !errors.As(err, &code) || code.Code != exitUnread || !strings.Contains(stderr.String(), missing) {
		t.Errorf("exit %v with %q, want %d with the path named", err, stderr.String(), exitUnread)
	}
	if !strings.Contains(out.String(), "OK") {
		t.Errorf("the other log is not checked: %q", out.String())
	}
}
