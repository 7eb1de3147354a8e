package service

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/webhook/reach"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ownAddress returns an address of this host that a webhook may have.
func ownAddress(t *testing.T) netip.Addr {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && reach.Allowed(p.Addr()) == nil {
			return p.Addr()
		}
	}
	t.Skip("this host has no address but loopback and link-local ones, where no webhook may be")
	return netip.Addr{}
}

// serveTLS serves at an address with a certificate of its own, which it returns as PEM.
func serveTLS(t *testing.T, at netip.Addr, h http.Handler) (url, bundle string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{at.AsSlice()},
		IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	_ = server.Listener.Close() // it listens on loopback
	server.Listener = listener
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
}

func TestAWebhookDoesTheWorkOfAnOwner(t *testing.T) {
	var calls atomic.Int32
	url, bundle := serveTLS(t, ownAddress(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"hookName":"BackupFileSystem"`) || r.Header.Get("Webhook-Signature") == "" {
			t.Errorf("headers %v, body %s", r.Header, body)
		}
		switch calls.Add(1) {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			_, _ = io.WriteString(w, `{"state":"InProgress","message":"copying","progressPercent":40,"retryAfterSeconds":1}`)
		default:
			_, _ = io.WriteString(w, `{"state":"Completed","message":"saved"}`)
		}
	}))
	keys := t.TempDir()
	if err := os.WriteFile(filepath.Join(keys, backup), []byte(strings.Repeat("k", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startWith(t, options{webhooks: []string{url + "/hooks"}, keys: keys})
	owners := hookv1.NewHookOwnerServiceClient(c.admin())
	owner := func(url string) *hookv1.CreateHookOwnerRequest {
		return &hookv1.CreateHookOwnerRequest{HookOwner: &hookv1.HookOwner{
			Metadata: &metav1.ObjectMeta{Name: backup},
			Spec: &hookv1.HookOwnerSpec{
				Owner: backup, Webhook: &hookv1.HookWebhook{Url: url, CaBundle: bundle, Timeout: "5s"},
			},
		}}
	}
	_, err := owners.CreateHookOwner(t.Context(), owner(url+"/other"))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "spec.webhook.url") {
		t.Errorf("an address that is not allowed: %v", err)
	}
	servetest.Await(t, func() string {
		if _, err := owners.CreateHookOwner(t.Context(), owner(url+"/hooks")); err != nil {
			return err.Error()
		}
		return ""
	})
	c.deleteMachine("m", backupHook())
	c.theTask("m", func(task *hookv1.HookTask) bool {
		return task.GetStatus().GetWebhook().GetFailures() == 1 &&
			strings.Contains(task.GetStatus().GetMessage(), "503")
	})
	c.theTask("m", func(task *hookv1.HookTask) bool {
		s := task.GetStatus()
		return s.GetPhase() == "Claimed" && s.GetProgressPercent() == 40 && s.GetMessage() == "copying"
	})
	c.awaitNoTasks()
	if hooks := c.hooksOf("m"); len(hooks) > 0 {
		t.Errorf("the machine has hooks %v", hooks)
	}
	for _, reason := range []string{"HookWebhookFailed", "HookClaimed", "HookCompleted"} {
		c.awaitEvent(reason)
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
}
