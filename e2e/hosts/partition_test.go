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
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/e2e/harness"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// lookEvery is the precision of the figures.
	lookEvery = 50 * time.Millisecond
	// stayed is how long a fault lasts after the others have taken over. With WINDLASS_FAULTS=all it is stayedLong, more
	// than the 40 seconds of silence after which a node is Unknown.
	stayed     = 10 * time.Second
	stayedLong = 50 * time.Second
	// diskBytes is the size of the disk of the third host: two segments of etcd's log have half of it.
	diskBytes = 256 << 20
	// probeLimit is more than the time after which a host that is cut off may still try to serve a call.
	probeLimit = 15 * time.Second
)

// netFleet is a fleet whose hosts are in network namespaces, with a worker.
type netFleet struct {
	*fleet
	net    *network
	worker *host
	stays  time.Duration     // how long a fault lasts after the others have taken over
	all    bool              // all parts are run
	nodes  map[string]string // names of hosts by names of nodes
}

// newNetFleet begins a cluster of three hosts and a worker.
func newNetFleet(t *testing.T) *netFleet {
	t.Helper()
	bin, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	f := &netFleet{
		fleet: &fleet{t: t}, net: newNetwork(t), nodes: map[string]string{}, stays: stayed,
		all: os.Getenv("WINDLASS_FAULTS") == "all",
	}
	if f.all {
		f.stays = stayedLong
	}
	for i, name := range []string{"h1", "h2", "h3", "w1"} {
		address := fmt.Sprintf("%s.%d", subnet, i+1)
		h := &host{
			t: t, bin: bin, name: name, address: address, dir: filepath.Join(t.TempDir(), "windlass"),
			space: f.net.add(name, address),
		}
		if name == "h3" && f.all { // testFullDisk fills it
			if err := os.Mkdir(h.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			harness.MountDisk(t, h.dir, diskBytes)
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
	f.paired()
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

// paired waits until each two members of etcd reach each other. After a cut TCP may take as long as that lasted to send
// again over a connection that has survived it, and two members that only reach the third have no majority without it.
func (f *netFleet) paired() {
	f.t.Helper()
	began := time.Now()
	for _, h := range f.hosts[:2] {
		f.leadEtcd(h)
		for _, o := range f.hosts {
			f.await("the member on "+o.name+" to reach that on "+h.name, func() string {
				_, err := o.leaders()
				return failure(err)
			})
		}
	}
	f.t.Logf("  all members of etcd reach each other: after %.1f s", time.Since(began).Seconds())
}

// ready returns the conditions Ready of the nodes by name.
func (h *host) ready() (map[string]string, error) {
	conn := h.conn()
	defer conn.Close()
	return readyNodes(context.Background(), conn)
}

// readyNodes returns the status of the condition Ready of each node.
func readyNodes(ctx context.Context, conn *grpc.ClientConn) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
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

// watch is goroutines that check something again and again until it is ended.
type watch struct {
	stop  context.CancelFunc
	done  sync.WaitGroup
	needs string // what must have been seen at the end, or nothing was watched; may be empty

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
	if missing := w.saw(w.needs); w.needs != "" && missing != "" {
		t.Errorf("%s: %s", w.needs, missing)
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
	said, conn := map[string]bool{}, at.conn()
	out := newWatch(t, func(ctx context.Context, w *watch, since time.Duration) {
		ready, err := readyNodes(ctx, conn)
		if err != nil || ctx.Err() != nil {
			return // it is for the writer to say that calls fail
		}
		w.note(nodesSeen, since)
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
	out.needs = nodesSeen
	return out
}

const (
	nodesSeen = "the nodes are read"

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

// announced returns "" if all programs of this host are announced as serving, and otherwise which are not, as etcd's
// member on another host has it.
func (h *host) announced(at *host) string {
	client := at.etcd()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	got, err := client.Get(ctx, topology.EndpointsPrefix, clientv3.WithPrefix())
	if err != nil {
		return err.Error()
	}
	serving := map[string]bool{}
	for _, kv := range got.Kvs {
		var e discovery.Endpoint
		service, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), topology.EndpointsPrefix), "/")
		if json.Unmarshal(kv.Value, &e) == nil && e.Host == h.name && e.Ready {
			serving[service] = true
		}
	}
	var missing []string
	for _, name := range topology.NamesOnHosts() {
		if !serving[name] {
			missing = append(missing, name)
		}
	}
	return strings.Join(missing, ", ")
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
	hold(f.stays)
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
	f.until(healed, "its processes are announced", func() string { return lost.announced(rest[0]) })
	f.until(healed, "three voters", func() string { return lost.voters(3) })
	nodes.end(t)
	f.ended(w)
}

// ended ends a writer none of whose calls may have failed, and checks that all that it wrote is there once nothing of
// the fault is left.
func (f *netFleet) ended(w *harness.MapWriter) {
	f.t.Helper()
	made, failed := w.End() // before settled, which moves etcd's leader
	if len(failed) > 0 {
		f.t.Errorf("calls that failed: %q", failed)
	}
	f.settled()
	f.kept(made, f.hosts...)
}

// hold lets a fault last.
func hold(d time.Duration) { <-time.After(d) }

// The parts are of one cluster, each on what the one before leaves. Those that take long are run where
// WINDLASS_FAULTS=all asks for it.
func TestFaultsOfHosts(t *testing.T) {
	began := time.Now()
	f := newNetFleet(t)
	t.Logf("three hosts and a worker: after %.1f s", time.Since(began).Seconds())
	testCuts(t, f)
	if f.all {
		testPairs(t, f)
		testNoMajority(t, f)
		testPausedMember(t, f)
		testFullDisk(t, f)
	}
	testAllKilled(t, f)
}

// testCuts cuts hosts off.
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
	run(t, "a host is cut off from the other control-plane hosts, and the worker reaches all", func(t *testing.T) {
		lost := f.leading()
		f.leadEtcd(lost)
		rest := f.others(lost)
		f.sever(t, "between", lost, func() {
			f.net.part(lost, rest[0])
			f.net.part(lost, rest[1])
		}, func() {
			f.net.join(lost, rest[0])
			f.net.join(lost, rest[1])
		}, append(rest, f.worker)...)
	})
}

// testPairs cuts links between two hosts, which both reach the third.
func testPairs(t *testing.T, f *netFleet) {
	run(t, "etcd's leader and another host do not reach each other", func(t *testing.T) {
		first := f.leading()
		f.leadEtcd(first)
		rest := f.others(first)
		second, third := rest[0], rest[1]
		before, err := third.leaders()
		if err != nil {
			t.Fatal(err)
		}
		w := third.write("pair")
		w.Progress()
		nodes := f.watchNodes(t, third, append(f.hosts, f.worker)...)
		f.net.part(first, second)
		began := time.Now()
		f.until(began, "leaders of all services and of etcd", func() string { return led(before, f.hosts...) })
		then, err := third.leaders()
		if err != nil {
			t.Fatal(err)
		}
		hold(f.stays)
		if now, err := third.leaders(); err != nil || !maps.Equal(then, now) {
			t.Errorf("the leaders do not stay: from %v to %v, %v", then, now, err)
		}
		// The second host's own member of etcd has no leader, since the third goes on to follow the first.
		for _, h := range f.hosts {
			f.until(began, h.name+" serves", h.serves)
		}
		t.Logf("  longest time between two writes at the third: %.1f s", w.Gap().Seconds())
		f.net.join(first, second)
		nodes.end(t)
		f.ended(w)
	})
}

// leaving is a pod that leaves a node one second after it is lost.
const leaving = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: leaving, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {app: leaving}}
  template:
    metadata: {labels: {app: leaving}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
`

// leavingPod returns the uid of the pod of leaving, and "" if it is not on a node or is to end.
func (h *host) leavingPod() (uid, missing string) {
	conn := h.conn()
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := schedulingv1.NewPodServiceClient(conn).ListPods(ctx, &schedulingv1.ListPodsRequest{
		Namespace: "default", LabelSelector: "app=leaving",
	})
	if err != nil {
		return "", err.Error()
	}
	for _, p := range list.GetItems() {
		if len(list.GetItems()) == 1 && p.GetSpec().GetNodeName() != "" && p.GetMetadata().GetDeletionTimestamp() == nil &&
			p.GetStatus().GetPhase() == "Running" {
			return p.GetMetadata().GetUid(), ""
		}
	}
	return "", fmt.Sprint(list.GetItems())
}

func testNoMajority(t *testing.T, f *netFleet) {
	run(t, "without a majority nothing is evicted, and the quorum says what it waits for", func(t *testing.T) {
		alone := f.hosts[1]
		lost := f.others(alone)
		file := filepath.Join(t.TempDir(), "leaving.yaml")
		if err := os.WriteFile(file, []byte(leaving), 0o600); err != nil {
			t.Fatal(err)
		}
		alone.mustAsk("apply", "-f", file)
		var before string
		f.await("the pod", func() (missing string) {
			before, missing = alone.leavingPod()
			return missing
		})
		w := alone.write("majority")
		w.Progress()
		for _, h := range lost {
			h.lose()
		}
		began := time.Now()
		f.until(began, "it says what it waits for", func() string {
			out, _ := alone.here("quorum")
			if !strings.Contains(out, "Waits for: a majority of the voters: 1 of 3 run") {
				return out
			}
			return ""
		})
		hold(f.stays)
		lost[0].start()
		back := time.Now()
		f.until(back, "a write once one host is back", alone.serves)
		f.until(back, "all operators available", func() string { return operators(alone) })
		f.until(back, "the worker's node is ready", func() string {
			ready, err := alone.ready()
			for node, is := range ready {
				if f.nodes[node] == f.worker.name && is == "True" {
					return ""
				}
			}
			return fmt.Sprint(ready, err)
		})
		hold(f.stays)
		if after, missing := alone.leavingPod(); after != before {
			t.Errorf("pod %s became %q %s", before, after, missing)
		}
		lost[1].start()
		made, _ := w.End()
		f.settled()
		f.kept(made, f.hosts...)
		alone.mustAsk("delete", "deployment/leaving", "--wait=false")
	})
}

func testPausedMember(t *testing.T, f *netFleet) {
	run(t, "etcd's leader is paused for ten seconds", func(t *testing.T) {
		paused := f.leading()
		f.leadEtcd(paused)
		rest := f.others(paused)
		before, err := paused.leaders()
		if err != nil {
			t.Fatal(err)
		}
		w := rest[0].write("paused")
		w.Progress()
		pids := paused.pids("etcd-member")
		signal := func(s syscall.Signal) {
			for _, pid := range pids {
				if err := syscall.Kill(pid, s); err != nil {
					t.Error(err)
				}
			}
		}
		signal(syscall.SIGSTOP)
		began := time.Now()
		f.until(began, "another leader of etcd", func() string {
			if etcdLeader(rest...) == nil {
				return "none"
			}
			return ""
		})
		f.until(began, "leaders of all services", func() string { return led(before, rest[0], rest[1], paused) })
		hold(time.Until(began.Add(10 * time.Second)))
		t.Logf("  longest time between two writes: %.1f s", w.Gap().Seconds())
		signal(syscall.SIGCONT)
		continued := time.Now()
		f.until(continued, "three voters", func() string { return paused.voters(3) })
		f.ended(w)
	})
}

func testAllKilled(t *testing.T, f *netFleet) {
	run(t, "all hosts are killed at once and started again", func(t *testing.T) {
		w := f.hosts[0].write("killed")
		w.Progress()
		all := append(slices.Clone(f.hosts), f.worker)
		for _, h := range all {
			h.halt()
		}
		var group sync.WaitGroup
		for _, h := range all {
			group.Go(h.lose)
		}
		group.Wait()
		made, _ := w.End()
		began := time.Now()
		for _, h := range all {
			h.start()
		}
		f.until(began, "a write", f.hosts[1].serves)
		f.until(began, "all operators available", func() string { return operators(f.hosts[1]) })
		f.settled()
		f.kept(made, f.hosts...)
	})
}

// degraded returns "" if the report of a service says that a host has no process of it that serves.
func (h *host) degraded(at *host) string {
	var said []string
	for _, name := range topology.NamesOnHosts() {
		is, message, err := at.operator(topology.Operator(name), "Degraded")
		if is == "True" && strings.Contains(message, "host "+h.name+":") {
			h.t.Logf("  %s: %s", name, message)
			return ""
		}
		said = append(said, fmt.Sprintf("%s %s %v", name, is, err))
	}
	return strings.Join(said, ", ")
}

func testFullDisk(t *testing.T, f *netFleet) {
	run(t, "the disk of a host is full", func(t *testing.T) {
		full := f.hosts[2]
		filler := filepath.Join(full.dir, "filler")
		w := f.hosts[0].write("full")
		w.Progress()
		fill := func() { harness.FillDisk(t, filler) }
		fill()
		began := time.Now()
		f.until(began, "its gateway refuses calls", func() string {
			fill() // what was freed in the meantime
			missing := full.serves()
			if strings.Contains(missing, "disk is full") {
				t.Logf("  %s", missing)
				return ""
			}
			return fmt.Sprintf("it serves, or does not for another reason: %q", missing)
		})
		f.until(began, "the reports name it", func() string {
			fill()
			return full.degraded(f.hosts[0])
		})
		w.Progress()
		t.Logf("  longest time between two writes at another gateway: %.1f s", w.Gap().Seconds())
		if missing := operators(f.hosts[0]); missing != "" {
			t.Error(missing)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		freed := time.Now()
		f.until(freed, "it serves", full.serves)
		f.until(freed, "no report names a host", func() string {
			for _, name := range topology.NamesOnHosts() {
				if is, message, err := f.hosts[0].operator(topology.Operator(name), "Degraded"); is != "False" {
					return fmt.Sprintf("%s is Degraded=%s %q %v", name, is, message, err)
				}
			}
			return ""
		})
		f.ended(w)
	})
}
