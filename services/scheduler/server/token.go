package server

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// Signer signs the tokens of service accounts.
type Signer interface {
	Sign(of accounttoken.Account, audiences []string, lifetime time.Duration, now time.Time) (string, accounttoken.Token,
		error)
}

// Tokens serves ServiceAccountTokenService.
type Tokens struct {
	schedulingv1.UnimplementedServiceAccountTokenServiceServer
	Config
}

// CreateServiceAccountToken returns a token of a service account.
func (s *Tokens) CreateServiceAccountToken(ctx context.Context, r *schedulingv1.CreateServiceAccountTokenRequest) (
	*schedulingv1.CreateServiceAccountTokenResponse, error,
) {
	of, err := s.account(ctx, r.GetNamespace(), r.GetName())
	if err != nil {
		return nil, err
	}
	if r.GetPodName() != "" {
		pod, err := s.Tables.Pods.Get(ctx, r.GetNamespace(), r.GetPodName())
		if err != nil {
			return nil, err
		}
		if pod.GetSpec().GetServiceAccountName() != r.GetName() {
			return nil, rpcerr.Invalid(object.Fault{
				Path: "podName", Description: fmt.Sprintf("is a pod of another service account, not of %q", r.GetName()),
			})
		}
		of.Pod, of.PodUID, of.Node = r.GetPodName(), pod.GetMetadata().GetUid(), pod.GetSpec().GetNodeName()
	}
	text, expires, err := s.sign(of, r.GetAudiences(), r.GetExpirationSeconds())
	if err != nil {
		return nil, err
	}
	return &schedulingv1.CreateServiceAccountTokenResponse{Token: text, ExpiryTime: expires}, nil
}

// account returns a service account that exists.
func (c Config) account(ctx context.Context, namespace, name string) (accounttoken.Account, error) {
	find := func() (*schedulingv1.ServiceAccount, error) { return c.Tables.Account(ctx, namespace, name) }
	if name == plan.DefaultAccount {
		find = func() (*schedulingv1.ServiceAccount, error) { return c.Tables.DefaultAccount(ctx, namespace) }
	}
	a, err := find()
	if err != nil {
		return accounttoken.Account{}, err
	}
	if a == nil || object.Deleting(a) {
		return accounttoken.Account{}, rpcerr.NotFound("ServiceAccount", name)
	}
	return accounttoken.Account{Namespace: namespace, Name: name, UID: a.GetMetadata().GetUid()}, nil
}

func (c Config) sign(of accounttoken.Account, audiences []string, seconds int32) (string, *timestamppb.Timestamp,
	error,
) {
	lifetime := cmp.Or(time.Duration(seconds)*time.Second, accounttoken.Lifetime)
	text, token, err := c.Signer.Sign(of, audiences, lifetime, c.Now())
	if err != nil {
		return "", nil, rpcerr.Unavailable(err.Error())
	}
	return text, timestamppb.New(token.Expires), nil
}

// ReviewServiceAccountToken says whether the service account of a token and its pod exist. The gateways ask often, so
// it answers from the cache; what the cache does not have, etcd decides.
func (s *Tokens) ReviewServiceAccountToken(ctx context.Context, r *schedulingv1.ReviewServiceAccountTokenRequest) (
	*schedulingv1.ReviewServiceAccountTokenResponse, error,
) {
	caller, _ := identity.CallerFrom(ctx)
	if name, service := caller.Service(); !service || name != topology.Gateway {
		return nil, rpcerr.Forbidden(fmt.Sprintf("user %q may not review tokens: only the gateway does", caller.User))
	}
	refuse := func(why string) (*schedulingv1.ReviewServiceAccountTokenResponse, error) {
		return &schedulingv1.ReviewServiceAccountTokenResponse{Refusal: why}, nil
	}
	a, ok := s.Tables.ServiceAccounts.Lookup(r.GetNamespace(), r.GetName())
	if !ok || a.GetMetadata().GetUid() != r.GetUid() {
		var err error
		if a, err = s.Tables.ServiceAccounts.Get(ctx, r.GetNamespace(), r.GetName()); missing(err) {
			return refuse("the service account of the token does not exist")
		} else if err != nil {
			return nil, err
		}
	}
	if a.GetMetadata().GetUid() != r.GetUid() || object.Deleting(a) {
		return refuse("the service account of the token was deleted")
	}
	if r.GetPodName() == "" {
		return refuse("")
	}
	pod, ok := s.Tables.Pods.Lookup(r.GetNamespace(), r.GetPodName())
	if !ok || pod.GetMetadata().GetUid() != r.GetPodUid() {
		var err error
		if pod, err = s.Tables.Pods.Get(ctx, r.GetNamespace(), r.GetPodName()); missing(err) {
			return refuse("the pod of the token does not exist")
		} else if err != nil {
			return nil, err
		}
	}
	switch {
	case pod.GetMetadata().GetUid() != r.GetPodUid():
		return refuse("the pod of the token was deleted")
	case pod.GetSpec().GetServiceAccountName() != r.GetName():
		return refuse("the pod of the token has another service account")
	case placement.Terminated(pod):
		return refuse("the pod of the token has ended")
	}
	return refuse("")
}

func missing(err error) bool {
	return rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND
}

// CreatePodToken returns a token of the service account of a pod of the agent's node: the right to it comes with the
// pod, as that to its secrets.
func (s *Agents) CreatePodToken(ctx context.Context, r *schedulingv1.CreatePodTokenRequest) (
	*schedulingv1.CreatePodTokenResponse, error,
) {
	pod, err := s.ownPod(ctx, r.GetNodeName(), r.GetNamespace(), r.GetName(), r.GetUid())
	if err != nil {
		return nil, err
	}
	name := cmp.Or(pod.GetSpec().GetServiceAccountName(), plan.DefaultAccount)
	identity.Describe(ctx, r.GetNamespace(), name, "for pod "+r.GetName())
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	of, err := s.account(ctx, r.GetNamespace(), name)
	if err != nil {
		return nil, err
	}
	of.Pod, of.PodUID, of.Node = r.GetName(), r.GetUid(), r.GetNodeName()
	var audiences []string
	if r.GetAudience() != "" {
		audiences = []string{r.GetAudience()}
	}
	text, expires, err := s.sign(of, audiences, r.GetExpirationSeconds())
	if err != nil {
		return nil, err
	}
	return &schedulingv1.CreatePodTokenResponse{Token: text, ExpiryTime: expires}, nil
}
