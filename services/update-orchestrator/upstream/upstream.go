// Package upstream gets the graph of updates: from an update service over HTTP, or from a directory or file. What a
// graph means, package plan says. Source: the Cincinnati protocol, as the Cluster Version Operator speaks it.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

const (
	// maxGraph is some hundred times the largest graph that there is in public.
	maxGraph = 16 << 20
	// patience is how long an answer may take, its body included.
	patience = time.Minute
)

// Reasons for which there is no graph, as the condition RetrievedUpdates has them.
const (
	invalidURI      = "InvalidURI"
	remoteFailed    = "RemoteFailed"
	responseFailed  = "ResponseFailed"
	responseInvalid = "ResponseInvalid"
)

// failed is a graph that could not be had.
type failed struct {
	reason string
	err    error
}

func (e *failed) Error() string { return e.err.Error() }

func (e *failed) Unwrap() error { return e.err }

func failure(reason, format string, args ...any) error {
	return &failed{reason: reason, err: fmt.Errorf(format, args...)}
}

func reason(err error) string {
	var e *failed
	if errors.As(err, &e) {
		return e.reason
	}
	return remoteFailed
}

// Source gets graphs. It is safe for concurrent use.
type Source struct {
	client *http.Client
	agent  string
}

// New returns a source that gives itself out as agent, such as "windlass/1.0.0".
func New(agent string) *Source {
	return &Source{agent: agent, client: &http.Client{Timeout: patience}}
}

// Graph returns the graph that the upstream of a cluster has for a version, or says in a RetrievedUpdates condition why
// there is none.
func (s *Source) Graph(ctx context.Context, spec *updatev1.ClusterVersionSpec, version, arch string) (*plan.Graph,
	*metav1.Condition,
) {
	address, refused := plan.Ask(spec, version, arch)
	if refused != nil {
		return nil, refused
	}
	raw, err := s.fetch(ctx, address, spec.GetChannel())
	if err != nil {
		return nil, plan.AskFailed(reason(err), err)
	}
	g, err := plan.ParseGraph(raw, version)
	if err != nil {
		return nil, plan.AskFailed(responseInvalid, fmt.Errorf("the graph is not valid: %w", err))
	}
	return g, nil
}

// fetch returns the graph at an address, undecoded: what an update service answers, or the file of the channel. Its
// error is a *failed.
func (s *Source) fetch(ctx context.Context, address, channel string) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, failure(invalidURI, "failed to parse upstream URL: %w", err)
	}
	switch u.Scheme {
	case "http", "https":
		return s.ask(ctx, u)
	case "file":
		return read(address, channel)
	}
	return nil, failure(invalidURI, "%s: an upstream is an http, https or file address", address)
}

func (s *Source) ask(ctx context.Context, u *url.URL) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, failure(invalidURI, "%w", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", s.agent)
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, failure(remoteFailed, "%w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxGraph+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, failure(responseFailed, "unexpected HTTP status: %s%s", resp.Status, excerpt(body))
	case err != nil:
		return nil, failure(responseFailed, "%w", err)
	case len(body) > maxGraph:
		return nil, failure(responseFailed, "the answer is longer than %d bytes", maxGraph)
	}
	return body, nil
}

// excerpt returns the beginning of an answer that says why there is none, for people.
func excerpt(body []byte) string {
	const most = 200
	text := strings.TrimSpace(string(body[:min(len(body), most)]))
	if text == "" {
		return ""
	}
	return ": " + strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "\ufffd")
}

func read(address, channel string) ([]byte, error) {
	path, err := file(address, channel)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, failure(remoteFailed, "%w", err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, maxGraph+1))
	switch {
	case err != nil:
		return nil, failure(responseFailed, "%w", err)
	case len(body) > maxGraph:
		return nil, failure(responseFailed, "%s is longer than %d bytes", path, maxGraph)
	}
	return body, nil
}

// file returns the file that holds the graph of a channel where the upstream is a file:// address; "" for any other. Of
// a directory it is <channel>.json, or else graph.json.
func file(upstream, channel string) (string, error) {
	u, err := url.Parse(upstream)
	if err != nil || u.Scheme != "file" {
		return "", nil
	}
	if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) {
		return "", failure(invalidURI, "%s: a file address is file:// and an absolute path", upstream)
	}
	info, err := os.Stat(u.Path)
	if err != nil {
		return "", failure(remoteFailed, "%w", err)
	}
	if !info.IsDir() {
		return u.Path, nil
	}
	if !filepath.IsLocal(channel + ".json") {
		return "", failure(invalidURI, "%q is no name of a channel", channel)
	}
	path := filepath.Join(u.Path, channel+".json")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path = filepath.Join(u.Path, "graph.json")
	}
	return path, nil
}

// Stamp changes when the graph of a local upstream does; it is "" for any other. It costs one stat of the file.
func Stamp(upstream, channel string) string {
	path, err := file(upstream, channel)
	if err != nil {
		return err.Error()
	}
	if path == "" {
		return ""
	}
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d %d", path, info.Size(), info.ModTime().UnixNano())
}
