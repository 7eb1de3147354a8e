// Package rest answers HTTP: the REST addresses of all methods, the OpenAPI document and its page, health, and gRPC
// from clients that also offered HTTP/1.1. It decides about addresses, media types and shapes of requests; it leaves
// who may do what to the services.
package rest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

const (
	// unaryTime is how long a call over REST may take; a client that wants less says so by Grpc-Timeout or by leaving.
	unaryTime = 60 * time.Second
	// messageHeader is the length of what precedes a gRPC message.
	messageHeader = 5
	// answerTime is what a client has to read the answer of such a call, beyond the time that the call may take.
	answerTime = 60 * time.Second
)

// Login finds out who sends a request.
type Login interface {
	// Request returns the caller; its User is empty if there are no credentials. A wrong credential is an error.
	Request(r *http.Request) (identity.Caller, error)
	// Refused is called for every request that is refused for its credentials, its origin or its host.
	Refused(r *http.Request, caller identity.Caller, method *catalog.Method, err error)
	// Bound returns a context that ends when the request's credentials are no longer good. stop must be called unless
	// there is an error: they are not good now.
	Bound(ctx context.Context, r *http.Request) (bound context.Context, stop func(), err error)
}

// Room is where a request takes its share of what the gateway can do at a time. What they return must be called once
// unless there is an error.
type Room interface {
	// Call takes room for a request of method.
	Call(r *http.Request, caller identity.Caller, method *catalog.Method) (release func(), err error)
	// Text takes room for n bytes of a body or an answer.
	Text(r *http.Request, caller identity.Caller, n int) (release func(), err error)
	// Large takes room for a large request whose body has n bytes or fewer. Release must be called unless there is an
	// error.
	Large(r *http.Request, caller identity.Caller, n int) (LargeRoom, error)
	// Memory takes the n bytes of memory that a body of another request takes once it is decoded.
	Memory(r *http.Request, n int) (release func(), err error)
}

// LargeRoom is the room of one large request.
type LargeRoom interface {
	// Late is closed when a request that has not come to its end must end, for another caller who waits.
	Late() <-chan struct{}
	// Came is called when all of it has come.
	Came()
	// Grow makes it room for n bytes.
	Grow(n int) error
	// Release gives it back. Further calls have no effect.
	Release()
}

// Config is what a Handler is made of.
type Config struct {
	Catalog *catalog.Catalog
	Login   Login
	// Register adds the generated handlers to the mux.
	Register func(context.Context, *runtime.ServeMux) error
	Room     Room
	// Span begins the span of a request: a call of the method name for what header says. end is called once.
	Span func(ctx context.Context, header http.Header, name string) (spanned context.Context, end func())
	// GRPC answers gRPC requests.
	GRPC http.Handler
	// Named reports whether a host, without a port, is an address or a name of the gateway.
	Named func(host string) bool
	// Open are handlers for addresses that need no credentials, as patterns of http.ServeMux.
	Open map[string]http.Handler
}

// Handler is the HTTP side of the gateway.
type Handler struct {
	catalog *catalog.Catalog
	login   Login
	room    Room
	span    func(context.Context, http.Header, string) (context.Context, func())
	grpc    http.Handler
	open    *http.ServeMux
	api     *runtime.ServeMux
	origin  *http.CrossOriginProtection
	named   func(host string) bool
}

// New makes the handler; ctx bounds the registration alone.
func New(ctx context.Context, c Config) (*Handler, error) {
	h := &Handler{
		catalog: c.Catalog,
		login:   c.Login,
		room:    c.Room,
		span:    c.Span,
		grpc:    c.GRPC,
		open:    http.NewServeMux(),
		api:     newMux(),
		origin:  http.NewCrossOriginProtection(),
		named:   c.Named,
	}
	for pattern, handler := range c.Open {
		h.open.Handle(pattern, handler)
	}
	return h, c.Register(ctx, h.api)
}

func newMux() *runtime.ServeMux {
	options := []runtime.ServeMuxOption{
		runtime.WithMarshalerOption(runtime.MIMEWildcard, jsonDocuments()),
		runtime.WithMarshalerOption(mediaJSON, jsonDocuments()),
		runtime.WithMarshalerOption(mediaYAML, yamlDocuments()),
		runtime.WithErrorHandler(handlerError),
		runtime.WithRoutingErrorHandler(routingError),
		runtime.WithIncomingHeaderMatcher(incoming),
		runtime.WithOutgoingHeaderMatcher(nothing),
		runtime.WithOutgoingTrailerMatcher(nothing),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptReserved),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisableChunkedEncoding(),
		runtime.WithWriteContentLength(),
		runtime.WithForwardResponseOption(counted),
		runtime.WithForwardResponseOption(entityTag),
		runtime.WithForwardResponseOption(warnings),
	}
	for _, media := range patches {
		options = append(options, runtime.WithMarshalerOption(media, patch{documents: jsonDocuments(), media: media}))
	}
	return runtime.NewServeMux(options...)
}

// incoming lets a client's trace through to the services and nothing else.
func incoming(key string) (string, bool) {
	switch key = strings.ToLower(key); key {
	case "traceparent", "tracestate", "baggage":
		return key, true
	}
	return "", false
}

func nothing(string) (string, bool) { return "", false }

// warnings passes warnings on in HTTP's own header, in the form that kubectl prints.
func warnings(ctx context.Context, w http.ResponseWriter, _ proto.Message) error {
	md, _ := runtime.ServerMetadataFromContext(ctx)
	for _, text := range md.HeaderMD.Get(rpcerr.WarningKey) {
		w.Header().Add("Warning", "299 - "+strconv.Quote(text))
	}
	return nil
}

// entityTag names the revision of a single object in the way of HTTP.
func entityTag(_ context.Context, w http.ResponseWriter, m proto.Message) error {
	object, ok := m.(interface{ GetMetadata() *metav1.ObjectMeta })
	if ok && object.GetMetadata().GetResourceVersion() != "" {
		w.Header().Set("ETag", `"`+object.GetMetadata().GetResourceVersion()+`"`)
	}
	return nil
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	caller, err := h.login.Request(r)
	if caller.RequestID != "" {
		w.Header().Set("X-Request-Id", caller.RequestID)
	}
	if err := h.foreign(r); err != nil {
		h.login.Refused(r, caller, nil, err)
		writeError(w, err)
		return
	}
	if isGRPC(r) {
		h.serveGRPC(w, r, caller, err)
		return
	}
	if handler, pattern := h.open.Handler(r); pattern != "" {
		handler.ServeHTTP(w, r)
		return
	}
	h.serveAPI(w, r, caller, err)
}

// foreign returns why a request is refused that a browser may have sent for a page of another site; nil if it is not. A
// page whose own name was made to resolve to the gateway (DNS rebinding) is of the same origin as its requests, which
// carry that name.
func (h *Handler) foreign(r *http.Request) error {
	if h.origin.Check(r) != nil {
		return rpcerr.Forbidden("a page of another site may not do this")
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host != "" && !h.named(strings.Trim(host, "[]")) { // HTTP/1.0 needs no host, and no browser speaks it
		return rpcerr.Forbidden(fmt.Sprintf("host %q is no address and no name of the gateway's certificate", host))
	}
	return nil
}

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && r.Method == http.MethodPost && strings.HasPrefix(r.Header.Get("Content-Type"),
		"application/grpc")
}

// serveGRPC answers a gRPC client that offered HTTP/1.1 too. This way has no flow control upwards: so the caller must
// be known before anything is read, and what is read is bounded.
func (h *Handler) serveGRPC(w http.ResponseWriter, r *http.Request, caller identity.Caller, err error) {
	method := h.catalog.Method(r.URL.Path)
	if err == nil && caller.User == "" && !method.Open() {
		err = noCredentials()
	}
	if err != nil {
		h.login.Refused(r, caller, method, err)
		writeTrailersOnly(w, err)
		return
	}
	most := MaxBody
	if method != nil && large.Plans(method.Desc) {
		most = large.MaxMessage + messageHeader
	}
	body := newGate(http.MaxBytesReader(w, r.Body, int64(most)), large.Ordinary+messageHeader)
	r = r.WithContext(context.WithValue(r.Context(), gateKey{}, body))
	r.Body = body
	r.Header.Set("X-Request-Id", caller.RequestID)
	h.grpc.ServeHTTP(w, r)
}

func (h *Handler) serveAPI(w http.ResponseWriter, r *http.Request, caller identity.Caller, err error) {
	original := r
	r = withoutCredentials(r)
	route, verbs := h.route(r)
	if err == nil && caller.User == "" && (route == nil || !route.Method.Open()) {
		err = noCredentials()
	}
	switch {
	case err != nil:
		var method *catalog.Method
		if route != nil {
			method = route.Method
		}
		h.login.Refused(r, caller, method, err)
	case route == nil && len(verbs) > 0:
		w.Header().Set("Allow", strings.Join(verbs, ", "))
		err = notAllowed(r.Method, verbs...)
	case route == nil:
		err = noSuchAddress(r)
	default:
		h.serveRoute(w, r, route, caller, original)
		return
	}
	writeError(w, err)
}

// serveRoute answers a request of an accepted caller: within the caller's share, which is taken before the body
// is read.
func (h *Handler) serveRoute(w http.ResponseWriter, r *http.Request, route *catalog.Route, caller identity.Caller,
	original *http.Request,
) {
	release, err := h.room.Call(r, caller, route.Method)
	if err != nil {
		writeError(w, err)
		return
	}
	defer release()
	if err := checkQuery(route, r.URL.RawQuery); err != nil {
		writeError(w, err)
		return
	}
	release, err = h.room.Text(r, caller, longest(r, caller))
	if err != nil {
		writeError(w, err)
		return
	}
	defer release()
	body := &reader{w: w, r: r, most: MaxBody, patience: bodyTime, memory: h.room.Memory}
	switch {
	case caller.User == "":
		body.most, body.patience = maxAnonymousBody, anonymousBodyTime
	case large.Plans(route.Method.Desc):
		body.large = func(n int) (LargeRoom, error) { return h.room.Large(original, caller, n) }
	}
	defer body.release()
	if err := readBody(body, route, caller); err != nil {
		writeError(w, err)
		return
	}
	h.call(w, r, route, caller, original, body.release)
}

// longest is how long the body of a request may become.
func longest(r *http.Request, caller identity.Caller) int {
	most := MaxBody
	if caller.User == "" {
		most = maxAnonymousBody
	}
	if r.ContentLength >= 0 && r.ContentLength < int64(most) && r.Header.Get("Content-Encoding") == "" {
		return int(r.ContentLength)
	}
	return most
}

// call passes a request on. original still has the credentials: a stream ends with them. answered is called when there
// is an answer, which the client may take long to read; it may be called more than once.
func (h *Handler) call(w http.ResponseWriter, r *http.Request, route *catalog.Route, caller identity.Caller,
	original *http.Request, answered func(),
) {
	ctx, end := h.span(identity.WithCaller(r.Context(), caller), r.Header, strings.TrimPrefix(route.Method.FullName, "/"))
	defer end()
	if route.Method.Streaming {
		r.Header.Set("Accept", mediaJSON)
		bound, stop, err := h.login.Bound(ctx, original)
		if err != nil {
			h.login.Refused(original, caller, route.Method, err)
			writeError(w, err)
			return
		}
		defer stop()
		ctx = bound
	} else {
		r.Header.Set("Accept", accepted(r.Header.Values("Accept")))
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, unaryTime)
		defer cancel()
		deadline := http.NewResponseController(w).SetWriteDeadline
		_ = deadline(time.Now().Add(unaryTime + answerTime)) // a writer without deadlines has none to keep
		defer func() { _ = deadline(time.Time{}) }()
	}
	out := &answerWriter{
		ResponseWriter: w, take: func(n int) (func(), error) {
			answered()
			return h.room.Text(original, caller, n)
		},
		release: func() {},
	}
	defer out.written()
	w.Header().Set("Cache-Control", "no-store")
	h.api.ServeHTTP(out, r.WithContext(ctx))
	if refusal := identity.Refusal(ctx); refusal != nil {
		h.login.Refused(original, caller, route.Method, refusal)
	}
}

// route finds the method of a request. A list address with watch=true is the watch address; with watch=false it is
// itself. The parameter goes from the query in both cases.
func (h *Handler) route(r *http.Request) (*catalog.Route, []string) {
	path := r.URL.RawPath
	route, verbs := h.catalog.Match(r.Method, path)
	if route == nil || r.Method != http.MethodGet || route.Method.Streaming {
		return route, verbs
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return route, verbs // checkQuery refuses it; what is encoded again would hide what cannot be read
	}
	if !query.Has("watch") {
		return route, verbs
	}
	watching, _ := h.catalog.Match(r.Method, path+":watch")
	if watching == nil || !watching.Method.Streaming {
		return route, verbs // checkQuery then refuses the parameter
	}
	switch query.Get("watch") {
	case "true", "1":
		route = watching
		r.URL.Path += ":watch"
		r.URL.RawPath += ":watch"
	case "false", "0":
	default:
		return route, verbs
	}
	query.Del("watch")
	r.URL.RawQuery = query.Encode()
	return route, verbs
}

// withoutCredentials copies r without what the services must not see: the client's credentials, and headers that the
// runtime would take for metadata or for the address of another client. The copy's RawPath is always set: the runtime
// would unescape the other one a second time.
func withoutCredentials(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.URL.RawPath = r.URL.EscapedPath()
	for key := range r.Header {
		lower := strings.ToLower(key)
		if lower == "authorization" || lower == "cookie" || lower == "forwarded" ||
			strings.HasPrefix(lower, "x-forwarded-") || strings.HasPrefix(lower, "windlass-") ||
			strings.HasPrefix(lower, "grpc-metadata-") {
			delete(r.Header, key)
		}
	}
	return r
}

// accepted picks the one media type of an answer: YAML if the client names it before JSON and before anything else
// goes.
func accepted(accept []string) string {
	for _, item := range strings.Split(strings.Join(accept, ","), ",") {
		media, _, _ := strings.Cut(item, ";")
		switch strings.TrimSpace(media) {
		case mediaYAML, "application/x-yaml", "text/yaml":
			return mediaYAML
		case mediaJSON, "*/*", "application/*":
			return mediaJSON
		}
	}
	return mediaJSON
}

func noCredentials() error {
	return rpcerr.Unauthenticated("no credentials: give a client certificate or a bearer token")
}
