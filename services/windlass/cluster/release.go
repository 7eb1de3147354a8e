package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/example"
)

// releaseName is how the cluster's own releases are called; only the digest behind it counts.
const releaseName = "windlass.dev/release"

// ReleaseDir returns the directory of the cluster's own releases, or what the path elements name in it: images/ (an OCI
// layout), signatures/, keys/ (public key rings that are trusted), signing-key.asc, graph/, and initial, which holds
// the reference of the first release.
func (c *Cluster) ReleaseDir(elem ...string) string {
	return c.Dir(append([]string{"release"}, elem...)...)
}

// EnsureRelease creates the initial release of a new cluster, signed with the cluster's own key, so that updates can be
// created and tried without an outside registry or key. It keeps a release that exists.
func (c *Cluster) EnsureRelease(now time.Time) error {
	if _, err := os.Stat(c.ReleaseDir("initial")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, dir := range []string{"keys", "graph", "source"} {
		if err := os.MkdirAll(c.ReleaseDir(dir), 0o700); err != nil {
			return err
		}
	}
	key, err := c.signingKey(now)
	if err != nil {
		return err
	}
	version, err := example.WriteInitialRelease(c.ReleaseDir("source"))
	if err != nil {
		return err
	}
	digest, err := release.New(c.ReleaseDir("images"), release.Build{
		From:    c.ReleaseDir("source", version),
		Version: version,
	})
	if err != nil {
		return err
	}
	ref := releaseName + "@" + digest
	if _, err := key.Sign(c.ReleaseDir("signatures"), digest, ref, now); err != nil {
		return err
	}
	return renameio.WriteFile(c.ReleaseDir("initial"), []byte(ref+"\n"), 0o600)
}

// signingKey returns the cluster's own key for releases, and makes it if there is none.
func (c *Cluster) signingKey(now time.Time) (release.Key, error) {
	path := c.ReleaseDir("signing-key.asc")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		var public []byte
		if raw, public, err = release.GenerateKey("windlass cluster "+c.Name, now); err != nil {
			return release.Key{}, err
		}
		// The private key last: it says that the public one is there.
		if err = renameio.WriteFile(filepath.Join(c.ReleaseDir("keys"), "cluster.asc"), public, 0o600); err == nil {
			err = renameio.WriteFile(path, raw, 0o600)
		}
	}
	if err != nil {
		return release.Key{}, err
	}
	return release.ReadKey(raw)
}

// ReleasePlaces are where update-orchestrator looks for images of releases.
func (c *Cluster) ReleasePlaces() release.Places {
	p := release.Places{Layouts: []string{c.ReleaseDir("images")}}
	for _, s := range c.extra(topology.UpdateOrchestrator) {
		flag, value, _ := strings.Cut(s, "=")
		switch flag {
		case "--release-images":
			p.Layouts = append(p.Layouts, value)
		case "--registries":
			p.Registries.Settings = append(p.Registries.Settings, strings.Split(value, ",")...)
		case "--registry-credentials":
			p.Registries.Credentials = append(p.Registries.Credentials, value)
		}
	}
	return p.WithDefaults()
}

// releaseFlags returns the flags of update-orchestrator that locate releases. A cluster that was created before
// releases existed has no initial one.
func (c *Cluster) releaseFlags() []string {
	flags := []string{
		"--release-images", c.ReleaseDir("images"), "--release-keys", c.ReleaseDir("keys"), "--signature-store",
		c.ReleaseDir("signatures"),
	}
	raw, err := os.ReadFile(c.ReleaseDir("initial"))
	if err != nil {
		return flags
	}
	return append(flags, "--initial-release", strings.TrimSpace(string(raw)))
}
