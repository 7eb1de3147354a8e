package identity

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// Guard is what the interceptors need.
type Guard struct {
	Service string // name in the audit log
	Policy  *Policy
	Audit   *Audit
	Log     *slog.Logger
	// Validity refuses credentials that expired or were revoked; nil means one with an empty deny list.
	Validity *Validity
	// Methods is where access options are looked up; nil means all files that are linked into the program.
	Methods protodesc.Resolver
}

// UnaryInterceptor authenticates and authorizes each call by the method's access option before its handler runs, and
// writes the audit log before the reply: one record for each call that changes something, and for each refusal. The
// handler finds the caller by CallerFrom.
func UnaryInterceptor(g Guard) grpc.UnaryServerInterceptor {
	w := newWatchman(g)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		c, err := w.admit(ctx, info.FullMethod)
		if err == nil {
			message, _ := req.(proto.Message)
			err = c.authorize(message)
		}
		if err != nil {
			return nil, c.refuse(ctx, err)
		}
		response, err := handler(WithCaller(ctx, c.caller), req)
		if err = c.answered(ctx, response, err); err != nil {
			return nil, err
		}
		return response, nil
	}
}

// StreamInterceptor does the same for streams, and ends each when the caller's certificate is no longer good. The object is known from the first message, so the right is checked when
// the handler receives it, and nothing can be sent before; methods that check rights themselves are let through at once.
// A stream that changes something is recorded when it begins.
func StreamInterceptor(g Guard) grpc.StreamServerInterceptor {
	w := newWatchman(g)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := ss.Context()
		c, err := w.admit(ctx, info.FullMethod)
		if err != nil {
			return c.refuse(ctx, err)
		}
		ctx, stop := w.bound(WithCaller(ctx, c.caller))
		defer stop()
		stream := &guardedStream{ServerStream: ss, ctx: ctx, call: c}
		return stream.ended(handler(srv, stream))
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
	record Record
	reason string // why it was allowed
}

// admit does what is possible before the request is known: who calls, and whether the method can be called at all. The
// call is never nil.
func (w *watchman) admit(ctx context.Context, method string) (*call, error) {
	c := &call{watchman: w, start: time.Now(), access: &metav1.Access{}}
	caller, wrong := authenticate(ctx)
	c.caller = caller
	c.record = Record{
		Time: c.start.UTC(), RequestID: caller.RequestID, User: caller.User, Groups: caller.Groups, Via: caller.Via,
		Source: sourceOf(ctx), Service: w.Service, Method: method,
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
	c.record.Namespace, c.record.Name = described.namespace, described.name
	c.record.ResourceVersionBefore = described.resourceVersion
	resource := c.access.GetResource()
	if request != nil {
		if part := text(request.ProtoReflect(), "subresource"); part != "" {
			resource += "/" + part // a patch of a part needs the right to that part
		}
	}
	c.record.Resource = resource
	if !c.access.GetUnauthenticated() && !c.access.GetCheckedByMethod() {
		ok, reason := c.Policy.Allowed(c.caller, Attributes{
			Verb: c.access.GetVerb(), Group: c.access.GetGroup(), Resource: resource,
			Namespace: own.namespace, Name: own.name,
		})
		if !ok {
			return rpcerr.Forbidden(reason)
		}
		c.reason = reason
	}
	if c.access.GetMutating() && c.Audit != nil && c.Audit.Failed() {
		return rpcerr.Unavailable("the audit log cannot be written, so nothing may be changed")
	}
	return nil
}

// refuse records a call that did not reach its handler and returns the error to answer with.
func (c *call) refuse(ctx context.Context, err error) error {
	c.record.Reason = status.Convert(err).Message()
	_ = c.write(ctx, Deny, err) // a refusal stands, recorded or not; write has said so in the log
	return err
}

// answered records the outcome of a handler and returns the error to answer with.
func (c *call) answered(ctx context.Context, response any, err error) error {
	err = c.mapped(ctx, err)
	switch {
	case refused(err):
		return c.refuse(ctx, err)
	case !c.access.GetMutating():
		return err
	}
	c.record.Reason = c.reason
	if err == nil {
		after := metadataOf(response)
		c.record.ResourceVersionAfter = after.resourceVersion
		if c.record.Name == "" {
			c.record.Namespace, c.record.Name = after.namespace, after.name
		}
	}
	if failed := c.write(ctx, Allow, err); failed != nil {
		return rpcerr.Unavailable("the audit log cannot be written; the change may have been made")
	}
	return err
}

// mapped turns a handler's error into a status, so that the record has the code that the caller gets. The cause of an
// INTERNAL one is known only here.
func (c *call) mapped(ctx context.Context, err error) error {
	out := rpcerr.From(err)
	if status.Code(out) == codes.Internal {
		c.Log.ErrorContext(ctx, "call failed", "method", c.record.Method, "request", c.record.RequestID, "error", err)
	}
	return out
}

func (c *call) write(ctx context.Context, decision string, err error) error {
	if c.Audit == nil {
		return nil
	}
	c.record.Decision, c.record.Code = decision, status.Code(err).String()
	c.record.LatencyMs = float64(time.Since(c.start).Microseconds()) / 1000
	failed := c.Audit.Write(ctx, c.record)
	if failed != nil {
		c.Log.ErrorContext(ctx, "call not recorded", "method", c.record.Method, "request", c.record.RequestID, "error", failed)
	}
	return failed
}

func refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}
