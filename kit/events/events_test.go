package events_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"

	"buf.build/go/protovalidate"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/events"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestEventsOfOneWordCountUpAndEachReasonHasALimit(t *testing.T) {
	v, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	rec := events.New("machine-api", etcdtest.Store(t), v, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rec.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client := serve(t, rec)
	w, err := client.WatchEvents(t.Context(), &eventv1.WatchEventsRequest{Namespace: "openshift-machine-api"})
	if err != nil {
		t.Fatal(err)
	}
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "worker-a", Namespace: "openshift-machine-api", Uid: "u1"}}
	for range 3 {
		rec.Event(m, events.Warning, "DrainRequeued", "blocked by a budget")
	}
	for i := range 80 {
		rec.Eventf(m, events.Normal, "Step", "step %d", i)
	}
	for i := range 80 {
		rec.Eventf(m, events.Warning, "Step", "step %d", i)
	}
	rec.Event(m, events.Warning, "AfterSteps", "no event of another reason or type takes its place")
	rec.Event(&machinev1.Machine{Metadata: &metav1.ObjectMeta{
		Name: "last", Namespace: "openshift-machine-api",
		Uid: "u2",
	}}, events.Normal, "Last", "end")
	got := map[string]int32{}
	for got["Last"] == 0 {
		msg, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range msg.GetEvents() {
			if e.GetObject().GetReason() == "Step" {
				got["Step"]++
				continue
			}
			got[e.GetObject().GetReason()] = e.GetObject().GetCount()
		}
	}
	if fmt.Sprint(got) != "map[AfterSteps:1 DrainRequeued:3 Last:1 Step:50]" {
		t.Errorf("events = %v, want one that counts 3, and 25 different ones of each type with the reason Step", got)
	}
}

func serve(t *testing.T, rec *events.Recorder) eventv1.EventServiceClient {
	t.Helper()
	srv := grpc.NewServer()
	if err := rec.Register(srv); err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	go func() { _ = srv.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///events", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); srv.Stop() })
	return eventv1.NewEventServiceClient(conn)
}
