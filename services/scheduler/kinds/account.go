package kinds

import (
	"context"
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// accountPatience bounds the read of a service account that the cache does not have.
const accountPatience = 3 * time.Second

func validateServiceAccount(a *schedulingv1.ServiceAccount) (bad []object.Fault) {
	for list, refs := range map[string][]*schedulingv1.SecretReference{
		"secrets": a.GetSecrets(), "imagePullSecrets": a.GetImagePullSecrets(),
	} {
		for i, r := range refs {
			for _, why := range validation.IsDNS1123Subdomain(r.GetName()) {
				bad = append(bad, object.Faultf(fmt.Sprintf("%s[%d].name", list, i), "must be the name of a secret: %s", why))
			}
		}
	}
	return bad
}

// Account returns the service account of a name, as it is in etcd if the cache does not have it; nil if there is none.
func (t *Tables) Account(ctx context.Context, namespace, name string) (*schedulingv1.ServiceAccount, error) {
	if a, ok := t.ServiceAccounts.Lookup(namespace, name); ok {
		return a, nil
	}
	a, err := t.ServiceAccounts.Get(ctx, namespace, name)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// DefaultAccount returns the service account "default" of a namespace, and creates it if there is none: pods need it
// before the controller has seen their namespace.
func (t *Tables) DefaultAccount(ctx context.Context, namespace string) (*schedulingv1.ServiceAccount, error) {
	a, err := t.Account(ctx, namespace, plan.DefaultAccount)
	if a != nil || err != nil {
		return a, err
	}
	_, err = t.ServiceAccounts.Create(ctx, &schedulingv1.ServiceAccount{
		Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: plan.DefaultAccount},
	}, resource.WriteOptions{Own: true})
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil, err
	}
	return t.Account(ctx, namespace, plan.DefaultAccount)
}

// admitAccount gives a new pod its service account and what comes with it, or refuses the pod.
func (t *Tables) admitAccount(pod *schedulingv1.Pod) error {
	plan.DefaultAccountOf(pod.GetSpec())
	namespace, name := pod.GetMetadata().GetNamespace(), pod.GetSpec().GetServiceAccountName()
	account, ok := t.ServiceAccounts.Lookup(namespace, name)
	if !ok && name != plan.DefaultAccount {
		// It may have been created a moment ago, through another replica.
		ctx, cancel := context.WithTimeout(context.Background(), accountPatience)
		defer cancel()
		var err error
		if account, err = t.Account(ctx, namespace, name); err != nil {
			return err
		}
	}
	if why := plan.AdmitAccount(pod, account); why != "" {
		return rpcerr.Forbidden(why)
	}
	return nil
}
