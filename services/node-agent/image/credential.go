package image

import (
	"encoding/json"
	"fmt"
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
	var out []Credential
	for at, auth := range auths {
		out = append(out, Credential{at: place(at), auth: auth})
	}
	slices.SortFunc(out, func(a, b Credential) int { // the longest first, as in kubelet's keyring
		if n := len(b.at) - len(a.at); n != 0 {
			return n
		}
		return strings.Compare(a.at, b.at)
	})
	return out, nil
}

// place returns the host and the path that a key of auths means: docker has URLs there, also
// https://index.docker.io/v1/.
func place(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, rest, _ := strings.Cut(strings.Trim(key, "/"), "/")
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, "v1"), "v2")
	return strings.TrimSuffix(hostName(host)+"/"+strings.Trim(rest, "/"), "/")
}

// hostName returns the one name of a host that has several.
func hostName(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// matching returns the credentials for a repository of a host, the most specific one first. A mirror gets its own only.
func matching(all []Credential, host, repository string) (out []authn.Authenticator) {
	at := hostName(host) + "/" + repository
	for _, c := range all {
		if at == c.at || strings.HasPrefix(at, c.at+"/") {
			out = append(out, authn.FromConfig(c.auth))
		}
	}
	return out
}
