package service

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/servetest"
)

func eachLane(t *testing.T, test func(t *testing.T, w *world, l lane)) {
	w := newWorld(t)
	for _, l := range lanes {
		t.Run(l.name, func(t *testing.T) {
			here := *w
			here.t = t
			test(t, &here, l)
		})
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	t.Cleanup(cancel)
	return ctx
}

func TestCallsPassWithTheCallersIdentity(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		c := machinev1.NewMachineServiceClient(w.grpc("alice", l))
		ctx := metadata.AppendToOutgoingContext(within(t),
			"windlass-user", "root", "windlass-uid", "forged", "windlass-group", "system:masters", "windlass-request-id",
			"forged",
			"grpc-metadata-windlass-user", "root", "cookie", "a=b", "x-forwarded-for", "10.0.0.1",
			"traceparent", "00-1", "x-request-id", "from-the-client")
		var header metadata.MD
		got, err := c.GetMachine(ctx, &machinev1.GetMachineRequest{Namespace: "ns", Name: "a"}, grpc.Header(&header),
			grpc.UseCompressor(gzip.Name))
		if err != nil {
			t.Fatal(err)
		}
		seen := got.GetMetadata().GetAnnotations()
		for key, want := range map[string]string{
			"windlass-user": "alice", "windlass-uid": "", "windlass-group": "staff,system:authenticated",
			"windlass-request-id": "from-the-client",
			"traceparent":         "00-1", "cookie": "", "x-forwarded-for": "", "grpc-metadata-windlass-user": "",
			"authorization": "",
		} {
			if seen[key] != want {
				t.Errorf("the backend saw %s = %q, want %q", key, seen[key], want)
			}
		}
	})
}

func TestATokenIsTakenAndDoesNotLeaveTheGateway(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		c := machinev1.NewMachineServiceClient(w.grpc("", l))
		ctx := metadata.AppendToOutgoingContext(within(t), "authorization", "Bearer "+goodToken)
		got, err := c.GetMachine(ctx, &machinev1.GetMachineRequest{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		seen := got.GetMetadata().GetAnnotations()
		if seen["windlass-user"] != "carol" || seen["windlass-group"] != "viewers,system:authenticated" ||
			seen["authorization"] != "" {
			t.Errorf("the backend saw %v", seen)
		}
	})
}

func TestWhoIsNotKnownIsRefusedAndTheRefusalIsWrittenDown(t *testing.T) {
	for _, l := range lanes { // each with a gateway of its own, for refusals that had their like are counted
		w := newWorld(t)
		before := len(w.refusals())
		c := machinev1.NewMachineServiceClient(w.grpc("", l))
		_, err := c.GetMachine(within(t), &machinev1.GetMachineRequest{Name: "a"})
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("without credentials: %v", err)
		}
		if len(status.Convert(err).Details()) == 0 {
			t.Error("the refusal has no details")
		}
		_, err = c.GetMachine(metadata.AppendToOutgoingContext(within(t), "authorization", "Bearer wrong"),
			&machinev1.GetMachineRequest{Name: "a"})
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("with a wrong token: %v", err)
		}
		w.until(func() bool { return len(w.refusals()) == before+2 })
		records := w.refusals()[before:]
		for _, r := range records {
			if r.Decision != audit.Deny || r.Method != "/windlass.machine.v1.MachineService/GetMachine" || r.Verb != "get" ||
				r.Source == "" || r.RequestID == "" {
				t.Errorf("record %+v", r)
			}
		}
	}
}

func TestJoinNeedsNoCredentialsAndGetsNoIdentity(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		c := machinev1.NewJoinServiceClient(w.grpc("", l))
		ctx := metadata.AppendToOutgoingContext(within(t), "windlass-user", "root")
		got, err := c.Join(ctx, &machinev1.JoinRequest{Token: "t"})
		if err != nil || got.GetNodeName() != "t" || got.GetMachineName() != "" {
			t.Errorf("Join = %v, %v", got, err)
		}
		if _, err := c.Renew(ctx, &machinev1.RenewRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("Renew without credentials: %v", err)
		}
	})
}

func TestStatusesKeepTheirDetails(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		c := machinev1.NewMachineServiceClient(w.grpc("alice", l))
		for range 200 {
			_, err := c.GetMachine(within(t), &machinev1.GetMachineRequest{Name: "missing"})
			st := status.Convert(err)
			info, ok := any(nil), false
			for _, d := range st.Details() {
				info, ok = d.(*errdetails.ErrorInfo)
			}
			if st.Code() != codes.NotFound || !ok || info.(*errdetails.ErrorInfo).GetMetadata()["name"] != "missing" {
				t.Fatalf("status %v with details %v", st, st.Details())
			}
		}
	})
}

func TestABackendEndsAStreamWhoseClientKeepsItsSideOpen(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		stream, err := nodev1.NewNodeAgentServiceClient(w.grpc("alice", l)).Heartbeat(within(t))
		if err != nil {
			t.Fatal(err)
		}
		header, err := stream.Header()
		if err != nil || len(header.Get("came")) != 1 {
			t.Fatalf("header before the first message: %v, %v", header, err)
		}
		if err := stream.Send(&nodev1.HeartbeatRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if status.Code(err) != codes.PermissionDenied || len(stream.Trailer().Get("after")) != 1 {
			t.Errorf("end of the stream: %v, trailer %v", err, stream.Trailer())
		}
	})
}

func TestACancelledCallIsCancelledInTheBackend(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		c := machinev1.NewMachineServiceClient(w.grpc("alice", l))
		ctx, cancel := context.WithCancel(within(t))
		ended := make(chan error, 1)
		go func() {
			_, err := c.GetMachine(ctx, &machinev1.GetMachineRequest{Name: "slow"})
			ended <- err
		}()
		receive(t, w.machines.entered)
		cancel()
		receive(t, w.machines.cancelled)
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("the call ended with %v", err)
		}
	})
}

func receive(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(waitLimit):
		t.Fatal("nothing came")
	}
}

func TestADeadlineReachesTheBackend(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		c := machinev1.NewMachineServiceClient(w.grpc("alice", l))
		ctx, cancel := context.WithTimeout(within(t), time.Second) // a busy host takes a part of it to get there
		defer cancel()
		_, err := c.GetMachine(ctx, &machinev1.GetMachineRequest{Name: "slow"})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("the call ended with %v", err)
		}
		receive(t, w.machines.entered)
		receive(t, w.machines.cancelled)
	})
}

// untilQuiet waits until the windows and buffers on the way are full and nothing moves.
func (w *world) untilQuiet() {
	last, quiet := w.machines.flooded(), 0
	w.until(func() bool {
		now := w.machines.flooded()
		if quiet++; now != last {
			last, quiet = now, 0
		}
		return quiet > 100
	})
}

func TestAStreamThatNobodyReadsIsNotReadFromTheBackend(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		before := w.machines.flooded()
		ctx, cancel := context.WithCancel(within(t))
		stream, err := machinev1.NewMachineServiceClient(w.grpc("alice", l)).WatchMachines(ctx,
			&machinev1.WatchMachinesRequest{LabelSelector: "flood"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		w.untilQuiet()
		if sent := (w.machines.flooded() - before) * (64 << 10); sent > 16<<20 {
			t.Errorf("the backend sent %d bytes without a reader", sent)
		}
		cancel()
		receive(t, w.machines.cancelled)
	})
}

func TestMethodsThatAreNotExposedAreUnimplemented(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		conn := w.grpc("alice", l)
		for _, method := range []string{"/windlass.provider.v1.ProviderService/CreateInstance", "/no.such.Service/Method"} {
			err := conn.Invoke(within(t), method, &machinev1.GetMachineRequest{}, &machinev1.Machine{})
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: %v", method, err)
			}
		}
	})
}

func TestMessagesThatAreTooLargeAreRefusedAsSuch(t *testing.T) {
	w := newWorld(t)
	c := machinev1.NewMachineServiceClient(w.grpc("alice", lanes[0]))
	_, err := c.GetMachine(within(t), &machinev1.GetMachineRequest{Name: strings.Repeat("x", 17<<20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("17 MiB: %.200v", err)
	}
}

func TestReflectionShowsWhatCanBeCalledAndNothingElse(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		stream, err := reflectionv1.NewServerReflectionClient(w.grpc("alice", l)).ServerReflectionInfo(within(t))
		if err != nil {
			t.Fatal(err)
		}
		ask := func(r *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
			if err := stream.Send(r); err != nil {
				t.Fatal(err)
			}
			got, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		list := ask(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
		})
		var names []string
		for _, s := range list.GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		for name, want := range map[string]bool{
			"windlass.machine.v1.MachineService": true, "windlass.event.v1.EventService": true, "grpc.health.v1.Health": true,
			"windlass.provider.v1.ProviderService": false, "etcdserverpb.KV": false,
		} {
			if slices.Contains(names, name) != want {
				t.Errorf("%s listed: %v", name, !want)
			}
		}
		symbol := func(name string) *reflectionv1.ServerReflectionResponse {
			return ask(&reflectionv1.ServerReflectionRequest{
				MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
			})
		}
		if got := symbol("windlass.machine.v1.Machine"); len(got.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("Machine is not described: %v", got)
		}
		if got := symbol("etcdserverpb.KV"); got.GetErrorResponse() == nil {
			t.Error("etcd's own service is described")
		}
	})
}

func TestAForeignCertificateFailsTheHandshakeAndIsWrittenDown(t *testing.T) {
	w := newWorld(t)
	foreign := *w
	foreign.ground = servetest.New(t)
	client := foreign.http("mallory", "http/1.1")
	client.Transport.(*http.Transport).TLSClientConfig.RootCAs = w.ground.Authority.Pool()
	if _, err := client.Get("https://" + w.address + "/healthz"); err == nil {
		t.Fatal("a foreign certificate was let in")
	}
	w.until(func() bool {
		return slices.ContainsFunc(w.refusals(), func(r audit.Record) bool {
			return strings.Contains(r.Reason, "certificate")
		})
	})
}

func TestARestartOfABackendHoldsCallsBack(t *testing.T) {
	w := newWorld(t)
	c := machinev1.NewMachineServiceClient(w.grpc("alice", lanes[0]))
	get := func() error {
		_, err := c.GetMachine(within(t), &machinev1.GetMachineRequest{Name: "a"})
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	w.stops["machine-api"]()
	w.until(func() bool { return w.do("GET", "/readyz", nil, "", nil).StatusCode == http.StatusServiceUnavailable })
	ended, begun := make(chan error, 8), make(chan struct{}, 8)
	for range cap(ended) {
		go func() {
			begun <- struct{}{}
			ended <- get()
		}()
	}
	for range cap(begun) {
		receive(t, begun)
	}
	w.start("machine-api", w.peers["machine-api"])
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Errorf("a call during the restart: %v", err)
		}
	}
}

func TestABackendThatStaysAwayFailsCallsSoonAndWithoutItsAddress(t *testing.T) {
	w := newWorld(t)
	c := machinev1.NewMachineServiceClient(w.grpc("alice", lanes[0]))
	w.stops["machine-api"]()
	w.until(func() bool { return w.do("GET", "/readyz", nil, "", nil).StatusCode == http.StatusServiceUnavailable })
	begun := time.Now()
	_, err := c.GetMachine(within(t), &machinev1.GetMachineRequest{Name: "a"})
	if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), w.peers["machine-api"]) {
		t.Errorf("first call: %v", err)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("the first call took %v", took)
	}
	begun = time.Now()
	_, err = c.GetMachine(within(t), &machinev1.GetMachineRequest{Name: "a"})
	if took := time.Since(begun); status.Code(err) != codes.Unavailable || took > time.Second {
		t.Errorf("later call: %v after %v", err, took)
	}
}

func TestEventsOfAllProgramsAreMergedAndOneThatIsAwayIsNamed(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		c := eventv1.NewEventServiceClient(w.grpc("alice", l))
		var header metadata.MD
		list, err := c.ListEvents(within(t), &eventv1.ListEventsRequest{}, grpc.Header(&header))
		if err != nil || len(list.GetItems()) != 3 || list.GetMetadata().GetResourceVersion() != "5" ||
			len(header.Get("windlass-warning")) != 0 {
			t.Errorf("list %v, header %v, %v", list, header, err)
		}
		first, err := c.ListEvents(within(t), &eventv1.ListEventsRequest{Limit: 2})
		if err != nil || len(first.GetItems()) != 2 || first.GetMetadata().GetContinue() == "" {
			t.Fatalf("first page %v, %v", first, err)
		}
		second,
			err := c.ListEvents(within(t), &eventv1.ListEventsRequest{Limit: 2, Continue: first.GetMetadata().GetContinue()})
		if err != nil || len(second.GetItems()) != 1 || second.GetMetadata().GetContinue() != "" {
			t.Errorf("second page %v, %v", second, err)
		}
		ctx, cancel := context.WithCancel(within(t))
		defer cancel()
		stream, err := c.WatchEvents(ctx, &eventv1.WatchEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			seen += len(m.GetEvents())
			if m.GetBookmark() {
				if m.GetResourceVersion() != "5" {
					t.Errorf("bookmark at %q", m.GetResourceVersion())
				}
				break
			}
		}
		if seen != 3 {
			t.Errorf("%d events before the bookmark, want 3", seen)
		}
	})
	w := newWorld(t)
	w.stops["hook-broker"]()
	w.until(func() bool { return w.do("GET", "/readyz", nil, "", nil).StatusCode == http.StatusServiceUnavailable })
	got := w.do("GET", "/v1/events", nil, "", nil)
	if got.StatusCode != http.StatusOK || !strings.Contains(got.Header.Get("Warning"), "hook-broker") ||
		strings.Contains(got.body, "of-hook-broker") {
		t.Errorf("%d %v %s", got.StatusCode, got.Header, got.body)
	}
}
