package webhook

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

const key = "0123456789abcdef0123456789abcdef"

// serve returns a webhook on loopback, and a caller that may reach it.
func serve(t *testing.T, h http.HandlerFunc) (*Caller, *hookv1.HookWebhook) {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	c := &Caller{Keys: t.TempDir(), Now: func() time.Time { return time.Unix(1700000000, 0) }}
	c.reach = func(netip.Addr) error { return nil }
	if err := os.WriteFile(filepath.Join(c.Keys, "my-backup-controller"), []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Allowed = []string{server.URL}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return c, &hookv1.HookWebhook{Url: server.URL + "/hooks", CaBundle: string(bundle)}
}

func task() *hookv1.HookTask {
	return &hookv1.HookTask{
		Metadata: &metav1.ObjectMeta{Name: "t", Uid: "uid-t"},
		Spec:     &hookv1.HookTaskSpec{Owner: "my-backup-controller", HookName: "BackupFileSystem"},
	}
}

func TestAWebhookGetsItsTaskSigned(t *testing.T) {
	c, w := serve(t, func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		want := "v1," + signature([]byte(key), "uid-t", "1700000000", body)
		if r.Header.Get("Webhook-Signature") != want || r.Header.Get("Webhook-Id") != "uid-t" ||
			r.Header.Get("Authorization") != "" || len(r.TLS.PeerCertificates) > 0 {
			t.Errorf("headers %v", r.Header)
		}
		if !strings.Contains(string(body), "BackupFileSystem") {
			t.Errorf("body %s", body)
		}
		_, _ = io.WriteString(out, `{"state":"InProgress","message":"at work","progressPercent":40,"retryAfterSeconds":5}`)
	})
	a, err := c.Call(t.Context(), w, task())
	if err != nil || a.State != "InProgress" || *a.Percent != 40 || a.RetryAfter != 5 {
		t.Errorf("answer %v, %v", a, err)
	}
}

func TestAnAnswerThatIsNoneIsAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/hooks" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, "302"},
		"an error":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "502"},
		"no content":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "204"},
		"no JSON":          {text("<html>"), "invalid character"},
		"no state":         {text(`{}`), "state"},
		"another state":    {text(`{"state":"Done"}`), `"Done" must be`},
		"more than all":    {text(`{"state":"InProgress","progressPercent":101}`), "progressPercent"},
		"a negative pause": {text(`{"state":"InProgress","retryAfterSeconds":-1}`), "retryAfterSeconds"},
		"more than fits": {
			text(`{"state":"Completed","message":"` + strings.Repeat("x", mostAnswer) + `"}`),
			"longer than",
		},
		"nothing in time": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the caller left
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // an answer now could still reach the caller
		}, "deadline"},
		"an end in between": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			panic(http.ErrAbortHandler)
		}, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			c, w := serve(t, tt.answer)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if name == "nothing in time" {
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			}
			defer cancel()
			w.Url += "?code=s3cret"
			if a, err := c.Call(ctx, w, task()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("answer %v, error %v, want one with %q", a, err, tt.want)
			} else if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows the query of the address: %v", err)
			}
		})
	}
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

func TestACallNeedsAKeyAndAServerThatItsAuthoritySigned(t *testing.T) {
	calls := 0
	c, w := serve(t, func(out http.ResponseWriter, r *http.Request) { calls++; text(`{"state":"Completed"}`)(out, r) })
	file := filepath.Join(c.Keys, "my-backup-controller")
	for content, want := range map[string]string{
		"short":                 "at least 32",
		"whsec_!":               "not base64",
		"whsec_c2hvcnQ=":        "at least 32",
		strings.Repeat(" ", 40): "",
		"whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=": "",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Call(t.Context(), w, task()); want == "" && err != nil ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("key %q: %v, want %q", content, err, want)
		}
	}
	if _, err := c.Call(t.Context(), &hookv1.HookWebhook{Url: w.GetUrl()}, task()); err == nil {
		t.Error("a server of an unknown authority was called")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), w, task()); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("without a key: %v", err)
	}
	if err := os.Symlink("/etc/passwd", file); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), w, task()); err == nil {
		t.Error("a key outside the directory was used")
	}
	if calls != 2 {
		t.Errorf("%d calls arrived, want the 2 with a key", calls)
	}
}

func TestAWebhookOnTheHostItselfIsNotReached(t *testing.T) {
	c, w := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was called") })
	c.reach = nil
	for _, url := range []string{w.GetUrl(), strings.Replace(w.GetUrl(), "127.0.0.1", "localhost", 1)} {
		c.Allowed = []string{url}
		_, err := c.Call(t.Context(), &hookv1.HookWebhook{Url: url, CaBundle: w.GetCaBundle()}, task())
		if err == nil || !strings.Contains(err.Error(), "must not be at a loopback") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestAWebhookThatIsNoLongerAllowedIsNotCalled(t *testing.T) {
	c, w := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was called") })
	for _, allowed := range [][]string{nil, {"https://other.example.com/"}, {w.GetUrl() + "/below"}} {
		c.Allowed = allowed
		if _, err := c.Call(t.Context(), w, task()); err == nil || !strings.Contains(err.Error(), "is not allowed") {
			t.Errorf("allowed are %q: %v", allowed, err)
		}
	}
}
