package attacks

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// unfinished makes calls without end whose message of 4 MiB stops in the middle, several at a time.
func unfinished(t *testing.T, ctx context.Context, c *harness.Caller, gateway, method string, atOnce int) {
	t.Helper()
	settings, err := c.TLS()
	if err != nil {
		t.Fatal(err)
	}
	settings.NextProtos = []string{"h2"}
	transport := &http.Transport{TLSClientConfig: settings, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	call := func() {
		body, message := io.Pipe()
		stop := context.AfterFunc(ctx, func() { message.CloseWithError(io.ErrClosedPipe) })
		defer stop()
		go func() {
			message.Write(binary.BigEndian.AppendUint32([]byte{0}, 4<<20)) //nolint:errcheck // the call's end ends it
			message.Write(make([]byte, 4<<20-1))                           //nolint:errcheck
		}()
		defer body.Close()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+gateway+method, body)
		if err != nil {
			return
		}
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("Te", "trailers")
		if got, err := client.Do(r); err == nil {
			io.Copy(io.Discard, got.Body) //nolint:errcheck
			got.Body.Close()
		}
	}
	for range atOnce {
		go func() {
			for ctx.Err() == nil {
				call()
			}
		}()
	}
}

// Several users hold as many unfinished messages as they can, on a cluster whose agents beat, and begin again whenever
// one is ended.
func TestUnfinishedMessagesOfManyUsersDelayNoOther(t *testing.T) {
	c := shared.Cluster(t)
	bob, admin := c.As("bob", "windlass:viewers"), c.Admin()
	bounded(t, c, 160<<20, func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range 8 {
			for _, method := range []string{
				machinev1.MachineService_ListMachines_FullMethodName,
				schedulingv1.PodService_ExecPod_FullMethodName,
			} {
				unfinished(t, ctx, c.As(fmt.Sprintf("mallory-%d", i), "windlass:viewers"), c.Gateway(), method, 8)
			}
		}
		took := map[string][]time.Duration{}
		begun := time.Now()
		c.Hold(15*time.Second, "the service of all others", func(ctx context.Context) (string, error) {
			end, _ := ctx.Deadline() // gRPC may notice it before ctx does
			for name, who := range map[string]*harness.Caller{"an administrator": admin, "a user": bob} {
				began := time.Now()
				_, err := machinev1.NewMachineServiceClient(who.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{})
				took[name] = append(took[name], time.Since(began))
				if err != nil && time.Now().Before(end) {
					return fmt.Sprintf("%s after %s: %v", name, time.Since(begun).Round(time.Millisecond), err), nil
				}
			}
			nodes, err := c.Nodes(ctx)
			if err != nil {
				return "", err
			}
			var silent []string
			for _, n := range nodes {
				if !harness.Ready(n) {
					silent = append(silent, n.GetMetadata().GetName())
				}
			}
			if len(silent) > 0 {
				return "not Ready: " + strings.Join(silent, ", "), nil
			}
			return "", nil
		})
		for name, all := range took {
			slices.Sort(all)
			t.Logf("%s: %d calls, median %s, p99 %s, most %s", name, len(all), all[len(all)/2], all[len(all)*99/100],
				all[len(all)-1])
		}
	})
}
