package service

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/services/gateway/authn"
)

// TestCallersWithTokensOfAnIssuerAreKnown asks as such a caller, over both lanes and REST, who it is and what it may
// do.
func TestCallersWithTokensOfAnIssuerAreKnown(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var issuer *httptest.Server
	issuer = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "openid-configuration") {
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys"})
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), Use: "sig"}}})
	}))
	t.Cleanup(issuer.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, func(c *Config) {
		c.OIDC = authn.OIDCConfig{
			IssuerURL: issuer.URL, ClientID: "windlass", UsernamePrefix: "-", GroupsClaim: "groups",
			GroupsPrefix: "windlass:", CAFile: ca,
		}
	})
	token := func(lasts time.Duration) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": issuer.URL, "aud": "windlass", "sub": "olga", "groups": []string{"viewers"}, "iat": time.Now().Unix(),
			"exp": time.Now().Add(lasts).Unix(),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + out
	}
	for _, l := range lanes {
		ctx := metadata.AppendToOutgoingContext(within(t), "authorization", token(time.Hour))
		conn := w.grpc("", l)
		got, err := machinev1.NewMachineServiceClient(conn).GetMachine(ctx, &machinev1.GetMachineRequest{Name: "a"})
		if seen := got.GetMetadata().GetAnnotations(); err != nil || seen["windlass-user"] != "olga" ||
			seen["windlass-group"] != "windlass:viewers,system:authenticated" {
			t.Errorf("%s: the backend saw %v, %v", l.name, seen, err)
		}
		access := metav1.NewAccessServiceClient(conn)
		if who, err := access.WhoAmI(ctx, &metav1.WhoAmIRequest{}); err != nil || who.GetUser() != "olga" {
			t.Errorf("%s: WhoAmI = %v, %v", l.name, who, err)
		}
		for verb, want := range map[string]bool{"list": true, "delete": false} {
			may, err := access.ReviewAccess(ctx, &metav1.ReviewAccessRequest{
				Verb: verb, Group: "machine.openshift.io",
				Resource: "machines",
			})
			if err != nil || may.GetAllowed() != want {
				t.Errorf("%s: ReviewAccess of %s = %v, %v", l.name, verb, may, err)
			}
		}
		expired := metadata.AppendToOutgoingContext(within(t), "authorization", token(-time.Minute))
		if _, err := access.WhoAmI(expired, &metav1.WhoAmIRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: WhoAmI with an expired token = %v", l.name, err)
		}
	}
	if got := w.do("GET", "/v1/whoami", http.Header{"Authorization": {token(time.Hour)}}, "",
		nil); got.StatusCode != http.StatusOK || !strings.Contains(got.body, "olga") {
		t.Errorf("GET /v1/whoami: %d %s", got.StatusCode, got.body)
	}
	// A stream ends with its token.
	ctx := metadata.AppendToOutgoingContext(within(t), "authorization", token(2*time.Second))
	stream, err := machinev1.NewMachineServiceClient(w.grpc("", lanes[0])).WatchMachines(ctx,
		&machinev1.WatchMachinesRequest{})
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("the watch ended with %v, want UNAUTHENTICATED", err)
	}
}
