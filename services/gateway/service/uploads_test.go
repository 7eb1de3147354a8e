package service

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net/http"
	"path"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// unfinished begins a call with a message of 4 MiB that does not come to its end.
func (w *world) unfinished(t *testing.T, settings *tls.Config, method string) {
	t.Helper()
	body, message := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.address+method, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	transport := &http.Transport{TLSClientConfig: settings.Clone(), Protocols: new(http.Protocols)} // it writes to them
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetHTTP1(len(settings.NextProtos) > 1)
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	go func() {
		if got, err := client.Do(r); err == nil {
			io.Copy(io.Discard, got.Body) //nolint:errcheck // a stream may be answered before it is asked something
			got.Body.Close()
		}
	}()
	go func() {
		message.Write(binary.BigEndian.AppendUint32([]byte{0}, 4<<20)) //nolint:errcheck // the test's end ends it
		message.Write(make([]byte, 1<<20))                             //nolint:errcheck
	}()
	t.Cleanup(func() { message.CloseWithError(io.ErrClosedPipe) })
}

// A message that is not complete is in memory without having been counted, so there are few; other callers do not
// notice.
func TestUnfinishedMessagesAreFew(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		protocols := []string{"h2"}
		if l.both {
			protocols = append(protocols, "http/1.1")
		}
		for method, call := range map[string]func(*grpc.ClientConn) error{
			machinev1.MachineService_GetMachine_FullMethodName: func(conn *grpc.ClientConn) error {
				_, err := machinev1.NewMachineServiceClient(conn).GetMachine(within(t), &machinev1.GetMachineRequest{Name: "m"})
				return err
			},
			metav1.AccessService_WhoAmI_FullMethodName: func(conn *grpc.ClientConn) error { // the gateway's own
				_, err := metav1.NewAccessServiceClient(conn).WhoAmI(within(t), &metav1.WhoAmIRequest{})
				return err
			},
			nodev1.NodeAgentService_Heartbeat_FullMethodName: beat(t), // the right to it is known by its first message
		} {
			hostile := "uploads-" + path.Base(method)
			settings := w.user(hostile, protocols...)
			for range 8 {
				w.unfinished(t, settings, method)
			}
			same := w.grpc(hostile, l)
			w.until(func() bool { return status.Code(call(same)) == codes.ResourceExhausted })
			if err := call(w.grpc("bob", l)); err != nil {
				t.Errorf("another caller's %s: %v", method, err)
			}
		}
	})
}

// beat returns a call that sends a heartbeat and gets its answer.
func beat(t *testing.T) func(*grpc.ClientConn) error {
	return func(conn *grpc.ClientConn) error {
		stream, err := nodev1.NewNodeAgentServiceClient(conn).Heartbeat(within(t))
		if err != nil {
			return err
		}
		_ = stream.Send(&nodev1.HeartbeatRequest{}) // the answer says more
		_, err = stream.Recv()
		return err
	}
}

// Messages after the first are not counted before they are complete, so one caller has few streams that carry any.
func TestStreamsUpwardsAreFew(t *testing.T) {
	w := newWorld(t)
	conn, ctx := w.grpc("many", lanes[0]), within(t)
	var err error
	for n := 0; err == nil; n++ {
		var stream grpc.BidiStreamingClient[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]
		if stream, err = nodev1.NewNodeAgentServiceClient(conn).Heartbeat(ctx); err == nil {
			var header metadata.MD
			if header, err = stream.Header(); err == nil && header == nil { // a refusal has none
				_, err = stream.Recv()
			} // else it is open, and its first message does not come
		}
		if n > 100 {
			t.Fatal("a user has 100 streams with messages to come")
		}
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more stream: %v", err)
	}
	if err := beat(t)(w.grpc("bob", lanes[0])); err != nil {
		t.Errorf("another caller's stream: %v", err)
	}
}

// Nothing of a message is read before it is known who sends it.
func TestMessagesWithoutCredentialsAreNotRead(t *testing.T) {
	w := newWorld(t)
	conn := w.grpc("", lanes[0])
	stream, err := conn.NewStream(within(t), &grpc.StreamDesc{ClientStreams: true},
		metav1.AccessService_WhoAmI_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	// No message is sent: the refusal does not wait for one.
	if err := stream.RecvMsg(&metav1.WhoAmIResponse{}); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
}
