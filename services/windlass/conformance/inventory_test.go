package conformance_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
	inventory "github.com/windlass-dev/windlass/services/provider-inventory/service"
	"github.com/windlass-dev/windlass/services/windlass/conformance"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// obey attends as the agent of a host until ctx ends: every order is carried out at once.
func obey(ctx context.Context, hosts hostv1.HostServiceClient, name string) {
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		s, err := hosts.AttendHost(ctx)
		if err != nil || s.Send(&hostv1.AttendHostRequest{Name: name, Facts: &hostv1.HostFacts{BootId: "b"}}) != nil {
			continue
		}
		for {
			m, err := s.Recv()
			if err != nil {
				break
			}
			if id := m.GetOrder().GetId(); id != "" {
				_ = s.Send(&hostv1.AttendHostRequest{Name: name, Report: &hostv1.HostReport{
					OrderId: id, Done: true, Stopped: true,
				}}) // the next Recv fails if this does
			}
		}
	}
}

// The inventory provider keeps the rules, with hosts whose agents attend over gRPC.
func TestTheInventoryProviderKeepsTheRules(t *testing.T) {
	ground := servetest.New(t)
	tls := filepath.Dir(ground.Files(servetest.Service(topology.ProviderInventory)).Cert)
	if _, err := store.AddKey(filepath.Join(tls, serve.RecordKeysFile), time.Now()); err != nil {
		t.Fatal(err)
	}
	p := ground.Process(serve.Config{Name: topology.ProviderInventory, TLSDir: tls})
	parts, err := inventory.Build(p, etcdtest.Client(t), inventory.Options{Cluster: "c", Silence: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	servetest.Run(t, p, parts...)
	admin := hostv1.NewHostServiceClient(ground.Dial(p.Address(), servetest.Admin()))
	for n := range 4 {
		name := fmt.Sprint("h", n)
		var uid string
		servetest.Await(t, func() string {
			h, err := admin.RegisterHost(t.Context(), &hostv1.RegisterHostRequest{
				Name: name, Address: fmt.Sprint("192.0.2.", n+1), Roles: []string{"worker"},
			})
			if err != nil {
				return err.Error()
			}
			uid = h.GetMetadata().GetUid()
			return ""
		})
		go obey(t.Context(), hostv1.NewHostServiceClient(ground.Dial(p.Address(), servetest.Host(name, uid))), name)
		servetest.Await(t, func() string {
			h, err := admin.GetHost(t.Context(), &hostv1.GetHostRequest{Name: name})
			if err != nil || h.GetStatus().GetPhase() != "Available" {
				return fmt.Sprint(h, err)
			}
			return ""
		})
	}
	spec := &structpb.Struct{Fields: map[string]*structpb.Value{
		"apiVersion": structpb.NewStringValue("windlass.dev/v1"),
		"kind":       structpb.NewStringValue("InventoryMachineProviderSpec"),
	}}
	conn := ground.Dial(p.Address(), servetest.Service(topology.MachineAPI))
	for _, r := range conformance.Run(t.Context(), conn, conformance.Options{Spec: spec, Limit: time.Minute}) {
		if r.Err != nil || r.Skipped != "" {
			t.Errorf("%s: %v %s", r.Name, r.Err, r.Skipped)
		}
	}
}
