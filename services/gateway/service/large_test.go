package service

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcgzip "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/large"
)

// planner is a backend that plans: it answers how many nodes it was given. While held is not nil it waits for that.
type planner struct {
	nodev1.UnimplementedNodeServiceServer
	waiting atomic.Int32 // plans that wait
	filler  atomic.Int32 // bytes that an answer has beside
	mu      sync.Mutex
	held    chan struct{}
}

func (p *planner) PlanZones(ctx context.Context, r *nodev1.PlanZonesRequest) (*nodev1.PlanZonesResponse, error) {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		p.waiting.Add(1)
		defer p.waiting.Add(-1)
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &nodev1.PlanZonesResponse{
		Reason: fmt.Sprint(len(r.GetNodes().GetItems())) + strings.Repeat(" ", int(p.filler.Load())),
	}, nil
}

// hold has plans wait until the returned function is called.
func (p *planner) hold() (end func()) {
	held := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = nil
		close(held)
	})
}

// fleet returns a request with nodes of 2 KiB each.
func fleet(n int) *nodev1.PlanZonesRequest {
	r := &nodev1.PlanZonesRequest{Nodes: &nodev1.NodeList{}}
	for i := range n {
		r.Nodes.Items = append(r.Nodes.Items, &nodev1.Node{Metadata: &metav1.ObjectMeta{
			Name: fmt.Sprint("node-", i), Annotations: map[string]string{"filler": strings.Repeat("x", 2<<10)},
		}})
	}
	return r
}

// fleetJSON returns the same as JSON.
func fleetJSON(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"nodes":{"items":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"metadata":{"name":"node-%d","annotations":{"filler":%q}}}`, i, strings.Repeat("x", 2<<10))
	}
	b.WriteString(`]}}`)
	return b.Bytes()
}

func packed(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data) //nolint:errcheck // into memory
	w.Close()     //nolint:errcheck
	return b.Bytes()
}

// expanding returns what becomes n zeros, a whole number of MiB, without compressing that many.
func expanding(n int) []byte { return bytes.Repeat(packed(make([]byte, 1<<20)), n>>20) }

// stating has compressed data say that it becomes n bytes.
func stating(n int, data []byte) []byte {
	binary.LittleEndian.PutUint32(data[len(data)-4:], uint32(n))
	return data
}

// chunked hides the length of a body.
type chunked struct{ io.Reader }

// post sends a plan over HTTP.
func (w *world) post(t *testing.T, client *http.Client, path string, body io.Reader, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), http.MethodPost, "https://"+w.address+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body)
	return got.StatusCode, string(text)
}

const largeNodes = 2_500 // of 2 KiB: 5 MiB, more than an ordinary request may have

func TestLargePlansPass(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		plans := nodev1.NewNodeServiceClient(w.grpc("alice", l))
		for name, options := range map[string][]grpc.CallOption{
			"as it is": nil, "compressed": {grpc.UseCompressor(grpcgzip.Name)},
		} {
			got, err := plans.PlanZones(within(t), fleet(largeNodes), options...)
			if err != nil || got.GetReason() != fmt.Sprint(largeNodes) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			if got, err = plans.PlanZones(within(t), fleet(3), options...); err != nil || got.GetReason() != "3" {
				t.Errorf("a small one, %s: %v, %v", name, got, err)
			}
		}
	})
	w := newWorld(t)
	data := fleetJSON(largeNodes)
	for _, protocols := range [][]string{{"http/1.1"}, {"h2", "http/1.1"}} {
		client := w.http("alice", protocols...)
		for name, send := range map[string]func() (int, string){
			"as it is": func() (int, string) { return w.post(t, client, "/v1/zones:plan", bytes.NewReader(data)) },
			"without length": func() (int, string) {
				return w.post(t, client, "/v1/zones:plan", chunked{bytes.NewReader(data)})
			},
			"compressed": func() (int, string) {
				return w.post(t, client, "/v1/zones:plan", bytes.NewReader(packed(data)), "Content-Encoding", "gzip")
			},
		} {
			if code, text := send(); code != http.StatusOK || !strings.Contains(text, fmt.Sprintf(`"%d"`, largeNodes)) {
				t.Errorf("%v, %s: %d %.300s", protocols, name, code, text)
			}
		}
	}
}

func TestOtherMethodsAndLargerPlansAreRefused(t *testing.T) {
	machine := &machinev1.CreateMachineRequest{Machine: &machinev1.Machine{Metadata: &metav1.ObjectMeta{
		Name: "m", Annotations: map[string]string{"filler": strings.Repeat("x", 5<<20)},
	}}}
	tooLarge := &nodev1.PlanZonesRequest{Nodes: &nodev1.NodeList{Items: []*nodev1.Node{{Metadata: &metav1.ObjectMeta{
		Name: "n", Annotations: map[string]string{"filler": strings.Repeat("x", large.MaxMessage)},
	}}}}}
	eachLane(t, func(t *testing.T, w *world, l lane) {
		conn := w.grpc("alice", l)
		for name, options := range map[string][]grpc.CallOption{
			"as it is": nil, "compressed": {grpc.UseCompressor(grpcgzip.Name)},
		} {
			_, err := machinev1.NewMachineServiceClient(conn).CreateMachine(within(t), machine, options...)
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("5 MiB for a method that does not plan, %s: %v", name, err)
			}
		}
		_, err := nodev1.NewNodeServiceClient(conn).PlanZones(within(t), tooLarge)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("more than 64 MiB for one that does: %v", err)
		}
		if code := w.planPacked(t, l, stating(large.MaxMessage+1, packed(nil))); code != codes.ResourceExhausted {
			t.Errorf("more than 64 MiB for one that does, compressed: %v", code)
		}
	})
	w := newWorld(t)
	client := w.http("alice", "http/1.1")
	body := fmt.Sprintf(`{"metadata":{"name":"m","annotations":{"f":%q}}}`, strings.Repeat("x", 5<<20))
	if code, text := w.post(t, client, "/v1/namespaces/default/machines", strings.NewReader(body)); code != 413 {
		t.Errorf("5 MiB for a method that does not plan: %d %.300s", code, text)
	}
	for name, send := range map[string]func() (int, string){
		"without length": func() (int, string) {
			return w.post(t, client, "/v1/zones:plan", chunked{io.LimitReader(spaces{}, 65<<20)})
		},
		"compressed": func() (int, string) {
			return w.post(t, client, "/v1/zones:plan", bytes.NewReader(expanding(large.MaxMessage+2<<20)), "Content-Encoding",
				"gzip")
		},
		"compressed in YAML": func() (int, string) {
			return w.post(t, client, "/v1/zones:plan", bytes.NewReader(packed(fleetJSON(5000))), "Content-Encoding", "gzip",
				"Content-Type", "application/yaml")
		},
	} {
		if code, text := send(); code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %d %.300s", name, code, text)
		}
	}
	for media, one := range map[string]string{"application/json": "1,", "application/yaml": "- 1\n"} {
		values := func(n int) string {
			if media == "application/json" {
				return `{"metadata":{"name":"m"},"spec":{"providerSpec":{"value":{"l":[` + strings.Repeat(one, n) + `1]}}}}`
			}
			return "metadata:\n  name: m\nspec:\n  providerSpec:\n    value:\n      l:\n" + strings.Repeat("      "+one, n)
		}
		if code, text := w.post(t, client, "/v1/namespaces/default/machines", strings.NewReader(values(1_000_000)),
			"Content-Type", media); code != http.StatusRequestEntityTooLarge && code != http.StatusBadRequest {
			t.Errorf("%s with a million values: %d %.300s", media, code, text)
		}
		for range 33 { // of YAML there would be no room for so many if one kept what it had
			if code, text := w.post(t, client, "/v1/namespaces/default/machines", strings.NewReader(values(25_000)),
				"Content-Type", media); code != http.StatusCreated && code != http.StatusOK {
				t.Fatalf("%s with 25,000 values: %d %.300s", media, code, text)
			}
		}
	}
	// Few bytes that become many objects.
	many := `{"nodes":{"items":[{}` + strings.Repeat(",{}", 20<<20/3) + `]}}`
	if code, text := w.post(t, client, "/v1/zones:plan", strings.NewReader(many)); code != http.StatusTooManyRequests ||
		!strings.Contains(text, "MiB of memory") {
		t.Errorf("millions of empty nodes: %d %.300s", code, text)
	}
}

// spaces is white space without end.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// stalled begins a large request over a lane that does not come to its end; end cancels it.
func (w *world) stalled(t *testing.T, client *http.Client, path, media string, begin []byte,
	length int64,
) (end func()) {
	t.Helper()
	body, message := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+w.address+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = length
	r.Header.Set("Content-Type", media)
	r.Header.Set("Te", "trailers")
	go func() {
		if got, err := client.Do(r); err == nil {
			io.Copy(io.Discard, got.Body) //nolint:errcheck // its end is all that counts
			got.Body.Close()
		}
	}()
	go func() {
		message.Write(begin)                            //nolint:errcheck // the test's end ends it
		message.Write(bytes.Repeat([]byte{' '}, 5<<20)) //nolint:errcheck
	}()
	t.Cleanup(func() { cancel(); message.CloseWithError(io.ErrClosedPipe) })
	return cancel
}

// transport returns a client over HTTP/2, of gRPC's own lane unless it offers HTTP/1.1 too.
func (w *world) http2(user string, both bool) *http.Client {
	protocols := []string{"h2"}
	if both {
		protocols = append(protocols, "http/1.1")
	}
	transport := &http.Transport{TLSClientConfig: w.user(user, protocols...), Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetHTTP1(both)
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// Requests that say that they are large and do not come to their end hold the places of all until others wait for
// these; then the slow ones end. Those that are cancelled give theirs back at once.
func TestStalledLargeRequestsEndForOthers(t *testing.T) {
	header := binary.BigEndian.AppendUint32([]byte{0}, 60<<20)
	method := nodev1.NodeService_PlanZones_FullMethodName
	for _, tc := range []struct {
		name  string
		stall func(t *testing.T, w *world, user string) (end func())
	}{
		{"gRPC's own transport", func(t *testing.T, w *world, user string) func() {
			return w.stalled(t, w.http2(user, false), method, "application/grpc", header, -1)
		}},
		{"gRPC over net/http", func(t *testing.T, w *world, user string) func() {
			return w.stalled(t, w.http2(user, true), method, "application/grpc", header, -1)
		}},
		{"a length that is a lie", func(t *testing.T, w *world, user string) func() {
			return w.stalled(t, w.http(user, "http/1.1"), "/v1/zones:plan", "application/json", nil, 60<<20)
		}},
		{"no length", func(t *testing.T, w *world, user string) func() {
			return w.stalled(t, w.http(user, "http/1.1"), "/v1/zones:plan", "application/json", nil, -1)
		}},
	} {
		for _, cancelled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cancelled %v", tc.name, cancelled), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				var ends []func()
				for i := range 4 {
					ends = append(ends, tc.stall(t, w, fmt.Sprint("stalled-", i)))
				}
				bob := nodev1.NewNodeServiceClient(w.grpc("bob", lanes[0]))
				plan := func() error {
					_, err := bob.PlanZones(within(t), fleet(3000))
					return err
				}
				if !cancelled {
					w.until(func() bool { return plan() == nil })
					return
				}
				for _, end := range ends {
					end()
				}
				// All of their places are free soon, so four others plan at the same time.
				w.until(func() bool { return w.together(t, "a", "b", "c", "d") == 4 })
			})
		}
	}
}

// A client that does not read its answer holds no place of callers that wait to send a request.
func TestAnswersThatAreNotReadHoldNoPlaces(t *testing.T) {
	overGRPC := func(l lane) func(t *testing.T, w *world, user string) {
		return func(t *testing.T, w *world, user string) {
			stream, err := w.grpc(user, l).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true},
				nodev1.NodeService_PlanZones_FullMethodName)
			if err == nil {
				err = stream.SendMsg(fleet(3000))
			}
			if err == nil {
				err = stream.CloseSend()
			}
			if err == nil {
				_, err = stream.Header() // it is answered
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, leave := range map[string]func(t *testing.T, w *world, user string){
		"gRPC's own transport": overGRPC(lanes[0]), "gRPC over net/http": overGRPC(lanes[1]),
		"REST": func(t *testing.T, w *world, user string) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.address+"/v1/zones:plan",
				bytes.NewReader(fleetJSON(3000)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			got, err := w.http(user, "h2", "http/1.1").Do(r)
			if err != nil || got.StatusCode != http.StatusOK {
				t.Fatal(got, err)
			}
			t.Cleanup(func() { got.Body.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.planner.filler.Store(8 << 20) // more than a client's connection takes that is not read
			for i := range 4 {
				leave(t, w, fmt.Sprint("deaf-", i))
			}
			w.planner.filler.Store(0)
			if n := w.together(t, "a", "b", "c", "d"); n != 4 {
				t.Errorf("%d of 4 users may plan", n)
			}
		})
	}
}

// together has users plan at the same time and returns how many may: the others are refused while these are not
// answered.
func (w *world) together(t *testing.T, users ...string) int {
	t.Helper()
	end := w.planner.hold()
	defer end()
	results := make(chan error, len(users))
	for i, user := range users {
		plans := nodev1.NewNodeServiceClient(w.grpc(user, lanes[i%2]))
		go func() {
			_, err := plans.PlanZones(within(t), fleet(3000))
			results <- err
		}()
	}
	refused := 0
	w.until(func() bool {
		for len(results) > 0 {
			if err := <-results; status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a plan ended with %v while none is answered", err)
			}
			refused++
		}
		return int(w.planner.waiting.Load())+refused == len(users)
	})
	end()
	for range len(users) - refused {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	return len(users) - refused
}

func TestFourLargeRequestsAtATimeAndOneOfAUser(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		users []string
		want  int
	}{
		{[]string{"a", "b", "c", "d", "e", "f"}, 4},
		{[]string{"a", "a", "a"}, 1},
		{[]string{"a", "b", "a", "b", "c"}, 3},
	} {
		if got := w.together(t, tc.users...); got != tc.want {
			t.Errorf("of large requests of %v at the same time %d pass, want %d", tc.users, got, tc.want)
		}
	}
}

// planPacked sends a gRPC message that is compressed and returns the code of the answer.
func (w *world) planPacked(t *testing.T, l lane, data []byte) codes.Code {
	t.Helper()
	body := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(data))), data...)
	r, err := http.NewRequestWithContext(within(t), http.MethodPost,
		"https://"+w.address+nodev1.NodeService_PlanZones_FullMethodName, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Grpc-Encoding", "gzip")
	r.Header.Set("Te", "trailers")
	got, err := w.http2("alice", l.both).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	io.Copy(io.Discard, got.Body) //nolint:errcheck // the trailer says more
	code, err := strconv.Atoi(got.Trailer.Get("Grpc-Status") + got.Header.Get("Grpc-Status"))
	if err != nil {
		t.Fatalf("%v %v", got.Header, got.Trailer)
	}
	return codes.Code(code)
}

func TestACompressedMessageThatLiesAboutItsSize(t *testing.T) {
	eachLane(t, func(t *testing.T, w *world, l lane) {
		var before, after runtime.MemStats
		lie := stating(10, expanding(256<<20))
		runtime.ReadMemStats(&before)
		if code := w.planPacked(t, l, lie); code != codes.InvalidArgument {
			t.Errorf("status %s", code)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
			t.Errorf("%d MiB were allocated", took>>20)
		}
	})
}

// TestFiguresOfLargePlans measures plans of the largest size through the gateway.
func TestFiguresOfLargePlans(t *testing.T) {
	if os.Getenv("WINDLASS_FIGURES") == "" {
		t.Skip("WINDLASS_FIGURES is not set")
	}
	w := newWorld(t)
	measure := func(name string, call func() error) {
		runtime.GC()
		stop, peak := make(chan struct{}), make(chan uint64, 1)
		go func() {
			var most uint64
			for {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
				select {
				case <-stop:
					peak <- most
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}()
		begun := time.Now()
		err := call()
		took := time.Since(begun)
		close(stop)
		t.Logf("%s: %v, peak of the heap (client, gateway and backend) %d MiB, %v", name, took.Round(time.Millisecond),
			<-peak>>20, err)
	}
	request, text := fleet(31<<10), fleetJSON(31<<10)
	for _, l := range lanes {
		plans := nodev1.NewNodeServiceClient(w.grpc("alice", l))
		measure("gRPC, "+l.name, func() error { _, err := plans.PlanZones(within(t), request); return err })
	}
	client := w.http("alice", "http/1.1")
	measure(fmt.Sprintf("REST, %d MiB", len(text)>>20), func() error {
		if code, got := w.post(t, client, "/v1/zones:plan", bytes.NewReader(text)); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, got)
		}
		return nil
	})
	if large.MaxMessage < len(text) {
		t.Error("the text is too long")
	}
}
