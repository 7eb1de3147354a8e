package store_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestAFullEtcdSaysSo(t *testing.T) {
	client := etcdtest.Client(t)
	s := store.New(client, etcdtest.Prefix(t))
	at := commit(t, s, store.Put("a", []byte("v"), 0))
	maintenance := etcdserverpb.NewMaintenanceClient(client.ActiveConnection())
	if _, err := maintenance.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE,
		Alarm:  etcdserverpb.AlarmType_NOSPACE,
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := client.AlarmDisarm(context.WithoutCancel(t.Context()), &clientv3.AlarmMember{}); err != nil {
			t.Error(err)
		}
	}()
	for name, st := range map[string]*store.Store{
		"with a writer key": s,
		"of a new process":  store.New(client, s.Prefix()),
	} {
		_, err := st.Commit(t.Context(), store.Put("b", nil, 0))
		if !errors.Is(err, store.ErrNoSpace) || status.Code(rpcerr.From(err)) != codes.ResourceExhausted {
			t.Errorf("%s: Commit = %v, for callers %v; want RESOURCE_EXHAUSTED", name, err, rpcerr.From(err))
		}
	}
	if _, err := s.Commit(t.Context(), store.Delete("a", at)); err != nil {
		t.Errorf("a deletion frees space: %v", err)
	}
}

func TestAFullDiskEndsNoClient(t *testing.T) {
	file := filepath.Join(t.TempDir(), "missing", "endpoints") // it cannot be written
	endpoint := etcdtest.Endpoint(t)
	c, err := store.Dial(store.ClientConfig{Endpoints: []string{"unix:///nowhere", endpoint}, EndpointsFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	endpoints := store.NewEndpoints(c, file, slog.New(slog.DiscardHandler))
	go func() { done <- endpoints.Save(ctx) }()
	for range 3 {
		if err := endpoints.Ready(ctx); err != nil || !slices.Equal(c.Endpoints(), []string{endpoint}) {
			t.Errorf("Ready = %v, addresses %v", err, c.Endpoints())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Save = %v", err)
	}
}
