package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/e2e/harness"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// lookEvery is the precision of the figures.
	lookEvery = 50 * time.Millisecond
	// stayed is how long a fault lasts after the others have taken over: longer than the silence after which a node is
	// Unknown.
	stayed = 12 * time.Second
	// probeLimit is more than the time after which a host that is cut off may still try to serve a call.
	probeLimit = 15 * time.Second
)

// netFleet is a fleet whose hosts are in network namespaces, with a worker.
type netFleet struct {
	*fleet
	net    *network
	worker *host
	nodes  map[string]string // names of hosts by names of nodes
}

// newNetFleet begins a cluster of three hosts and a worker.
func newNetFleet(t *testing.T) *netFleet {
	t.Helper()
	bin, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	f := &netFleet{fleet: &fleet{t: t}, net: newNetwork(t), nodes: map[string]string{}}
	for i, name := range []string{"h1", "h2", "h3", "w1"} {
		address := fmt.Sprintf("%s.%d", subnet, i+1)
		h := &host{
			t: t, bin: bin, name: name, address: address, dir: filepath.Join(t.TempDir(), "windlass"),
			space: f.net.add(name, address),
		}
		f.hosts = append(f.hosts, h)
		t.Cleanup(h.stop)
	}
	f.hosts, f.worker = f.hosts[:3], f.hosts[3]
	f.begin()
	f.worker.join(f.hosts[2])
	f.worker.start()
	set := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(set, []byte(workers), 0o600); err != nil {
		t.Fatal(err)
	}
	f.hosts[1].mustAsk("apply", "-f", set)
	f.settled()
	for _, h := range append(slices.Clone(f.hosts), f.worker) {
		f.nodes[h.machine(f.hosts[0])] = h.name
	}
	return f
}

// settled waits until nothing of a fault is left.
func (f *netFleet) settled() {
	f.t.Helper()
	f.await("three voters", func() string { return f.hosts[0].voters(3) })
	for _, h := range f.hosts {
		f.await("all operators at "+h.name, func() string { return operators(h) })
	}
	f.await("four nodes that are ready", func() string {
		ready, err := f.hosts[0].ready()
		for _, is := range ready {
			if is != "True" {
				return fmt.Sprint(ready)
			}
		}
		if err != nil || len(ready) != 4 {
			return fmt.Sprint(ready, err)
		}
		return ""
	})
}

// ready returns the conditions Ready of the nodes by name.
func (h *host) ready() (map[string]string, error) {
	conn := h.conn()
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := nodev1.NewNodeServiceClient(conn).ListNodes(ctx, &nodev1.ListNodesRequest{})
	out := map[string]string{}
	for _, n := range list.GetItems() {
		out[n.GetMetadata().GetName()] = ""
		for _, c := range n.GetStatus().GetConditions() {
			if c.GetType() == "Ready" {
				out[n.GetMetadata().GetName()] = c.GetStatus()
			}
		}
	}
	return out, err
}

// others returns the control-plane hosts but for some.
func (f *netFleet) others(not ...*host) []*host {
	return slices.DeleteFunc(slices.Clone(f.hosts), func(h *host) bool { return slices.Contains(not, h) })
}

// etcd returns a client of the member of etcd on this host, and of no other.
func (h *host) etcd() *clientv3.Client {
	h.t.Helper()
	dir := filepath.Join(h.dir, "services", topology.EtcdGuardian, "tls")
	cfg, err := identity.Files{
		Cert: filepath.Join(dir, "etcd-root.crt"), Key: filepath.Join(dir, "etcd-root.key"),
		CA: filepath.Join(dir, "etcd-ca.crt"),
	}.ClientTLS("")
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{h.member()}, TLS: cfg, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(h.dial)},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// member is the URL of the member of etcd on this host.
func (h *host) member() string { return "https://" + h.address + ":2379" }

// leaders returns the addresses of the hosts that lead, by service, and under "etcd" that of etcd's leader if it is
// this one.
func (h *host) leaders() (map[string]string, error) {
	c := h.etcd()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	got, err := c.Get(ctx, topology.ElectionsPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, kv := range got.Kvs {
		var leader struct {
			Address string `json:"address"`
		}
		if err := json.Unmarshal(kv.Value, &leader); err != nil {
			return nil, err
		}
		ip, _, err := net.SplitHostPort(leader.Address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kv.Key, err)
		}
		out[strings.TrimPrefix(string(kv.Key), topology.ElectionsPrefix)] = ip
	}
	return out, nil
}

// leadsEtcd reports whether the member of this host leads, and its ID.
func (h *host) leadsEtcd() (leads bool, id uint64, err error) {
	c := h.etcd()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := c.Status(ctx, h.member())
	if err != nil {
		return false, 0, err
	}
	return s.Leader == s.Header.MemberId, s.Header.MemberId, nil
}

// etcdLeader returns the host among some whose member leads, nil if there is none.
func etcdLeader(among ...*host) *host {
	for _, h := range among {
		if leads, _, err := h.leadsEtcd(); leads && err == nil {
			return h
		}
	}
	return nil
}

// leadEtcd makes the member of a host etcd's leader.
func (f *netFleet) leadEtcd(to *host) {
	f.t.Helper()
	f.await("etcd's leader on "+to.name, func() string {
		leads, id, err := to.leadsEtcd()
		if leads || err != nil {
			return failure(err)
		}
		from := etcdLeader(f.hosts...)
		if from == nil {
			return "there is no leader"
		}
		c := from.etcd()
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if _, err := c.MoveLeader(ctx, id); err != nil {
			return err.Error()
		}
		return "just moved from " + from.name
	})
}

func failure(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// leading returns the host that leads the most services.
func (f *netFleet) leading() *host {
	f.t.Helper()
	var leaders map[string]string
	f.await("leaders", func() (missing string) {
		var err error
		leaders, err = f.hosts[0].leaders()
		return failure(err)
	})
	count := func(h *host) (n int) {
		for _, address := range leaders {
			if address == h.address {
				n++
			}
		}
		return n
	}
	return slices.MaxFunc(f.hosts, func(a, b *host) int { return count(a) - count(b) })
}

// until awaits something of a fault, and returns how long after began that was.
func (f *netFleet) until(began time.Time, what string, look func() string) time.Duration {
	f.t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for missing := look(); missing != ""; missing = look() {
		if time.Since(began) > patience {
			f.t.Fatalf("after %s still waiting for %s: %s", patience, what, missing)
		}
		<-tick.C
	}
	took := time.Since(began)
	f.t.Logf("  %s: after %.1f s", what, took.Seconds())
	return took
}

// led returns "" if every service that had a leader has one on the hosts, and so has etcd.
func led(before map[string]string, hosts ...*host) string {
	now, err := hosts[0].leaders()
	if err != nil {
		return err.Error()
	}
	var missing []string
	for _, service := range slices.Sorted(maps.Keys(before)) {
		if !slices.ContainsFunc(hosts, func(h *host) bool { return h.address == now[service] }) {
			missing = append(missing, fmt.Sprintf("%s leads at %q", service, now[service]))
		}
	}
	if etcdLeader(hosts...) == nil {
		missing = append(missing, "etcd has no leader")
	}
	return strings.Join(missing, ", ")
}

// watch is goroutines that look at something again and again until it is ended.
type watch struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	wrong  []string
	first  map[string]time.Duration // that something was seen
	refuse time.Duration            // the longest refusal after the first
}

// end stops the goroutines and fails the test if they saw something wrong.
func (w *watch) end(t *testing.T) {
	t.Helper()
	w.stop()
	w.done.Wait()
	for _, text := range w.wrong {
		t.Error(text)
	}
}

// saw returns "" if something was seen.
func (w *watch) saw(what string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.first[what]; ok {
		return ""
	}
	return "not seen yet"
}

func newWatch(t *testing.T, looks ...func(context.Context, *watch, time.Duration)) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{stop: cancel, first: map[string]time.Duration{}}
	t.Cleanup(cancel)
	began := time.Now()
	for _, look := range looks {
		w.done.Go(func() {
			tick := time.NewTicker(lookEvery)
			defer tick.Stop()
			for {
				look(ctx, w, time.Since(began))
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	return w
}

// note notes that something was seen for the first time.
func (w *watch) note(what string, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.first[what]; !ok {
		w.first[what] = at
	}
}

// watchNodes fails the test if a node of some hosts is not Ready or Unknown, as a gateway says.
func (f *netFleet) watchNodes(t *testing.T, at *host, living ...*host) *watch {
	t.Helper()
	names := map[string]bool{}
	for _, h := range living {
		names[h.name] = true
	}
	said := map[string]bool{}
	return newWatch(t, func(ctx context.Context, w *watch, since time.Duration) {
		ready, err := at.ready()
		if err != nil || ctx.Err() != nil {
			return // it is for the writer to say that calls fail
		}
		for node, host := range f.nodes {
			is, there := ready[node]
			if !names[host] || is == "True" || said[host] {
				continue
			}
			said[host] = true
			w.mu.Lock()
			w.wrong = append(w.wrong, fmt.Sprintf("%.1f s after the cut, the node of %s is Ready=%q (exists: %t)",
				since.Seconds(), host, is, there))
			w.mu.Unlock()
		}
	})
}

const (
	refusal  = "the gateway that is cut off refuses a write"
	notReady = "its /readyz is 503"
)

// watchMinority writes at the gateway of a host that is cut off, and asks whether it is ready.
func watchMinority(t *testing.T, h *host) *watch {
	t.Helper()
	conn, n := h.conn(), 0
	return newWatch(t, func(ctx context.Context, w *watch, since time.Duration) {
		ctx, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		n++
		name := fmt.Sprintf("minority-%d-%d", time.Now().UnixNano(), n)
		began := time.Now()
		_, err := schedulingv1.NewConfigMapServiceClient(conn).CreateConfigMap(ctx, &schedulingv1.CreateConfigMapRequest{
			ConfigMap: &schedulingv1.ConfigMap{Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default"}},
		})
		took := time.Since(began)
		switch {
		case ctx.Err() != nil && took < probeLimit: // the end of the watch
		case err == nil:
			w.mu.Lock()
			w.wrong = append(w.wrong, fmt.Sprintf("%s was accepted by %s, which was cut off %s before", name, h.name, since))
			w.mu.Unlock()
		default:
			if w.saw(refusal) == "" {
				w.mu.Lock()
				w.refuse = max(w.refuse, took)
				w.mu.Unlock()
			}
			w.note(refusal, since+took)
		}
	}, func(ctx context.Context, w *watch, since time.Duration) {
		if code, err := h.readyz(ctx); err == nil && code == http.StatusServiceUnavailable {
			w.note(notReady, since)
		}
	})
}

// readyz returns the status of /readyz at this host's gateway.
func (h *host) readyz(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	caller := &http.Client{Transport: &http.Transport{
		TLSClientConfig: h.tls(), DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return h.dial(ctx, address) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+h.address+":6443/readyz", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := caller.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// serves returns "" if the gateway of this host is ready and accepts a write.
func (h *host) serves() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if code, err := h.readyz(ctx); err != nil || code != http.StatusOK {
		return fmt.Sprintf("/readyz of %s is %d, %v", h.name, code, err)
	}
	conn := h.conn()
	defer conn.Close()
	_, err := schedulingv1.NewConfigMapServiceClient(conn).CreateConfigMap(ctx, &schedulingv1.CreateConfigMapRequest{
		ConfigMap: &schedulingv1.ConfigMap{Metadata: &metav1.ObjectMeta{
			Name: fmt.Sprintf("serves-%d", time.Now().UnixNano()), Namespace: "default",
		}},
	})
	return failure(err)
}

// sever cuts a host off, and checks both sides and that it comes back. living are the hosts whose nodes must not be
// lost.
func (f *netFleet) sever(t *testing.T, prefix string, lost *host, cut, heal func(), living ...*host) {
	t.Helper()
	rest := f.others(lost)
	before, err := lost.leaders()
	if err != nil {
		t.Fatal(err)
	}
	w := rest[0].write(prefix)
	w.Progress()
	nodes := f.watchNodes(t, rest[0], living...)
	cut()
	began := time.Now()
	minority := watchMinority(t, lost)
	f.until(began, "leaders of all services and of etcd on the other hosts", func() string { return led(before, rest...) })
	t.Logf("  longest time between two writes at another gateway: %.1f s", w.Gap().Seconds())
	w.Progress()
	f.await(refusal, func() string { return minority.saw(refusal) })
	f.await(notReady, func() string { return minority.saw(notReady) })
	hold(stayed)
	if changed := led(before, rest...); changed != "" {
		t.Errorf("the leaders did not stay: %s", changed)
	}
	minority.end(t)
	t.Logf("  %s: after %.1f s, later ones within %.1f s; %s: after %.1f s", refusal, minority.first[refusal].Seconds(),
		minority.refuse.Seconds(), notReady, minority.first[notReady].Seconds())
	t.Logf("  longest time between two writes at another gateway in all: %.1f s", w.Gap().Seconds())
	heal()
	healed := time.Now()
	f.until(healed, "it serves again", lost.serves)
	f.until(healed, "three voters", func() string { return lost.voters(3) })
	f.settled()
	nodes.end(t)
	made, failed := w.End()
	if len(failed) > 0 {
		t.Errorf("calls that failed: %q", failed)
	}
	f.kept(made, f.hosts...)
}

// hold lets a fault last.
func hold(d time.Duration) { <-time.After(d) }

// The parts are of one cluster, each on what the one before leaves.
func TestFaultsOfHosts(t *testing.T) {
	began := time.Now()
	f := newNetFleet(t)
	t.Logf("three hosts and a worker: after %.1f s", time.Since(began).Seconds())
	testCuts(t, f)
}

// testCuts cuts links.
func testCuts(t *testing.T, f *netFleet) {
	run(t, "the host with the service leaders, but not etcd's, is cut off", func(t *testing.T) {
		lost := f.leading()
		f.leadEtcd(f.others(lost)[0])
		f.sever(t, "services", lost, func() { f.net.cut(lost) }, func() { f.net.heal(lost) },
			append(f.others(lost), f.worker)...)
	})
	run(t, "the host with all leaders is cut off", func(t *testing.T) {
		lost := f.leading()
		f.leadEtcd(lost)
		f.sever(t, "all", lost, func() { f.net.cut(lost) }, func() { f.net.heal(lost) },
			append(f.others(lost), f.worker)...)
	})
}
