// Package access answers callers who ask who they are and what they may do. It answers from the policy that all
// services share, by the very rule check that they make; it decides no call itself.
package access

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// Server implements meta.v1.AccessService.
type Server struct {
	metav1.UnimplementedAccessServiceServer
	policy *identity.Policy
}

// New returns a server that answers from a policy.
func New(policy *identity.Policy) *Server { return &Server{policy: policy} }

func caller(ctx context.Context) (identity.Caller, error) {
	c, ok := identity.CallerFrom(ctx)
	if !ok || c.User == "" {
		return c, rpcerr.Unauthenticated("credentials not recognized")
	}
	return c, nil
}

// WhoAmI returns the caller.
func (s *Server) WhoAmI(ctx context.Context, _ *metav1.WhoAmIRequest) (*metav1.WhoAmIResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	return &metav1.WhoAmIResponse{User: c.User, Groups: c.Groups}, nil
}

// ReviewAccess says whether the caller may do something.
func (s *Server) ReviewAccess(ctx context.Context, req *metav1.ReviewAccessRequest) (*metav1.ReviewAccessResponse,
	error,
) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	var missing []object.Fault
	for path, value := range map[string]string{"verb": req.GetVerb(), "resource": req.GetResource()} {
		if value == "" {
			missing = append(missing, object.Fault{Path: path, Description: "must be given"})
		}
	}
	if len(missing) > 0 {
		return nil, rpcerr.Invalid(missing...)
	}
	by, err := s.policy.Require(c, identity.Attributes{
		Verb: req.GetVerb(), Group: req.GetGroup(), Resource: req.GetResource(), Namespace: req.GetNamespace(),
		Name: req.GetName(),
	})
	switch status.Code(err) {
	case codes.OK:
		return &metav1.ReviewAccessResponse{Allowed: true, Reason: by}, nil
	case codes.PermissionDenied:
		return &metav1.ReviewAccessResponse{Reason: status.Convert(err).Message()}, nil
	}
	return nil, err
}

// ListAccess returns the rules of the policy that hold for the caller.
func (s *Server) ListAccess(ctx context.Context, req *metav1.ListAccessRequest) (*metav1.ListAccessResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.policy.Complete(); err != nil && !c.In(identity.GroupMasters) {
		return nil, err
	}
	out := &metav1.ListAccessResponse{}
	for _, r := range s.policy.Rules(c) {
		if req.GetNamespace() != "" && r.Namespace != "" && r.Namespace != req.GetNamespace() {
			continue
		}
		out.Rules = append(out.Rules, &metav1.ListAccessResponse_Rule{
			Verbs: r.Verbs, Groups: r.APIGroups, Resources: r.Resources, Names: r.ResourceNames, Namespace: r.Namespace,
		})
	}
	return out, nil
}

// Client returns the server for callers in the same process.
func (s *Server) Client() metav1.AccessServiceClient { return client{s} }

type client struct{ s *Server }

func (c client) WhoAmI(ctx context.Context, in *metav1.WhoAmIRequest, _ ...grpc.CallOption) (*metav1.WhoAmIResponse,
	error,
) {
	return c.s.WhoAmI(ctx, in)
}

func (c client) ReviewAccess(ctx context.Context, in *metav1.ReviewAccessRequest, _ ...grpc.CallOption) (
	*metav1.ReviewAccessResponse, error,
) {
	return c.s.ReviewAccess(ctx, in)
}

func (c client) ListAccess(ctx context.Context, in *metav1.ListAccessRequest, _ ...grpc.CallOption) (
	*metav1.ListAccessResponse, error,
) {
	return c.s.ListAccess(ctx, in)
}
