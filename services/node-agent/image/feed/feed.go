// Package feed has a container runtime on this host keep images. A runtime can only pull from a registry, so the agent
// is one: for the time of each pull it serves one image on a loopback address, at a path that only the runtime is
// given. It promises that the runtime gets no byte of another image, that an image whose content is not what its
// digests say is never complete there, and that nothing is served when Keep has returned.
package feed

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/windlass-dev/windlass/services/node-agent/image"
)

// Runtime is what of a container runtime is needed; cri.Runtime is one. Its methods may be called concurrently, and end
// when ctx does.
type Runtime interface {
	// PullImage pulls an image by a reference with a digest, from a registry on a loopback address without TLS and
	// credentials. It returns the ID by which the image can be used whether the registry is there or not.
	PullImage(ctx context.Context, ref string) (id string, err error)
	// ImagePresent reports whether the runtime has an image.
	ImagePresent(ctx context.Context, id string) (bool, error)
	// RemoveImage removes an image with all its names. It is no error if it is not there.
	RemoveImage(ctx context.Context, id string) error
}

// defaultPatience is how long a runtime may take without asking for more of an image: in that time it also unpacks the
// largest layer.
const defaultPatience = 15 * time.Minute

// Feed is an image.Keeper. Make it with New.
type Feed struct {
	runtime  Runtime
	patience time.Duration
}

// New returns a Keeper that gives images to a runtime. patience is how long the runtime may take without asking for
// more of an image; 0 means defaultPatience.
func New(runtime Runtime, patience time.Duration) *Feed {
	if patience == 0 {
		patience = defaultPatience
	}
	return &Feed{runtime: runtime, patience: patience}
}

// errSilent means that the runtime asked for nothing more of an image, and did not say that it has it.
var errSilent = errors.New("the runtime does not pull the image")

// Keep implements image.Keeper. An image whose configuration the runtime has is there, since the configuration has the
// digests of the layers; it is not pulled again, which would give it another name in the runtime.
func (f *Feed) Keep(ctx context.Context, img *image.Source) (id string, bytes int64, err error) {
	switch has, err := f.runtime.ImagePresent(ctx, img.Config); {
	case err != nil:
		return "", 0, err
	case has:
		return img.Config, img.Bytes, nil
	}
	id, asked, err := f.pull(ctx, img)
	if err == nil {
		return f.lasting(ctx, img, id), img.Bytes, nil
	}
	if asked && ctx.Err() == nil && !errors.Is(err, errSilent) {
		if rest := f.sweep(ctx); rest != nil {
			err = fmt.Errorf("%w; %w", err, rest)
		}
	}
	return "", 0, err
}

// lasting returns the ID of an image. CRI-O may answer a pull with the reference, which is of this pull alone.
func (f *Feed) lasting(ctx context.Context, img *image.Source, answered string) string {
	if answered == img.Config {
		return answered
	}
	if has, err := f.runtime.ImagePresent(ctx, img.Config); err != nil || !has {
		return answered
	}
	return img.Config
}

// sweepPatience is how long a runtime may take to get and to remove an image without files.
const sweepPatience = time.Minute

// sweep has the runtime forget the parts of layers that it got in a pull that failed, for they may be broken: a layer
// is verified at its end. containerd keeps them under the digests that the layers should have, and the next pull goes
// on behind them, also one from another registry that has the right content. It collects them when an image is removed.
func (f *Feed) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepPatience)
	defer cancel()
	layer := static.NewLayer(make([]byte, emptyArchive), types.OCIUncompressedLayer)
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: goruntime.GOOS, Architecture: goruntime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Author: rand.Text(), // so that no other sweep has this image
	})
	if err != nil {
		return err
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return err
	}
	src, err := image.NewSource(img, "sweep")
	if err != nil {
		return err
	}
	id, _, err := f.pull(ctx, src)
	if err == nil {
		err = f.runtime.RemoveImage(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("the runtime may have a broken part of the image: %w", err)
	}
	return nil
}

// emptyArchive is the size of an archive without entries in bytes. Source: POSIX.1-1988 (ustar).
const emptyArchive = 1024

// pull has the runtime pull an image, which is served until that has ended. asked means that the runtime has begun to,
// also with an error.
func (f *Feed) pull(ctx context.Context, img *image.Source) (id string, asked bool, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return "", false, err
	}
	s := &serving{img: img, path: strings.ToLower(rand.Text()) + "/" + repository(img.Name), patience: f.patience}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.fail = cancel
	s.silence = time.AfterFunc(f.patience, func() { cancel(errSilent) })
	defer s.silence.Stop()
	end := s.serve(listener)
	id, err = f.runtime.PullImage(ctx, listener.Addr().String()+"/"+s.path+"@"+img.Digest)
	end()
	switch {
	case err == nil && id == "":
		err = errors.New("the runtime does not say what it calls the image")
	case err == nil:
		return id, true, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	default:
		err = refusal{err, s.prefix(listener)}
	}
	return "", s.asked.Load(), err
}

// Has implements image.Keeper.
func (f *Feed) Has(ctx context.Context, id string) (bool, error) {
	return f.runtime.ImagePresent(ctx, id)
}

// Remove implements image.Keeper.
func (f *Feed) Remove(ctx context.Context, id string) error { return f.runtime.RemoveImage(ctx, id) }

// refusal is an error of the runtime, without where it pulled from.
type refusal struct {
	error
	prefix string
}

// Error implements error.
func (r refusal) Error() string { return strings.ReplaceAll(r.error.Error(), r.prefix, "") }

// Unwrap returns the error of the runtime.
func (r refusal) Unwrap() error { return r.error }

// part is a part of a repository's name. Source: OCI distribution specification, on pulling manifests.
var part = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)

const (
	anyName = "image"
	// maxRepository bounds the name of an image in the runtime, in bytes. Source: 255 with host and token.
	maxRepository = 180
)

// repository returns a name of an image as a part of a path: its own if it can be one.
func repository(ref string) string {
	n := strings.ReplaceAll(strings.ToLower(image.Name(ref)), ":", "-") // the port of a registry
	if len(n) > maxRepository {
		return anyName
	}
	for p := range strings.SplitSeq(n, "/") {
		if !part.MatchString(p) {
			return anyName
		}
	}
	return n
}

// serving is a registry with one image, as much of it as a runtime needs to pull by digest. Source: OCI distribution
// specification, section "Pull".
type serving struct {
	img      *image.Source
	path     string // with the token; without slashes at the ends
	patience time.Duration
	silence  *time.Timer
	fail     context.CancelCauseFunc
	asked    atomic.Bool // by the runtime

	mu       sync.Mutex
	ended    bool // no request may begin
	requests sync.WaitGroup
}

// Limits for connections of processes that are not the runtime.
const (
	headerPatience = 10 * time.Second
	maxHeader      = 16 << 10 // bytes
)

// serve serves until end is called, which returns when no request is under way.
func (s *serving) serve(l net.Listener) (end func()) {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerPatience, IdleTimeout: s.patience, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // what other processes send
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // says that it was closed
	}()
	return func() {
		_ = server.Close()
		<-done
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		s.requests.Wait()
	}
}

// begin reports whether a request may begin.
func (s *serving) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.requests.Add(1)
	}
	return !s.ended
}

// ServeHTTP implements http.Handler. What is not below the path with the token does not exist.
func (s *serving) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.requests.Done()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return
	}
	const root = "/v2/"
	if r.URL.Path == root { // says only that this is a registry
		w.WriteHeader(http.StatusOK)
		return
	}
	rest, _ := strings.CutPrefix(r.URL.Path, root)
	n := min(len(rest), len(s.path))
	if subtle.ConstantTimeCompare([]byte(rest[:n]), []byte(s.path)) != 1 {
		http.NotFound(w, r)
		return
	}
	s.silence.Reset(s.patience)
	s.asked.Store(true)
	kind, digest, _ := strings.Cut(strings.TrimPrefix(rest[n:], "/"), "/")
	switch size, found := s.img.Size(digest); {
	case kind == "manifests" && digest == s.img.Digest:
		describe(w, s.img.MediaType, digest, int64(len(s.img.Manifest)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(s.img.Manifest)
		}
	case kind == "blobs" && found && r.Method == http.MethodHead:
		describe(w, "application/octet-stream", digest, size)
	case kind == "blobs" && found:
		s.blob(w, digest, size)
	default:
		http.NotFound(w, r)
	}
}

func describe(w http.ResponseWriter, mediaType, digest string, bytes int64) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", strconv.FormatInt(bytes, 10))
}

// blob sends a blob. If its source does not deliver what its digest says, the answer breaks off, and so does the pull.
func (s *serving) blob(w http.ResponseWriter, digest string, size int64) {
	content, err := s.img.Open(digest)
	if err != nil {
		s.fail(err)
		panic(http.ErrAbortHandler)
	}
	defer content.Close()
	describe(w, "application/octet-stream", digest, size)
	in := &watched{Reader: content, s: s}
	_, err = io.Copy(w, in)
	if in.err != nil {
		s.fail(in.err)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// watched is a blob that is read; it keeps the error, which is the source's and not the runtime's.
type watched struct {
	io.Reader
	s   *serving
	err error
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.s.silence.Reset(w.s.patience)
	if err != nil && !errors.Is(err, io.EOF) {
		w.err = err
	}
	return n, err
}

func (s *serving) prefix(l net.Listener) string {
	token, _, _ := strings.Cut(s.path, "/")
	return fmt.Sprintf("%s/%s/", l.Addr(), token)
}
