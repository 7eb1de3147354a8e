package authn

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// reviewer is scheduler as the gateway asks it about tokens.
type reviewer struct {
	schedulingv1.UnimplementedServiceAccountTokenServiceServer
	mu      sync.Mutex
	refusal string
	away    bool
	asked   int
}

func (r *reviewer) ReviewServiceAccountToken(context.Context, *schedulingv1.ReviewServiceAccountTokenRequest) (
	*schedulingv1.ReviewServiceAccountTokenResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.away {
		return nil, status.Error(codes.Unavailable, "starting")
	}
	return &schedulingv1.ReviewServiceAccountTokenResponse{Refusal: r.refusal}, nil
}

func (r *reviewer) set(refusal string, away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusal, r.away = refusal, away
}

// accountWorld is a gateway's authenticator with a clock that the test moves.
type accountWorld struct {
	*reviewer
	auth     *Authenticator
	accounts *Accounts
	validity *identity.Validity
	signer   *accounttoken.Signer
	files    identity.Files

	clock sync.Mutex
	ahead time.Duration
}

func newAccountWorld(t *testing.T) *accountWorld {
	t.Helper()
	dir := t.TempDir()
	authority, err := identity.NewAuthority("windlass", 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Issue(identity.Request{
		CommonName: "scheduler", URI: identity.ServiceURI("scheduler"), Client: true, Server: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &accountWorld{reviewer: &reviewer{}, files: identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}}
	for path, data := range map[string][]byte{w.files.Cert: cert, w.files.Key: key, w.files.CA: authority.PEM()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	schedulingv1.RegisterServiceAccountTokenServiceServer(server, w.reviewer)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///scheduler", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if w.validity, err = identity.OpenValidity(""); err != nil {
		t.Fatal(err)
	}
	w.signer = accounttoken.NewSigner(w.files)
	w.accounts = NewAccounts(w.files, w.validity, conn, slog.New(slog.DiscardHandler))
	w.accounts.now = func() time.Time {
		w.clock.Lock()
		defer w.clock.Unlock()
		return time.Now().Add(w.ahead)
	}
	w.auth = New(&Tokens{}, nil, w.accounts, &catalog.Catalog{}, nil, w.validity)
	return w
}

func (w *accountWorld) later(d time.Duration) {
	w.clock.Lock()
	defer w.clock.Unlock()
	w.ahead += d
}

func (w *accountWorld) token(t *testing.T, audiences ...string) string {
	t.Helper()
	text, _, err := w.signer.Sign(accounttoken.Account{
		Namespace: "dev", Name: "operator", UID: "u-1", Pod: "op-0", PodUID: "p-1", Node: "worker-1",
	}, audiences, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (w *accountWorld) request(t *testing.T, token string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/pods", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

func (w *accountWorld) call(t *testing.T, token string) (identity.Caller, codes.Code) {
	t.Helper()
	caller, err := w.auth.Request(w.request(t, token))
	return caller, status.Code(err)
}

func TestAServiceAccountIsKnownByItsToken(t *testing.T) {
	w := newAccountWorld(t)
	caller, code := w.call(t, w.token(t))
	if code != codes.OK || caller.User != "system:serviceaccount:dev:operator" || !caller.In("system:serviceaccounts") ||
		!caller.In("system:serviceaccounts:dev") || !caller.In(identity.GroupAuthenticated) || len(caller.Groups) != 3 {
		t.Errorf("%+v, %s", caller, code)
	}
	if _, code := w.call(t, w.token(t, "vault")); code != codes.Unauthenticated {
		t.Errorf("a token for others: %s", code)
	}
	if _, code := w.call(t, w.token(t)+"x"); code != codes.Unauthenticated {
		t.Errorf("a token with another signature: %s", code)
	}
	if w.asked != 1 {
		t.Errorf("scheduler was asked %d times: once is enough, and never for tokens that are forged or for others", w.asked)
	}
	cert, err := identity.ReadCertificate(w.files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	good := w.token(t)
	w.validity.Deny([]identity.Revocation{{Serial: identity.SerialNumber(cert)}})
	if _, code := w.call(t, good); code != codes.Unauthenticated {
		t.Errorf("the certificate that signed it is revoked: %s", code)
	}
}

func TestTheTokenOfADeletedPodIsRefusedWithinSeconds(t *testing.T) {
	w := newAccountWorld(t)
	token := w.token(t)
	if _, code := w.call(t, token); code != codes.OK {
		t.Fatal(code)
	}
	ctx, stop, err := w.auth.Bound(t.Context(), w.request(t, token))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	w.set("the pod of the token was deleted", false)
	w.later(reviewEvery)
	if _, code := w.call(t, token); code != codes.Unauthenticated {
		t.Errorf("after %s: %s", reviewEvery, code)
	}
	select {
	case <-ctx.Done():
		if status.Code(identity.Refusal(ctx)) != codes.Unauthenticated {
			t.Errorf("the stream ended with %v", identity.Refusal(ctx))
		}
	case <-time.After(10 * time.Second):
		t.Error("a stream that the token opened goes on")
	}
}

func TestWhileSchedulerIsAwayTheLastAnswerCountsForAMinute(t *testing.T) {
	w := newAccountWorld(t)
	token := w.token(t)
	w.set("", true)
	if _, code := w.call(t, token); code != codes.Unavailable {
		t.Errorf("before the first answer: %s", code)
	}
	w.set("", false)
	if _, code := w.call(t, token); code != codes.OK {
		t.Fatal(code)
	}
	w.set("", true)
	w.later(reviewGrace - time.Second)
	if _, code := w.call(t, token); code != codes.OK {
		t.Errorf("within the minute: %s", code)
	}
	w.later(time.Second)
	if _, code := w.call(t, token); code != codes.Unavailable {
		t.Errorf("after the minute: %s", code)
	}
}

func TestManyServiceAccountsTakeBoundedMemory(t *testing.T) {
	w := newAccountWorld(t)
	for i := range maxReviews {
		w.accounts.known[accounttoken.Account{UID: string(rune(i))}] = review{at: time.Now()}
	}
	if _, code := w.call(t, w.token(t)); code != codes.OK || len(w.accounts.known) > maxReviews {
		t.Errorf("%s, %d answers are kept", code, len(w.accounts.known))
	}
}
