package authn

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// TestCredentialsRevokedAfterTheRequestWasAdmittedOpenNoStream revokes in the moment between both.
func TestCredentialsRevokedAfterTheRequestWasAdmittedOpenNoStream(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(line("one", "alice", "staff")), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	validity, err := identity.OpenValidity("")
	if err != nil {
		t.Fatal(err)
	}
	a := New(tokens, nil, nil, &catalog.Catalog{}, nil, validity)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/machines:watch", nil)
	r.Header.Set("Authorization", "Bearer one")
	if _, err := a.Request(r); err != nil {
		t.Fatal(err)
	}
	validity.Deny([]identity.Revocation{{User: "alice"}})
	if _, _, err := a.Bound(t.Context(), r); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Bound = %v: the stream would have no end", err)
	}
}
