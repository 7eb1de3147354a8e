package identity

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// Guard is what the interceptors need.
type Guard struct {
	Service string // name in the audit log
	Policy  *Policy
	Audit   *audit.Trail // nil means that nothing is recorded
	Log     *slog.Logger
	// Validity refuses credentials that expired or were revoked; nil means one with an empty deny list.
	Validity *Validity
	// Methods is where access options are looked up; nil means all files that are linked into the program.
	Methods protodesc.Resolver
}

// UnaryInterceptor authenticates and authorizes each call by the method's access option before its handler runs. A
// change is in the audit log before the handler runs, and its outcome afterwards; a handler that checks rights itself
// records it by BeforeChange. Reads of methods that are audited, and refusals, are recorded too. The handler finds the
// caller by CallerFrom.
func UnaryInterceptor(g Guard) grpc.UnaryServerInterceptor {
	w := newWatchman(g)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		c, err := w.admit(ctx, info.FullMethod)
		if err == nil {
			message, _ := req.(proto.Message)
			err = c.authorize(message)
		}
		if err != nil {
			return nil, c.refuse(err)
		}
		if err := c.beforeHandler(ctx); err != nil {
			return nil, err
		}
		response, err := handler(withCall(ctx, c), req)
		if err = c.answered(ctx, response, err); err != nil {
			return nil, err
		}
		return response, nil
	}
}

// StreamInterceptor does the same for streams, and ends each when the caller's certificate is no longer good or the
// policy no longer gives the right. The object is known from the first message, so the right is checked when the
// handler receives it, and nothing can be sent before; methods that check rights themselves are let through at once.
func StreamInterceptor(g Guard) grpc.StreamServerInterceptor {
	w := newWatchman(g)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := ss.Context()
		c, err := w.admit(ctx, info.FullMethod)
		if err != nil {
			return c.refuse(err)
		}
		ctx, stop := c.bound(withCall(ctx, c))
		defer stop()
		stream := &guardedStream{ServerStream: ss, ctx: ctx, call: c}
		return stream.ended(handler(srv, stream))
	}
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(WithCaller(ctx, c.caller), callKey{}, c)
}

// BeforeChange records that the call which ctx belongs to is about to change something, and returns when that is on
// disk. Handlers of methods that check rights themselves call it after their check and before the change; for the
// others the interceptor has done it. A further call does nothing. An error is a status that must be returned without a
// change.
func BeforeChange(ctx context.Context) error {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c.begin(ctx)
	}
	return nil
}

// Describe adds to the record of the call which ctx belongs to what its request does not say in fields of its own: the
// object, and in detail what else matters, such as a command. An empty text leaves what the record has.
func Describe(ctx context.Context, namespace, name, detail string) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for to, text := range map[*string]string{
		&c.record.Namespace: namespace, &c.record.Name: name,
		&c.record.Detail: detail,
	} {
		if text != "" {
			*to = text
		}
	}
}

// Needs has the stream which ctx belongs to end when the caller loses a right. Handlers of methods that check rights
// themselves call it with each right that they found.
func Needs(ctx context.Context, a Attributes) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.need(a)
	}
}

// watchman is a Guard at work.
type watchman struct {
	Guard
	rights *rights
}

func newWatchman(g Guard) *watchman {
	if g.Log == nil {
		g.Log = slog.Default()
	}
	if g.Validity == nil {
		g.Validity, _ = OpenValidity("") // without a file there is nothing to fail
	}
	return &watchman{Guard: g, rights: &rights{files: g.Methods}}
}

// call is one call on its way through the guard.
type call struct {
	*watchman
	caller Caller
	access *metav1.Access
	start  time.Time

	mu     sync.Mutex // guards what follows: a handler may describe the call in any goroutine
	record audit.Record
	begun  bool
	failed error // of the beginning

	rightsMu sync.Mutex // guards the two below; never held while something is written
	needs    []Attributes
	checked  uint64 // the version of the policy by which the caller has all of them; 0 means none
}

// admit does what is possible before the request is known: who calls, and whether the method can be called at all. The
// call is never nil.
func (w *watchman) admit(ctx context.Context, method string) (*call, error) {
	c := &call{watchman: w, start: time.Now(), access: &metav1.Access{}}
	caller, wrong := authenticate(ctx)
	c.caller = caller
	c.record = audit.Record{
		Time: c.start.UTC(), RequestID: caller.RequestID, User: caller.User, Groups: caller.Groups, Via: caller.Via,
		Source: caller.Source, Service: w.Service, Method: method,
	}
	if err := w.valid(ctx, caller); err != nil {
		return c, err
	}
	if isHealth(method) && peerCertificate(ctx) != nil {
		c.access = &metav1.Access{Unauthenticated: true}
		return c, nil
	}
	if wrong != nil && caller.User != "" {
		return c, rpcerr.Forbidden(wrong.Error())
	} else if wrong != nil {
		return c, rpcerr.Unauthenticated(wrong.Error())
	}
	if isHealth(method) || isReflection(method) {
		c.access = &metav1.Access{CheckedByMethod: true}
		return c, c.known()
	}
	access, err := w.rights.of(method)
	if err != nil {
		return c, rpcerr.Forbidden(err.Error())
	}
	c.access = access
	c.record.Verb, c.record.Group, c.record.Resource = access.GetVerb(), access.GetGroup(), access.GetResource()
	return c, c.known()
}

func (c *call) known() error {
	if c.caller.User == "" && !c.access.GetUnauthenticated() {
		return rpcerr.Unauthenticated("the caller is not known: a client certificate or a token is needed")
	}
	return nil
}

// authorize checks the right to do this to the object that the request names.
func (c *call) authorize(request proto.Message) error {
	own, described := targetOf(request)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Namespace, c.record.Name = described.namespace, described.name
	c.record.ResourceVersionBefore = described.resourceVersion
	group, resource := c.access.GetGroup(), c.access.GetResource()
	if c.access.GetOfRequest() && request != nil {
		group, resource = text(request.ProtoReflect(), "group"), text(request.ProtoReflect(), "resource")+resource
		c.record.Group = group
	}
	if request != nil {
		if part := text(request.ProtoReflect(), "subresource"); part != "" {
			resource += "/" + part // a patch of a part needs the right to that part
		}
	}
	c.record.Resource = resource
	if !c.access.GetUnauthenticated() && !c.access.GetCheckedByMethod() {
		wanted := Attributes{
			Verb: c.access.GetVerb(), Group: group, Resource: resource,
			Namespace: own.namespace, Name: own.name,
		}
		for n, right := range append([]Attributes{wanted}, carriedRight(request, c.access, wanted)...) {
			by, err := c.Policy.Require(c.caller, right)
			if err != nil {
				return err
			}
			if n == 0 {
				c.record.Reason = by
			}
			c.need(right)
		}
	}
	return nil
}

func (c *call) need(a Attributes) {
	c.rightsMu.Lock()
	defer c.rightsMu.Unlock()
	c.needs, c.checked = append(c.needs, a), 0 // the policy may have changed since the check
}

// entitled returns the refusal of a caller who lost a right that the call needs; nil if there is none.
func (c *call) entitled() error {
	c.rightsMu.Lock()
	defer c.rightsMu.Unlock()
	if len(c.needs) == 0 {
		return nil
	}
	policy := c.Policy.current()
	if policy == c.checked {
		return nil
	}
	for _, a := range c.needs {
		if _, err := c.Policy.Require(c.caller, a); err != nil {
			return err
		}
	}
	c.checked = policy
	return nil
}

// beforeHandler records what is allowed: a change, unless the handler still has to check it, or a read that is audited.
func (c *call) beforeHandler(ctx context.Context) error {
	switch {
	case c.access.GetMutating() && !c.access.GetCheckedByMethod() && !c.access.GetUnauthenticated():
		return c.begin(ctx)
	case c.access.GetAudited() && c.Audit != nil:
		c.Audit.Read(c.recorded())
	}
	return nil
}

// begin records a change before it is made.
func (c *call) begin(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun || c.Audit == nil {
		return c.failed
	}
	c.begun = true
	if err := c.Audit.Change(ctx, c.record, c.caller.system()); err != nil {
		c.Log.ErrorContext(ctx, "a change is refused, it cannot be recorded", "method", c.record.Method, "request",
			c.record.RequestID, "error", err)
		c.failed = unrecorded(c.Service, err)
	}
	return c.failed
}

// unrecorded refuses a change because of the error with which its record was not written.
func unrecorded(service string, err error) error {
	if audit.Full(err) {
		return rpcerr.TooMany("the audit log of "+service+
			" cannot be written, so nothing may be changed: its disk is full, free space on it", 0)
	}
	return rpcerr.Unavailable("the audit log of " + service + " cannot be written, so nothing may be changed")
}

// recorded returns a copy of the record.
func (c *call) recorded() audit.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record
}

// refuse records a refusal and returns the error to answer with.
func (c *call) refuse(err error) error {
	if c.Audit != nil {
		r := c.recorded()
		r.Reason, r.Code, r.LatencyMs = status.Convert(err).Message(), status.Code(err).String(), c.latency()
		c.Audit.Refused(r)
	}
	return err
}

// answered records the outcome of a handler and returns the error to answer with.
func (c *call) answered(ctx context.Context, response any, err error) error {
	err = c.mapped(ctx, err)
	if refused(err) {
		_ = c.refuse(err)
	}
	c.complete(metadataOf(response), err)
	return err
}

// complete records how a change ended, and what a handler changed that did not say so before.
func (c *call) complete(after target, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	unannounced := !c.begun && c.access.GetMutating() && err == nil
	if c.Audit == nil || !c.begun && !unannounced {
		return
	}
	r := c.record
	r.Time, r.Decision, r.Code, r.LatencyMs = time.Now().UTC(), audit.Allow, status.Code(err).String(), c.latency()
	if err == nil {
		r.ResourceVersionAfter = after.resourceVersion
		if r.Name == "" {
			r.Namespace, r.Name = after.namespace, after.name
		}
	} else {
		r.Reason = status.Convert(err).Message()
	}
	c.Audit.Completed(r)
}

func (c *call) latency() float64 { return float64(time.Since(c.start).Microseconds()) / 1000 }

// mapped turns a handler's error into a status, so that the record has the code that the caller gets. The cause of an
// INTERNAL one is known only here.
func (c *call) mapped(ctx context.Context, err error) error {
	out := rpcerr.From(err)
	if status.Code(out) == codes.Internal {
		c.Log.ErrorContext(ctx, "call failed", "method", c.record.Method, "request", c.record.RequestID, "error", err)
	}
	return out
}

func refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}
