package client

import (
	"cmp"
	"context"
	"errors"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// bindingKind is Kubernetes' kind of a document that is not stored: to create it binds a pod to a node.
const bindingKind = "Binding"

func binding() Kind {
	return Kind{
		ResourceType: &metav1.ResourceType{
			Version: "v1", Kind: bindingKind, Plural: "bindings", Singular: "binding", Namespaced: true,
			DefaultNamespace: "default",
		},
		Message: (&schedulingv1.BindPodRequest{}).ProtoReflect().Descriptor(),
	}
}

// bind binds the pod that a Binding names, and returns the document.
func (c *Client) bind(ctx context.Context, b *schedulingv1.BindPodRequest, dryRun bool) (object.Object, error) {
	if dryRun {
		return nil, errors.New("a Binding has no dry run")
	}
	m := b.GetMetadata()
	b.Namespace, b.Name = cmp.Or(b.GetNamespace(), m.GetNamespace()), cmp.Or(b.GetName(), m.GetName())
	_, err := schedulingv1.NewPodServiceClient(c.conn).BindPod(ctx, b)
	return b, err
}
