package audit

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
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
	e := &session.Env{Out: &out, Err: &stderr}
	err = verify(e, []string{missing, dir})
	var code failure.Exit
	if !errors.As(err, &code) || code.Code != exitUnread || !strings.Contains(stderr.String(), missing) {
		t.Errorf("exit %v with %q, want %d with the path named", err, stderr.String(), exitUnread)
	}
	if !strings.Contains(out.String(), "OK") {
		t.Errorf("the other log is not checked: %q", out.String())
	}
}
