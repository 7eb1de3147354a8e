package serve_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// revoker is a machine-api that serves only revocations.
type revoker struct {
	machinev1.UnimplementedRevocationServiceServer
	add chan *machinev1.Revocation
}

func (r revoker) WatchRevocations(_ *machinev1.WatchRevocationsRequest,
	s grpc.ServerStreamingServer[machinev1.WatchRevocationsResponse],
) error {
	if err := s.Send(&machinev1.WatchRevocationsResponse{ResourceVersion: "1", Bookmark: true}); err != nil {
		return err
	}
	for {
		select {
		case <-s.Context().Done():
			return nil
		case object := <-r.add:
			events := []*machinev1.WatchRevocationsResponse_Event{{Type: "ADDED", Object: object}}
			if err := s.Send(&machinev1.WatchRevocationsResponse{ResourceVersion: "2", Events: events}); err != nil {
				return err
			}
		}
	}
}

func TestAServiceRefusesWhatIsRevokedAlsoWhileMachineAPIIsAway(t *testing.T) {
	ground := servetest.New(t)
	owner := ground.Process(serve.Config{Name: "machine-api"})
	list := revoker{add: make(chan *machinev1.Revocation, 1)}
	machinev1.RegisterRevocationServiceServer(owner.GRPC, list)
	stopOwner := servetest.Run(t, owner)

	cfg := serve.Config{
		Name: "eviction-controller", Dir: t.TempDir(),
		TLSDir: filepath.Dir(ground.Files(servetest.Service("eviction-controller")).Cert),
		Peers:  map[string]string{"machine-api": owner.Address()},
	}
	process := ground.Process(cfg)
	service := &machines{watching: make(chan struct{})}
	machinev1.RegisterMachineServiceServer(process.GRPC, service)
	stop := servetest.Run(t, process)

	conn := ground.Dial(process.Address(), servetest.Admin())
	watch, err := machinev1.NewMachineServiceClient(conn).WatchMachines(t.Context(), &machinev1.WatchMachinesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-service.watching
	list.add <- &machinev1.Revocation{
		Metadata: &metav1.ObjectMeta{Name: "alice", ResourceVersion: "2"}, Spec: &machinev1.RevocationSpec{
			User: "alice", Reason: "left",
		},
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "left") {
		t.Errorf("the open watch ended with %v", err)
	}

	stop()
	stopOwner()
	again := ground.Process(cfg)
	machinev1.RegisterMachineServiceServer(again.GRPC, &machines{})
	servetest.Run(t, again)
	for request, want := range map[string]codes.Code{"alice": codes.Unauthenticated, "bob": codes.OK} {
		client := machinev1.NewMachineServiceClient(ground.Dial(again.Address(),
			servetest.User(request, identity.GroupMasters)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := client.GetMachine(ctx, &machinev1.GetMachineRequest{Namespace: "default", Name: "m"})
		cancel()
		if status.Code(err) != want {
			t.Errorf("after a restart without machine-api %s gets %v, want %v", request, err, want)
		}
	}
}

// Machines that go in a burst are refused at once, and all of them are on the disk soon after.
func TestABurstOfRevocationsIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations.json")
	v, err := identity.OpenValidity(path)
	if err != nil {
		t.Fatal(err)
	}
	list := resource.NewCache[*machinev1.Revocation]()
	list.Replace(nil, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve.EnforceRevocations(ctx, list, v, slog.New(slog.DiscardHandler)) }()
	const burst = 300
	user := func(i int) identity.Credential {
		return identity.Credential{User: fmt.Sprint("user-", i)}
	}
	kept := func() string {
		next, err := identity.OpenValidity(path)
		if err != nil {
			return err.Error()
		}
		for i := range burst {
			if next.Check(user(i)) == nil {
				return fmt.Sprintf("user %d refused by the next process", i)
			}
		}
		return ""
	}
	for i := range burst {
		o := &machinev1.Revocation{
			Metadata: &metav1.ObjectMeta{Name: fmt.Sprint("r-", i)}, Spec: &machinev1.RevocationSpec{
				User: fmt.Sprint("user-", i),
			},
		}
		list.Step(int64(i)+2, []resource.Change[*machinev1.Revocation]{{Key: object.KeyOf(o), Object: o}})
	}
	servetest.Await(t, func() string {
		if v.Check(user(burst-1)) == nil {
			return "the last one in force"
		}
		return ""
	})
	servetest.Await(t, kept)
	o := &machinev1.Revocation{Metadata: &metav1.ObjectMeta{Name: "last"}, Spec: &machinev1.RevocationSpec{
		User: "user-300",
	}}
	list.Step(burst+2, []resource.Change[*machinev1.Revocation]{{Key: object.KeyOf(o), Object: o}})
	servetest.Await(t, func() string {
		if v.Check(user(burst)) == nil {
			return "it in force"
		}
		return ""
	})
	cancel() // while its write may still wait
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if next, err := identity.OpenValidity(path); err != nil || next.Check(user(burst)) == nil {
		t.Errorf("what was in force at the end is not on the disk: %v", err)
	}
}

func TestWithADamagedDenyListUsersWaitForMachineAPI(t *testing.T) {
	ground := servetest.New(t)
	owner := ground.Process(serve.Config{Name: "machine-api"})
	list := revoker{add: make(chan *machinev1.Revocation, 1)}
	machinev1.RegisterRevocationServiceServer(owner.GRPC, list)

	cfg := serve.Config{
		Name: "eviction-controller", Dir: t.TempDir(),
		TLSDir: filepath.Dir(ground.Files(servetest.Service("eviction-controller")).Cert),
		Peers:  map[string]string{"machine-api": owner.Address()},
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, "revocations.json"), []byte(`{"revocations": [`), 0o600); err != nil {
		t.Fatal(err)
	}
	process := ground.Process(cfg)
	machinev1.RegisterMachineServiceServer(process.GRPC, &machines{})
	servetest.Run(t, process)
	get := func(r identity.Request) codes.Code {
		client := machinev1.NewMachineServiceClient(ground.Dial(process.Address(), r))
		_, err := client.GetMachine(t.Context(), &machinev1.GetMachineRequest{Namespace: "default", Name: "m"})
		return status.Code(err)
	}
	for name, tt := range map[string]struct {
		request identity.Request
		want    codes.Code
	}{
		"an administrator": {servetest.Admin(), codes.Unavailable},
		"a node":           {servetest.Node("worker"), codes.Unavailable},
		"a service":        {servetest.Service("hook-broker"), codes.OK},
	} {
		if got := get(tt.request); got != tt.want {
			t.Errorf("%s gets %v before machine-api answers, want %v", name, got, tt.want)
		}
	}
	servetest.Run(t, owner)
	servetest.Await(t, func() string {
		if code := get(servetest.Admin()); code != codes.OK {
			return "an answer for the administrator, not " + code.String()
		}
		return ""
	})
}

func TestClientsConnectAgainInTimeAndTheirStreamsLiveOn(t *testing.T) {
	ground := servetest.New(t)
	process := ground.Process(serve.Config{Name: "machine-api", ConnectionAge: 300 * time.Millisecond})
	service := &machines{watching: make(chan struct{})}
	machinev1.RegisterMachineServiceServer(process.GRPC, service)
	servetest.Run(t, process)

	conn := ground.Dial(process.Address(), servetest.Admin())
	client := machinev1.NewMachineServiceClient(conn)
	watch, err := client.WatchMachines(t.Context(), &machinev1.WatchMachinesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-service.watching
	ended := make(chan error, 1)
	go func() {
		_, err := watch.Recv()
		ended <- err
	}()
	seen := map[string]bool{}
	servetest.Await(t, func() string {
		if _, err := client.GetMachine(t.Context(), &machinev1.GetMachineRequest{
			Namespace: "default",
			Name:      "m",
		}); err != nil {
			t.Fatalf("a call fails around the end of a connection: %v", err)
		}
		seen[service.from.Load().(string)] = true
		if len(seen) < 3 {
			return "third connection"
		}
		return ""
	})
	select {
	case err := <-ended:
		t.Errorf("the stream ended with its connection's age: %v", err)
	default:
	}
}
