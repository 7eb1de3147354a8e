package service

import (
	"bufio"
	"net/http"
	"runtime"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/dial"
)

// bigAnswers are more than one user may have on their way.
const bigAnswers = 8

// big asks for a large answer and takes it.
func (w *world) big(t *testing.T, l lane) error {
	_, err := machinev1.NewMachineServiceClient(w.grpc("alice", l)).GetMachine(within(t), &machinev1.GetMachineRequest{
		Name: "big",
	},
		grpc.MaxCallRecvMsgSize(dial.MaxMessage))
	return err
}

func TestAnswersThatNobodyReadsCountUntilTheyAreGone(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		conn := w.grpc("alice", l)
		// The answer that is read may take the room of one that is not, so more are asked for until there is none.
		unread := func() {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true},
				machinev1.MachineService_GetMachine_FullMethodName)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.SendMsg(&machinev1.GetMachineRequest{Name: "big"}); err != nil {
				t.Fatal(err)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
		w.until(func() bool {
			unread()
			return status.Code(w.big(t, lanes[0])) == codes.ResourceExhausted
		})
		conn.Close()
		w.until(func() bool {
			runtime.GC() // what a dead connection left is counted until it is collected
			return w.big(t, lanes[0]) == nil
		})
	})
}

func TestAnswersOverRESTThatNobodyReadsCountUntilTheyAreGone(t *testing.T) {
	w := newWorld(t)
	client := w.http("alice", "h2", "http/1.1")
	get := func() *http.Response {
		t.Helper()
		got, err := client.Get("https://" + w.address + "/v1/namespaces/ns/machines/big")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { got.Body.Close() })
		return got
	}
	var unread []*http.Response
	for len(unread) < bigAnswers {
		got := get()
		if got.StatusCode == http.StatusTooManyRequests {
			break
		}
		unread = append(unread, got)
	}
	if len(unread) == bigAnswers {
		t.Fatalf("%d answers of 8 MiB were on their way to one user", len(unread))
	}
	for _, got := range unread {
		got.Body.Close()
	}
	w.until(func() bool { return get().StatusCode == http.StatusOK })
}

// Watches that have nothing more to say take no room: what they sent was read.
func TestMessagesOfAWatchCountUntilTheyAreRead(t *testing.T) {
	w := newWorld(t)
	client := w.http("bob", "h2", "http/1.1")
	for range bigAnswers {
		got, err := client.Get("https://" + w.address + "/v1/machines:watch?labelSelector=big")
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		lines := bufio.NewReader(got.Body)
		for range 2 { // one for each event
			if line, err := lines.ReadBytes('\n'); err != nil || got.StatusCode != http.StatusOK {
				t.Fatalf("%d: %.200s %v", got.StatusCode, line, err)
			}
		}
		receive(t, w.machines.entered)
	}
	c := machinev1.NewMachineServiceClient(w.grpc("alice", lanes[0]))
	for range bigAnswers {
		stream, err := c.WatchMachines(within(t), &machinev1.WatchMachinesRequest{LabelSelector: "big"},
			grpc.MaxCallRecvMsgSize(dial.MaxMessage))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		receive(t, w.machines.entered)
	}
}
