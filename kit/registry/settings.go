package registry

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// Settings say how registries are reached, by host, as in the names of images, or as in the URL of a mirror: docker.io,
// example.com:5000. The zero Settings reach each by https under its own name.
type Settings map[string]Registry

// settingsFile is registries.yaml for a program that takes only how registries are reached from it.
type settingsFile struct {
	Registries Settings `json:"registries"`
	// Signatures are node-agent's rules about the images of pods. They may be in the file and are not used.
	Signatures []any `json:"signatures"`
}

// Check implements the interface of Read.
func (f *settingsFile) Check() error { return f.Registries.Check() }

// Registry is how one registry is reached.
type Registry struct {
	// Mirrors are asked before the registry, in this order: https://HOST[/PATH], or http:// on a loopback address. The
	// path comes before the image's.
	Mirrors []string `json:"mirrors"`
	// MirrorsOnly means that the registry itself is never asked.
	MirrorsOnly bool `json:"mirrorsOnly"`
	// CAFile has the certificates, in PEM, that this host's certificate may be signed by, instead of the host's own.
	CAFile string `json:"caFile"`
}

// Read reads the first of the files that exists into settings, and checks them; without any, they stay as they are.
func Read(settings interface{ Check() error }, files ...string) error {
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := yaml.UnmarshalStrict(raw, settings); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := settings.Check(); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		return nil
	}
	return nil
}

// Check returns what is wrong with settings, with the field's path in registries.yaml.
func (s Settings) Check() error {
	for host, r := range s {
		if host == "" || strings.ContainsAny(host, "/ ") {
			return fmt.Errorf("registries[%q]: must be a host, with a port if it is not 443", host)
		}
		for i, m := range r.Mirrors {
			if _, err := parseMirror(m); err != nil {
				return fmt.Errorf("registries[%q].mirrors[%d]: %w", host, i, err)
			}
		}
		if r.MirrorsOnly && len(r.Mirrors) == 0 {
			return fmt.Errorf("registries[%q].mirrorsOnly: there are no mirrors", host)
		}
	}
	return nil
}

// endpoint is one place that may have an image.
type endpoint struct {
	host  string // with the port
	path  string // before the repository; without slashes at the ends
	plain bool   // by http
	near  bool   // a mirror, or on this host
}

func parseMirror(text string) (endpoint, error) {
	u, err := url.Parse(text)
	if err != nil {
		return endpoint{}, err
	}
	switch {
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return endpoint{}, fmt.Errorf("%q: must be a URL such as https://mirror.example.com", text)
	case u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return endpoint{}, fmt.Errorf("%q: http is for loopback addresses only", text)
	case u.Scheme != "https" && u.Scheme != "http":
		return endpoint{}, fmt.Errorf("%q: must begin with https://", text)
	}
	return endpoint{host: u.Host, path: strings.Trim(u.Path, "/"), plain: u.Scheme == "http", near: true}, nil
}

// IsLoopback reports whether what is sent to a host does not leave this one.
func IsLoopback(hostname string) bool {
	ip := net.ParseIP(hostname)
	return hostname == "localhost" || ip != nil && ip.IsLoopback()
}

// HostOnly returns a host without its port.
func HostOnly(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.Trim(host, "[]")
}

// endpoints returns where an image of a registry is asked for, in this order.
func (s Settings) endpoints(host string) (out []endpoint) {
	r := s[host]
	for _, m := range r.Mirrors {
		if e, err := parseMirror(m); err == nil {
			out = append(out, e)
		}
	}
	if !r.MirrorsOnly {
		out = append(out, endpoint{host: host, near: IsLoopback(HostOnly(host))})
	}
	return out
}

// authorities returns who may sign the certificate of a host; nil for those that the host trusts.
func (s Settings) authorities(host string) (*x509.CertPool, error) {
	file := s[host].CAFile
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return pool, nil
}
