package audit

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	auditv1 "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
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

func TestARecordIsPrintedWithItsHost(t *testing.T) {
	line := `{"seq":7,"prev":"ab","time":"2026-11-30T12:00:01Z","stage":"completed","user":"ann","verb":"update",` +
		`"group":"machine.openshift.io","resource":"machines","namespace":"dev","name":"m-1","code":"OK"}`
	r := &auditv1.AuditRecord{Host: "h1", Log: "machine-api/audit.log", Line: []byte(line)}
	for _, test := range []struct{ output, want string }{
		{
			"", "2026-11-30T12:00:01.000Z  h1          machine-api          completed   ann                       " +
				"update machines.machine.openshift.io dev/m-1 OK\n",
		},
		{"raw", line + "\n"},
		{
			"json", `{"host":"h1","log":"machine-api/audit.log","record":` + line + `,"line":"` +
				strings.ReplaceAll(line, `"`, `\"`) + `"}` + "\n",
		},
	} {
		var out bytes.Buffer
		if err := printRecord(&out, r, test.output); err != nil || out.String() != test.want {
			t.Errorf("-o %s printed %v\n%q, want\n%q", test.output, err, out.String(), test.want)
		}
	}
	lack := &auditv1.MissingAuditLog{Host: "h3", Reason: "it does not answer"}
	if got := lackText(lack); got != "host h3: records are missing: it does not answer" {
		t.Error(got)
	}
}
