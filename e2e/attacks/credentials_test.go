package attacks

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
)

// TestIssuedCertificatesMayWhatTheirGroupsMay calls the cluster with what `windlass auth issue` made.
func TestIssuedCertificatesMayWhatTheirGroupsMay(t *testing.T) {
	c := shared.Cluster(t)
	dir := filepath.Join(t.TempDir(), "ann")
	c.MustCLI("auth", "issue", "--user", "ann", "--group", "windlass:viewers", "--for", "1h", "--out", dir)
	as := []string{
		"--server", c.Gateway(), "--cacert", filepath.Join(dir, "ca.crt"), "--cert",
		filepath.Join(dir, "tls.crt"), "--key", filepath.Join(dir, "tls.key"),
	}
	who := c.CLI(append(as, "auth", "whoami")...)
	if who.Code != 0 || !strings.Contains(who.Stdout, "ann") || !strings.Contains(who.Stdout, "windlass:viewers") {
		t.Errorf("whoami: %d\n%s%s", who.Code, who.Stdout, who.Stderr)
	}
	if may := c.CLI(append(as, "auth", "can-i", "list", "machines")...); may.Code != 0 {
		t.Errorf("can-i list machines: %d\n%s", may.Code, may.Stdout)
	}
	if may := c.CLI(append(as, "auth", "can-i", "delete", "machines")...); may.Code != 1 {
		t.Errorf("can-i delete machines: %d\n%s", may.Code, may.Stdout)
	}
	if got := c.CLI(append(as, "get", "machines", "-A")...); got.Code != 0 {
		t.Errorf("get machines: %d\n%s", got.Code, got.Stderr)
	}
	issued(t, c.Dir("pki", audit.ChangesFile), "ann", audit.EventIssue)
}

func TestNobodyIsIssuedANameOfTheSystem(t *testing.T) {
	c := shared.Cluster(t)
	for _, args := range [][]string{
		{"--user", "system:windlass:machine-api"},
		{"--user", "mallory", "--group", "system:masters"},
		{"--user", "mallory", "--group", "system:masters", "--token"},
		{"--service", "machine-api", "--host", "127.0.0.1"},
		{"--user", "mallory", "--for", "8760h"},
	} {
		dir := filepath.Join(t.TempDir(), "out")
		if out := c.CLI(append([]string{"auth", "issue", "--out", dir}, args...)...); out.Code == 0 {
			t.Errorf("auth issue %v: %s", args, out.Stdout)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("auth issue %v made files", args)
		}
	}
	issued(t, c.Dir("pki", audit.RefusalsFile), "system:windlass:machine-api", "deny")
}

// issued fails the test unless a log has a record of a name.
func issued(t *testing.T, path, name, word string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"`+name+`"`) && strings.Contains(line, word) {
			return
		}
	}
	t.Errorf("%s has no record of %s:\n%s", path, name, text)
}

// TestBearerTokensExpire holds a token to its end, on REST; that the file is followed shows at the same time.
func TestBearerTokensExpire(t *testing.T) {
	c := shared.Cluster(t)
	token := strings.TrimSpace(c.MustCLI("auth", "issue", "--user", "tom", "--group", "windlass:viewers", "--token",
		"--for", "1h"))
	ask := func(token string) int {
		resp, err := c.Anonymous().REST(t.Context(), http.MethodGet, "/v1/machines", "", nil, "Authorization",
			"Bearer "+token)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Code
	}
	until(t, "the token is in force", func() bool { return ask(token) == http.StatusOK })
	if out := c.CLI("--server", c.Gateway(), "--cacert", c.Dir("admin", "ca.crt"), "--token", token, "auth", "can-i",
		"list", "machines"); out.Code != 0 {
		t.Errorf("can-i with a token: %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	short, entry, err := identity.NewToken("tess", []string{"windlass:viewers"}, time.Now().Add(4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.AddToken(c.Dir("services", "gateway", "tokens"), entry); err != nil {
		t.Fatal(err)
	}
	until(t, "the short token is in force", func() bool { return ask(short) == http.StatusOK })
	until(t, "the short token has expired", func() bool { return ask(short) == http.StatusUnauthorized })
	if ask(token) != http.StatusOK {
		t.Error("the other token is no longer good")
	}
	text, err := os.ReadFile(c.Dir("services", "gateway", "tokens"))
	if err != nil || strings.Contains(string(text), token) {
		t.Errorf("the file of tokens has the token itself, %v", err)
	}
}
