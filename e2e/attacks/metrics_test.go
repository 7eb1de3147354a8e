package attacks

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// scrape reads a program's metrics as a caller, or with a bearer token.
func scrape(t *testing.T, who *harness.Caller, address, token string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		(&url.URL{Scheme: "https", Host: address, Path: "/metrics"}).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := who.HTTP().Do(request)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	defer response.Body.Close() //nolint:errcheck
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	return response.StatusCode, string(raw)
}

func TestMetricsNeedTheRightToReadThem(t *testing.T) {
	c := shared.Cluster(t)
	made := identity.Files{
		Cert: c.Dir("prometheus", "tls.crt"), Key: c.Dir("prometheus", "tls.key"),
		CA: c.Dir("prometheus", "ca.crt"),
	}
	prometheus := c.With(made.Cert, made.Key, made.CA)
	for _, service := range topology.Services() {
		program, address := service.Name, c.Address(service.Port+topology.MetricsStep)
		if code, body := scrape(t, prometheus, address, ""); code != http.StatusOK ||
			!strings.Contains(body, "\ngo_goroutines ") {
			t.Errorf("%s: the certificate for Prometheus: %d %.300s", program, code, body)
		}
		for who, caller := range map[string]*harness.Caller{
			"anonymous": c.Anonymous(), "an editor": c.As("eve", "windlass:editors"),
			"a viewer": c.As("vic", "windlass:viewers"),
		} {
			want := http.StatusForbidden
			if who == "anonymous" {
				want = http.StatusUnauthorized
			}
			if code, body := scrape(t, caller, address, ""); code != want || strings.Contains(body, "go_goroutines") {
				t.Errorf("%s: %s: %d %.300s", program, who, code, body)
			}
		}
		response, err := http.Get("http://" + address + "/metrics") //nolint:gosec,noctx // the attack
		if err == nil {
			if response.StatusCode == http.StatusOK {
				t.Errorf("%s: metrics over plain HTTP", program)
			}
			response.Body.Close() //nolint:errcheck
		}
		// Nothing else is served there, to anyone.
		debug, err := c.Admin().HTTP().Get("https://" + address + "/debug/pprof/") //nolint:noctx
		if err != nil {
			t.Fatal(err)
		}
		debug.Body.Close() //nolint:errcheck
		if debug.StatusCode != http.StatusNotFound {
			t.Errorf("%s: /debug/pprof/: %d", program, debug.StatusCode)
		}
	}

	// The certificate is good for metrics alone.
	if response, err := prometheus.REST(t.Context(), http.MethodGet, "/v1/machines", "", nil); err != nil ||
		response.Code != http.StatusForbidden {
		t.Errorf("machines as Prometheus: %d %v", response.Code, err)
	}

	// The gateway knows tokens, too.
	gateway := c.Address(topology.Port(topology.Gateway) + topology.MetricsStep)
	good := strings.TrimSpace(c.MustCLI("auth", "issue", "--user", "prom", "--group", "windlass:metrics-readers",
		"--token", "--for", "1h"))
	bad := strings.TrimSpace(c.MustCLI("auth", "issue", "--user", "ed", "--group", "windlass:editors", "--token", "--for",
		"1h"))
	until(t, "the gateway knows the tokens", func() bool {
		code, _ := scrape(t, c.Anonymous(), gateway, good)
		return code == http.StatusOK
	})
	for token, want := range map[string]int{bad: http.StatusForbidden, "made-up": http.StatusUnauthorized} {
		if code, body := scrape(t, c.Anonymous(), gateway, token); code != want {
			t.Errorf("a token that may not: %d %.300s", code, body)
		}
	}
}
