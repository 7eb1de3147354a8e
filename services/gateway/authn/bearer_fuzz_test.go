package authn

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// FuzzBearer gives any text as the Authorization header to a gateway that has an issuer, which cannot be reached.
func FuzzBearer(f *testing.F) {
	for _, seed := range []string{
		"", "Bearer", "Bearer ", "Bearer x", "bearer a.b.c", "Basic eDp5", "Bearer " + strings.Repeat("a", 20000),
		"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.", "Bearer eyJhbGciOiJFUzI1NiIsImp3ayI6e319.e30.AAAA", "Bearer ..",
		"Bearer \x00.\xff.é",
	} {
		f.Add(seed)
	}
	issuer, err := NewOIDC(OIDCConfig{IssuerURL: "https://127.0.0.1:1", ClientID: "x"}, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	validity, err := identity.OpenValidity("")
	if err != nil {
		f.Fatal(err)
	}
	a := New(&Tokens{}, issuer, nil, &catalog.Catalog{}, nil, validity)
	f.Fuzz(func(t *testing.T, header string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nodes", nil)
		r.Header["Authorization"] = []string{header}
		if caller, err := a.Request(r); err == nil || caller.User != "" {
			t.Errorf("%q is the token of %q", header, caller.User)
		}
	})
}
