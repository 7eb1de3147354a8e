package rest

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

const (
	// MaxBody is the greatest body of a request in bytes.
	MaxBody = 4 << 20
	// bodyTime is what a client has to send its body.
	bodyTime = 30 * time.Second
	// The same for callers without credentials: the one request that they may make has a token and a certificate request.
	maxAnonymousBody  = 64 << 10
	anonymousBodyTime = 5 * time.Second

	mediaJSON   = "application/json"
	mediaYAML   = "application/yaml"
	mediaNDJSON = "application/x-ndjson"
)

// patches are the media types of a patch.
var patches = []string{
	"application/json-patch+json", "application/merge-patch+json",
	"application/strategic-merge-patch+json",
}

// body is a request's body, read to its end already. It carries the reason why it could not be decoded past the
// generated handlers, which keep only its text.
type body struct {
	*bytes.Reader
	data    []byte // of the reader
	problem error
}

func (*body) Close() error { return nil }

// take returns all of a body that is not read yet, without a copy, and lets go of it.
func (b *body) take() []byte {
	data := b.data
	b.data, b.Reader = nil, bytes.NewReader(nil)
	return data
}

// readBody reads what the route wants as a body, as JSON or as a patch, and replaces the request's body and content
// type by it. From callers without credentials it takes JSON only.
func readBody(b *reader, route *catalog.Route, caller identity.Caller) error {
	data, err := b.all()
	if err != nil {
		return err
	}
	r := b.r
	if route.Body == "" {
		if len(data) > 0 {
			return rpcerr.Invalid(object.Fault{Description: fmt.Sprintf("%s %s takes no body", route.Verb, r.URL.Path)})
		}
		r.Body = &body{Reader: bytes.NewReader(nil)}
		return nil
	}
	media, err := mediaType(r, len(data) == 0)
	if err != nil {
		return err
	}
	if err := acceptable(route, media, len(data) == 0); err != nil {
		return err
	}
	if media == mediaYAML && caller.User == "" {
		return unsupported(media, []string{mediaJSON})
	}
	if media == mediaYAML && len(data) > MaxBody {
		return withStatus(http.StatusRequestEntityTooLarge,
			rpcerr.TooMany(fmt.Sprintf("a body of YAML may have %d bytes; larger ones must be JSON", MaxBody), 0))
	}
	cost := large.CostOfJSON
	if media == mediaYAML {
		cost = large.CostOfYAML
	}
	if err := b.count(cost(data)); err != nil {
		return err
	}
	if media == mediaYAML {
		if data, err = manifest.JSON(data); err != nil {
			return rpcerr.Invalid(object.Fault{Description: err.Error()})
		}
		media = mediaJSON
	}
	if media == mediaJSON && route.Body != "*" { // the body is an object, and not the request itself
		data = manifest.Fold(data)
	}
	r.Header.Set("Content-Type", media)
	r.ContentLength = int64(len(data))
	r.Body = &body{Reader: bytes.NewReader(data), data: data}
	return nil
}

func mediaType(r *http.Request, empty bool) (string, error) {
	given := r.Header.Get("Content-Type")
	if given == "" || (empty && given == "application/x-www-form-urlencoded") { // the latter is curl -X POST -d ''
		return "", nil
	}
	media, _, err := mime.ParseMediaType(given)
	if err != nil {
		return "", unsupported(given, nil)
	}
	switch media {
	case "application/x-yaml", "text/yaml", "text/x-yaml":
		return mediaYAML, nil
	}
	return media, nil
}

// acceptable says whether a route takes a body of that media type. Without one, JSON is meant where that is clear: a
// patch must say what it is.
func acceptable(route *catalog.Route, media string, empty bool) error {
	if route.Verb == http.MethodPatch {
		if slices.Contains(patches, media) {
			return nil
		}
		return unsupported(media, patches)
	}
	if media == mediaJSON || media == mediaYAML || (media == "" && empty) {
		return nil
	}
	return unsupported(media, []string{mediaJSON, mediaYAML})
}

func unsupported(media string, want []string) error {
	text := fmt.Sprintf("content type %q is not accepted here", media)
	if media == "" {
		text = "the request has no Content-Type"
	}
	if len(want) > 0 {
		text += "; it may be " + strings.Join(want, " or ")
	}
	return withStatus(http.StatusUnsupportedMediaType, rpcerr.Invalid(object.Fault{Description: text}))
}
