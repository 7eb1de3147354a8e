package registry

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Keys of secrets that hold credentials, and their types.
const (
	dockerConfigType = "kubernetes.io/dockerconfigjson"
	dockerConfigKey  = ".dockerconfigjson"
	dockercfgType    = "kubernetes.io/dockercfg"
	dockercfgKey     = ".dockercfg"
)

// Credential is what a registry knows its user by.
type Credential struct {
	at   string // host, and maybe a path below it
	auth authn.AuthConfig
}

// Credentials reads a secret of one of the types kubernetes.io/dockerconfigjson and kubernetes.io/dockercfg.
func Credentials(typ string, data map[string][]byte) ([]Credential, error) {
	var auths map[string]authn.AuthConfig
	switch typ {
	case dockerConfigType:
		var file struct {
			Auths map[string]authn.AuthConfig `json:"auths"`
		}
		if err := json.Unmarshal(data[dockerConfigKey], &file); err != nil {
			return nil, fmt.Errorf("%s is not valid", dockerConfigKey) // without the text, which is secret
		}
		auths = file.Auths
	case dockercfgType:
		if err := json.Unmarshal(data[dockercfgKey], &auths); err != nil {
			return nil, fmt.Errorf("%s is not valid", dockercfgKey)
		}
	default:
		return nil, fmt.Errorf("type is %q, not %s", typ, dockerConfigType)
	}
	return credentialsOf(auths), nil
}

// readCredentials reads files of the form of docker's config.json. Those that keep credentials elsewhere are refused,
// since no program is run for them.
func readCredentials(files ...string) ([]Credential, error) {
	auths := map[string]authn.AuthConfig{}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("credentials of registries: %w", err)
		}
		var file struct {
			Auths       map[string]authn.AuthConfig `json:"auths"`
			CredsStore  string                      `json:"credsStore"`
			CredHelpers map[string]string           `json:"credHelpers"`
		}
		if err := json.Unmarshal(raw, &file); err != nil {
			return nil, fmt.Errorf("credentials of registries: %s is not valid", name) // without the text, which is secret
		}
		if file.CredsStore != "" || len(file.CredHelpers) > 0 {
			return nil, fmt.Errorf("credentials of registries: %s: credsStore and credHelpers are not supported", name)
		}
		for at, auth := range file.Auths {
			if _, twice := auths[at]; !twice {
				auths[at] = auth
			}
		}
	}
	return credentialsOf(auths), nil
}

func credentialsOf(auths map[string]authn.AuthConfig) (out []Credential) {
	for at, auth := range auths {
		out = append(out, Credential{at: place(at), auth: auth})
	}
	slices.SortFunc(out, func(a, b Credential) int { // the longest first, as in kubelet's keyring
		if n := len(b.at) - len(a.at); n != 0 {
			return n
		}
		return strings.Compare(a.at, b.at)
	})
	return out
}

// place returns the host and the path that a key of auths means: docker has URLs there, also
// https://index.docker.io/v1/.
func place(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, rest, _ := strings.Cut(strings.Trim(key, "/"), "/")
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, "v1"), "v2")
	return strings.TrimSuffix(HostName(host)+"/"+strings.Trim(rest, "/"), "/")
}

// HostName returns the one name of a host that has several.
func HostName(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// matching returns the credentials for a repository of a host, the most specific one first. A mirror gets its own only.
func matching(all []Credential, host, repository string) (out []authn.Authenticator) {
	at := HostName(host) + "/" + repository
	for _, c := range all {
		if at == c.at || strings.HasPrefix(at, c.at+"/") {
			out = append(out, authn.FromConfig(c.auth))
		}
	}
	return out
}
