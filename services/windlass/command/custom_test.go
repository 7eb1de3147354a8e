package command_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/resource"
)

// account is a kind as a CustomResourceDefinition defines it.
var account = &metav1.ResourceType{
	Group: "ledger.example.com", Version: "v1", Kind: "Account", Plural: "accounts", Singular: "account",
	ShortNames: []string{"acct"}, Namespaced: true, DefaultNamespace: "default",
	Columns: []*metav1.Column{
		{Name: "OWNER", Path: "owner"},
		{Name: "PHASE", Path: "status.conditions[Ready].status"},
		{Name: "LIMIT", Path: "limit", Wide: true},
	},
}

// discovery says which kinds are defined.
type discovery struct {
	apiextensionsv1.UnimplementedCustomObjectServiceServer
}

func (discovery) DiscoverCustomObjects(context.Context, *apiextensionsv1.DiscoverCustomObjectsRequest) (
	*apiextensionsv1.DiscoverCustomObjectsResponse, error,
) {
	return &apiextensionsv1.DiscoverCustomObjectsResponse{Kinds: []*metav1.ResourceType{account}}, nil
}

// serveCustom serves the objects of the kind Account.
func (w *world) serveCustom(t *testing.T, srv *grpc.Server) {
	t.Helper()
	kindOf(t, srv, &apiextensionsv1.CustomObjectService_ServiceDesc, discovery{},
		resource.Config[*apiextensionsv1.CustomObject]{
			Type: account, Prefix: "custom/accounts/", NoStatus: func() bool { return true },
		})
	kind[*apiextensionsv1.CustomResourceDefinition](t, srv, &apiextensionsv1.CustomResourceDefinitionService_ServiceDesc,
		nil)
}
