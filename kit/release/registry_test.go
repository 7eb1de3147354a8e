package release

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	kitregistry "github.com/windlass-dev/windlass/kit/registry"
)

func newRegistry() http.Handler { return registry.New(registry.Logger(log.New(io.Discard, "", 0))) }

// written writes a file into a new directory and returns its path.
func written(t *testing.T, content string) string {
	t.Helper()
	return filepath.Join(folder(t, map[string]string{"file": content}), "file")
}

func push(t *testing.T, host string, image v1.Image, options ...remote.Option) (digest string) {
	t.Helper()
	ref, err := name.ParseReference(host + "/release:1.1.0")
	check(t, err)
	check(t, remote.Write(ref, image, options...))
	return must(image.Digest()).String()
}

// opened opens and loads a release.
func opened(t *testing.T, ref string, access kitregistry.Access) (*Payload, error) {
	t.Helper()
	image, err := Open(t.Context(), ref, Places{Registries: access})
	if err != nil {
		return nil, err
	}
	return Load(image)
}

func TestAPrivateRegistryIsReadByItsAuthorityAndCredentials(t *testing.T) {
	const user, password = "reader", "hunter2"
	inner := newRegistry()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := server.Listener.Addr().String()
	basic := &authn.Basic{Username: user, Password: password}
	digest := push(t, host, imageOf(t, heads()), remote.WithTransport(server.Client().Transport), remote.WithAuth(basic))
	ca := written(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	trusted := []string{written(t, fmt.Sprintf("registries: {%q: {caFile: %s}}", host, ca))}
	mirrored := []string{written(t, fmt.Sprintf(
		"signatures: []\nregistries: {example.com: {mirrors: ['https://%s'], mirrorsOnly: true}, %q: {caFile: %s}}",
		host, host, ca))}
	known := []string{written(t, fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, host, user, password))}
	for _, tt := range []struct {
		name, host string
		access     kitregistry.Access
		want       string
	}{
		{"both", host, kitregistry.Access{Settings: trusted, Credentials: known}, ""},
		{"as a mirror", "example.com", kitregistry.Access{Settings: mirrored, Credentials: known}, ""},
		{"by a keychain", host, kitregistry.Access{Settings: trusted, Keychain: keychain{basic}}, ""},
		{"no authority", host, kitregistry.Access{Credentials: known}, "certificate"},
		{"no credentials", host, kitregistry.Access{Settings: trusted}, "401 Unauthorized"},
		{
			"a file of credentials that is not there", host,
			kitregistry.Access{Settings: trusted, Credentials: []string{"/none"}},
			"/none: no such file",
		},
		{
			"a file of settings that says nothing known", host,
			kitregistry.Access{Settings: []string{written(t, "mirrors: []")}},
			"unknown field",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, ref := range []string{"@" + digest, ":1.1.0"} {
				p, err := opened(t, tt.host+"/release"+ref, tt.access)
				switch {
				case tt.want != "":
					says(t, err, tt.want)
				case err != nil:
					t.Error(err)
				case p.Digest != digest:
					t.Errorf("digest %s, want %s", p.Digest, digest)
				}
			}
		})
	}
	_, err := opened(t, host+"/release@"+sha, kitregistry.Access{Settings: trusted, Credentials: known})
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("an image that is not there: %v", err)
	}
}

// keychain has one credential for all.
type keychain struct{ authn.Authenticator }

func (k keychain) Resolve(authn.Resource) (authn.Authenticator, error) { return k, nil }

// TestAMirrorThatDoesNotDeliverALayerIsPassedOver holds, since the same mirror would be asked first at each new
// attempt.
func TestAMirrorThatDoesNotDeliverALayerIsPassedOver(t *testing.T) {
	inner, layer, spoiled := newRegistry(), "", 0
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if layer != "" && strings.HasSuffix(r.URL.Path, layer) {
			spoiled++
			_, _ = w.Write([]byte("something else"))
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer broken.Close()
	good := httptest.NewServer(newRegistry())
	defer good.Close()
	image := imageOf(t, heads())
	digest := push(t, broken.Listener.Addr().String(), image)
	push(t, good.Listener.Addr().String(), image)
	layer = must(must(image.Layers())[0].Digest()).String()
	settings := func(mirrors ...string) kitregistry.Access {
		return kitregistry.Access{Settings: []string{written(t, fmt.Sprintf(
			"registries: {example.com: {mirrors: ['%s'], mirrorsOnly: true}}", strings.Join(mirrors, "', '")))}}
	}
	_, err := opened(t, "example.com/release@"+digest, settings(broken.URL))
	says(t, err, "layer 0: ")
	p, err := opened(t, "example.com/release@"+digest, settings(broken.URL, good.URL))
	check(t, err)
	if p.Digest != digest || spoiled != 2 {
		t.Errorf("digest %s, and the broken mirror was asked %d times", p.Digest, spoiled)
	}
	check(t, remote.Write(must(name.NewTag(good.Listener.Addr().String()+"/release:1.1.0")), imageOf(t, heads(), heads())))
	_, err = opened(t, "example.com/release:1.1.0", settings(broken.URL, good.URL))
	says(t, err, ", not "+digest) // of the tag's image at the other mirror
}

// TestARegistryThatTricklesIsGivenUp has one that sends the beginning of a layer, and no more.
func TestARegistryThatTricklesIsGivenUp(t *testing.T) {
	inner, layer := newRegistry(), ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if layer == "" || !strings.HasSuffix(r.URL.Path, layer) {
			inner.ServeHTTP(w, r)
			return
		}
		_, _ = w.Write([]byte{0x1f})
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	image := imageOf(t, heads())
	digest := push(t, server.Listener.Addr().String(), image)
	layer = must(must(image.Layers())[0].Digest()).String()
	found, err := Open(t.Context(), server.Listener.Addr().String()+"/release@"+digest, Places{
		Registries: kitregistry.Access{Patience: 2 * time.Second}, // also for the answers that it does give
	})
	check(t, err)
	_, err = Load(found)
	says(t, err, "layer 0: the registry does not deliver any more: less than 65536 bytes within 2s")
}

func TestAMirrorInTheClearIsRefused(t *testing.T) {
	file := written(t, "registries: {example.com: {mirrors: ['http://mirror.example.com']}}")
	_, err := opened(t, "example.com/release@"+sha, kitregistry.Access{Settings: []string{file}})
	says(t, err, file+`: registries["example.com"].mirrors[0]: "http://mirror.example.com": http is for loopback`)
}
