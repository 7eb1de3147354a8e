package controller

import (
	"context"
	"log/slog"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
)

func TestServicesOfFormerVersionsGetAddresses(t *testing.T) {
	st := etcdtest.Store(t)
	for name, spec := range map[string]*schedulingv1.ServiceSpec{
		"without":  {Type: "ClusterIP"},
		"has":      {Type: "ClusterIP", ClusterIp: "127.224.0.7"},
		"headless": {Type: "ClusterIP", ClusterIp: "None"},
		"external": {Type: "ExternalName", ExternalName: "db"},
	} {
		spec.SessionAffinity, spec.Ports = "None", []*schedulingv1.ServicePort{{Port: 80, Protocol: "TCP"}}
		raw, err := proto.Marshal(&schedulingv1.Service{
			ApiVersion: "v1", Kind: "Service",
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name, Uid: name, Generation: 1}, Spec: spec,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Commit(t.Context(), store.Put("services/default/"+name, raw, 0)); err != nil {
			t.Fatal(err)
		}
	}
	tables := followed(t, clusterOf(), st)
	a := NewAddresses(tables, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Lead(ctx) }()
	var got string
	for got == "" {
		revision := tables.Services.Revision()
		s, _ := tables.Services.Lookup("default", "without")
		if got = s.GetSpec().GetClusterIp(); got == "" {
			if err := tables.Services.WaitRevision(t.Context(), revision+1); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"without": got, "has": "127.224.0.7", "headless": "None", "external": ""} {
		if s, _ := tables.Services.Lookup("default", name); s.GetSpec().GetClusterIp() != want {
			t.Errorf("%s has the address %q, want %q", name, s.GetSpec().GetClusterIp(), want)
		}
	}
	// The address that a service had before there were claims is its own.
	_, err := tables.Services.Create(t.Context(), &schedulingv1.Service{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "new"},
		Spec: &schedulingv1.ServiceSpec{
			ClusterIp: "127.224.0.7", Ports: []*schedulingv1.ServicePort{{Port: 80}},
		},
	})
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		t.Errorf("another service with the address: %v", err)
	}
}
