package serve_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
)

// client returns an HTTP client of a user, or one without a certificate if user is empty.
func (c cluster) client(user string, lifetime time.Duration, groups ...string) *http.Client {
	c.t.Helper()
	dir := c.t.TempDir()
	files := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt"),
	}
	c.write(files.CA, c.ca.PEM())
	settings, err := identity.TrustOnly(files.CA)
	if user != "" {
		c.issue(dir, "tls", c.ca, identity.Request{
			CommonName: user, Organizations: groups, URI: identity.UserURI(user),
			Client: true, Lifetime: lifetime,
		})
		settings, err = files.ClientTLS("127.0.0.1")
	}
	if err != nil {
		c.t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: settings}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// get reads /metrics; the code is 0 if the connection ended without an answer.
func get(t *testing.T, client *http.Client, address string) (code int, body string) {
	t.Helper()
	response, err := client.Get("https://" + address + "/metrics")
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(raw)
}

func TestMetricsAreForThoseWhoMayReadThem(t *testing.T) {
	c := newCluster(t)
	cfg := c.config("machine-api")
	p := newProcess(t, cfg)
	start(t, p)
	prometheus := c.client("prometheus", time.Hour, "windlass:metrics-readers")
	for _, tt := range []struct {
		name   string
		client *http.Client
		code   int
		text   string
	}{
		{"Prometheus", prometheus, http.StatusOK, "go_goroutines"},
		{"an administrator", c.client("admin", time.Hour, identity.GroupMasters), http.StatusOK, "go_goroutines"},
		{"no certificate", c.client("", 0), http.StatusUnauthorized, "not known"},
		{"an editor", c.client("eve", time.Hour, "windlass:editors"), http.StatusForbidden, `user "eve" may not get metrics`},
		{"Prometheus by name alone", c.client("prometheus", time.Hour), http.StatusForbidden, "may not"},
		{"another cluster's Prometheus", stranger(t, c), 0, "certificate"},
	} {
		if code, body := get(t, tt.client, p.MetricsAddress()); code != tt.code || !strings.Contains(body, tt.text) {
			t.Errorf("%s: %d %.300s", tt.name, code, body)
		}
	}

	pair, err := tls.LoadX509KeyPair(filepath.Join(cfg.TLSDir, "tls.crt"), filepath.Join(cfg.TLSDir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("windlass_certificate_not_before_timestamp_seconds %v\n", float64(pair.Leaf.NotBefore.Unix())),
		fmt.Sprintf("windlass_certificate_not_after_timestamp_seconds %v\n", float64(pair.Leaf.NotAfter.Unix())),
	} {
		if _, body := get(t, prometheus, p.MetricsAddress()); !strings.Contains(body, want) {
			t.Errorf("no %q in the metrics", want)
		}
	}

	plain, err := net.Dial("tcp", p.MetricsAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if raw, _ := io.ReadAll(plain); strings.Contains(string(raw), "go_goroutines") {
		t.Error("metrics over plain HTTP")
	}

	// Every scrape has its own handshake and is checked: a revocation is effective immediately.
	p.Validity.Deny([]identity.Revocation{{User: "prometheus", Reason: "lost"}})
	if code, body := get(t, prometheus, p.MetricsAddress()); code != http.StatusUnauthorized ||
		!strings.Contains(body, "lost") {
		t.Errorf("a revoked certificate: %d %s", code, body)
	}
}

// stranger has a certificate with the right names, from another authority.
func stranger(t *testing.T, c cluster) *http.Client {
	t.Helper()
	other := newCluster(t)
	client := other.client("prometheus", time.Hour, "windlass:metrics-readers")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	c.write(ca, c.ca.PEM())
	settings, err := identity.TrustOnly(ca)
	if err != nil {
		t.Fatal(err)
	}
	transport, ok := client.Transport.(*http.Transport)
	if !ok {
		t.Fatal(errors.New("not a transport"))
	}
	settings.GetClientCertificate = transport.TLSClientConfig.GetClientCertificate
	transport.TLSClientConfig = settings
	return client
}

func TestAnExpiredCertificateGetsNoMetrics(t *testing.T) {
	c := newCluster(t)
	p := newProcess(t, c.config("machine-api"))
	start(t, p)
	brief := c.client("prometheus", 3*time.Second, "windlass:metrics-readers")
	if code, body := get(t, brief, p.MetricsAddress()); code != http.StatusOK {
		t.Fatalf("before: %d %s", code, body)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		if code, _ := get(t, brief, p.MetricsAddress()); code != http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("an expired certificate is served")
		}
	}
}

// TestSilentConnectionsToMetricsAreFewAndEnd opens more connections than the limit, none of which sends anything. A
// scrape waits for one of them to end, so the process does not hold them all.
func TestSilentConnectionsToMetricsAreFewAndEnd(t *testing.T) {
	c := newCluster(t)
	p := newProcess(t, c.config("machine-api"))
	start(t, p)
	var first net.Conn
	for range 40 {
		conn, err := net.Dial("tcp", p.MetricsAddress())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if first == nil {
			first = conn
		}
	}
	prometheus := c.client("prometheus", time.Hour, "windlass:metrics-readers")
	prometheus.Timeout = time.Minute
	if code, body := get(t, prometheus, p.MetricsAddress()); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	if err := first.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a silent connection is kept while others wait")
	}
}
