// Package updateservice answers clusters which updates there are: it serves the graphs of graph data and of the
// releases in OCI layouts. Source: the Cincinnati protocol.
package updateservice

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/updategraph"
)

// DefaultArch is the architecture of requests that name none, as of Cincinnati.
const DefaultArch = "amd64"

// metadataArchitecture is multi in releases for all processors.
const (
	metadataArchitecture = "release.openshift.io/architecture"
	multi                = "multi"
)

const (
	loadLimit = 4 * time.Minute
	// maxKept is how many answers are kept; one is a channel for an architecture.
	maxKept = 256
)

// Source says where the graphs come from.
type Source struct {
	GraphData  string   // directory of graph data
	Layouts    []string // OCI layouts with releases
	Repository string   // name of the images, to which their digests are added
}

// Service serves graphs. It is safe for concurrent use.
type Service struct {
	source Source
	known  map[string]updategraph.Release // by digest: an image does not change
	now    atomic.Pointer[state]
	makes  sync.Mutex // held while a graph is made
}

// state is what was loaded at one time.
type state struct {
	data     *updategraph.Data
	releases []updategraph.Release

	mu      sync.Mutex
	answers map[string][]byte // by channel and architecture
}

// Load returns a service of a source as it is now. skipped are the images in it that are no releases, with the reason.
func Load(ctx context.Context, source Source) (s *Service, skipped []string, err error) {
	s = &Service{source: source, known: map[string]updategraph.Release{}}
	skipped, err = s.Reload(ctx)
	return s, skipped, err
}

// Reload reads the source again. After an error the service goes on with what it had. It must not run twice at once.
func (s *Service) Reload(ctx context.Context) (skipped []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	next := &state{answers: map[string][]byte{}}
	if next.data, err = updategraph.Read(os.DirFS(s.source.GraphData)); err != nil {
		return nil, fmt.Errorf("graph data %s: %w", s.source.GraphData, err)
	}
	for _, dir := range s.source.Layouts {
		more, err := s.readLayout(ctx, dir, next)
		if err != nil {
			return nil, fmt.Errorf("releases in %s: %w", dir, err)
		}
		skipped = append(skipped, more...)
	}
	for _, channel := range next.data.Channels() { // what cannot be answered is found now
		for _, arch := range []string{DefaultArch, multi} {
			if _, _, err := next.data.Graph(channel, arch, next.releases); err != nil {
				return nil, fmt.Errorf("channel %s: %w", channel, err)
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	s.now.Store(next)
	return skipped, nil
}

func (s *Service) readLayout(ctx context.Context, dir string, to *state) (skipped []string, err error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, m := range manifest.Manifests {
		digest := m.Digest.String()
		r, known := s.known[digest]
		if !known {
			if r, err = readRelease(ctx, dir, digest); err != nil {
				skipped = append(skipped, fmt.Sprintf("%s in %s: %v", digest, dir, err))
				continue
			}
			r.Payload = s.source.Repository + "@" + digest
			s.known[digest] = r
		}
		to.releases = append(to.releases, r)
	}
	if ctx.Err() != nil { // the images that are left out may be releases
		return nil, ctx.Err()
	}
	return skipped, nil
}

func readRelease(ctx context.Context, dir, digest string) (r updategraph.Release, err error) {
	image, err := release.Open(ctx, "oci:"+dir+"@"+digest, release.Places{})
	if err != nil {
		return r, err
	}
	payload, err := release.Load(image)
	if err != nil {
		return r, err
	}
	r = updategraph.Release{
		Version: payload.Metadata.Version, Previous: payload.Metadata.Previous, Metadata: payload.Metadata.Metadata,
	}
	if r.Metadata[metadataArchitecture] == multi {
		r.Arch = multi
	}
	return r, nil
}

// Graph returns the graph of a channel for an architecture as JSON. A channel that is not there has an empty one, as of
// Cincinnati.
func (s *Service) Graph(channel, arch string) ([]byte, error) {
	switch {
	case !channelForm.MatchString(channel):
		return nil, fmt.Errorf("channel %q must have the form %s", channel, channelForm)
	case !archForm.MatchString(arch):
		return nil, fmt.Errorf("architecture %q must have the form %s", arch, archForm)
	}
	now := s.now.Load()
	key := channel + "\n" + arch
	now.mu.Lock()
	answer := now.answers[key]
	now.mu.Unlock()
	if answer != nil {
		return answer, nil
	}
	s.makes.Lock() // one at a time: each takes a core
	defer s.makes.Unlock()
	now.mu.Lock()
	answer = now.answers[key]
	now.mu.Unlock()
	if answer != nil { // another caller had it made
		return answer, nil
	}
	g, ok, err := now.data.Graph(channel, arch, now.releases)
	if err != nil {
		return nil, err
	}
	if !ok {
		g = &updategraph.Graph{
			Version: 1, Nodes: []updategraph.Node{}, Edges: [][2]int{}, ConditionalEdges: []updategraph.Conditional{},
		}
	}
	if answer, err = json.Marshal(g); err != nil {
		return nil, err
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	if ok && len(now.answers) < maxKept {
		now.answers[key] = answer
	}
	return answer, nil
}

// Forms of parameters. Source: the Cincinnati protocol; architectures as Go and OCI name them.
var (
	channelForm = regexp.MustCompile(`^[0-9a-z.-]{1,63}$`)
	archForm    = regexp.MustCompile(`^[0-9a-z_]{1,16}$`)
)

// ServeHTTP answers GET /graph, /api/upgrades_info/graph and /api/upgrades_info/v1/graph.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/graph", "/api/upgrades_info/graph", "/api/upgrades_info/v1/graph":
	default:
		refuse(w, http.StatusNotFound, "does_not_exist", r.URL.Path+" is not served")
		return
	}
	query := r.URL.Query()
	channel, arch := query.Get("channel"), query.Get("arch")
	if arch == "" {
		arch = DefaultArch
	}
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "invalid_params", "only GET and HEAD are served")
		return
	case !accepts(strings.Join(r.Header.Values("Accept"), ",")):
		refuse(w, http.StatusNotAcceptable, "invalid_content_type", "only application/json is served")
		return
	case channel == "":
		refuse(w, http.StatusBadRequest, "missing_params", "mandatory client parameters missing: channel")
		return
	case !channelForm.MatchString(channel):
		refuse(w, http.StatusBadRequest, "invalid_params", "channel must have the form "+channelForm.String())
		return
	case !archForm.MatchString(arch):
		refuse(w, http.StatusBadRequest, "invalid_params", "arch must have the form "+archForm.String())
		return
	}
	answer, err := s.Graph(channel, arch)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "failed_plugin_execution", err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // the caller may have gone
}

// accepts reports whether a caller takes JSON.
func accepts(header string) bool {
	if header == "" {
		return true
	}
	for part := range strings.SplitSeq(header, ",") {
		kind, _, _ := strings.Cut(strings.TrimSpace(part), ";")
		switch strings.TrimSpace(kind) {
		case "*/*", "application/*", "application/json", "application/vnd.redhat.cincinnati.v1+json":
			return true
		}
	}
	return false
}

// refuse answers with an error as Cincinnati does.
func refuse(w http.ResponseWriter, code int, kind, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"kind": kind, "value": why}) // the caller may have gone
}
