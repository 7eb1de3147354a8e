package service

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/controller"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// repository is the name of the release images; they are found by their digests alone.
const repository = "releases.example.com/windlass"

// cluster is an update-orchestrator with the services that own what releases bring, each of which keeps its kinds as
// the real one does.
type cluster struct {
	t      *testing.T
	ground *servetest.Ground
	policy string
	peers  map[string]string
	cfg    config
	layout string
	keys   string
	signed string
	key    release.Key
	graph  string

	deployments *resource.Table[*schedulingv1.Deployment]
	services    *resource.Table[*schedulingv1.Service]
	jobs        *resource.Table[*schedulingv1.Job]
	pods        *resource.Table[*schedulingv1.Pod]
	snapshots   *resource.Table[*etcdv1.Snapshot]
	configs     *resource.Table[*configv1.MachineConfig]
	pools       *resource.Table[*configv1.MachineConfigPool]
	slow        atomic.Bool            // the scheduler renews no pods
	refusal     atomic.Pointer[error]  // what the owners of kinds say to every change
	refused     sync.Map               // what they say to changes of one object, by its kind and name
	refusals    atomic.Int64           // how often they said that
	unsaved     atomic.Pointer[string] // why no snapshot is taken; empty: it is not taken for long

	mu      sync.Mutex
	applied []string         // in the order of the writes: kind and name
	address string           // of the orchestrator; it stays when that is run again
	admin   *grpc.ClientConn // to the orchestrator
	dir     string
	stop    func()
}

// start runs the services over the embedded etcd, with real certificates and real interceptors; the orchestrator itself
// is started by run.
func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		t: t, ground: servetest.New(t), policy: filepath.Join(t.TempDir(), "policy.yaml"), peers: map[string]string{},
		dir:    t.TempDir(),
		layout: filepath.Join(t.TempDir(), "images"), keys: t.TempDir(), signed: t.TempDir(), graph: t.TempDir(),
	}
	c.key = c.newKey("release", filepath.Join(c.keys, "release.asc"))
	c.write(c.policy, identity.DefaultPolicy())
	servetest.Clear(t, etcdtest.Client(t))
	stores, err := controller.StoreAddress(c.signed)
	if err != nil {
		t.Fatal(err)
	}
	c.cfg = config{
		Config: serve.Config{Name: "update-orchestrator"}, images: release.Places{Layouts: []string{c.layout}},
		keys:   []string{c.keys},
		stores: []string{stores},
		poll:   time.Minute, reconcile: time.Minute,
		cluster: release.Cluster{ID: apply.ExcludeID, Profile: release.DefaultProfile, FeatureSet: release.DefaultFeatureSet},
	}
	c.owner("scheduler", func(p *serve.Process, st *store.Store) []func(context.Context) error {
		c.deployments = table[*schedulingv1.Deployment](c, p, st)
		c.services, c.jobs = table[*schedulingv1.Service](c, p, st), table[*schedulingv1.Job](c, p, st)
		serveTable(c, p, &schedulingv1.DeploymentService_ServiceDesc, c.deployments)
		serveTable(c, p, &schedulingv1.ServiceService_ServiceDesc, c.services)
		serveTable(c, p, &schedulingv1.JobService_ServiceDesc, c.jobs)
		c.pods = table[*schedulingv1.Pod](c, p, st)
		serveTable(c, p, &schedulingv1.PodService_ServiceDesc, c.pods)
		namespaces := table[*schedulingv1.Namespace](c, p, st)
		serveTable(c, p, &schedulingv1.NamespaceService_ServiceDesc, namespaces)
		return []func(context.Context) error{
			c.deployments.Run, c.services.Run, c.jobs.Run, c.pods.Run, namespaces.Run,
			c.renew,
		}
	})
	c.owner("node-configurator", func(p *serve.Process, st *store.Store) []func(context.Context) error {
		c.configs = table[*configv1.MachineConfig](c, p, st)
		c.pools = table[*configv1.MachineConfigPool](c, p, st)
		if err := resource.Register(p.Services, &configv1.MachineConfigService_ServiceDesc, renderer{c: c},
			c.configs); err != nil {
			t.Fatal(err)
		}
		serveTable(c, p, &configv1.MachineConfigPoolService_ServiceDesc, c.pools)
		return []func(context.Context) error{c.configs.Run, c.pools.Run}
	})
	c.owner("machine-api", func(p *serve.Process, st *store.Store) []func(context.Context) error {
		sets := table[*machinev1.MachineSet](c, p, st)
		serveTable(c, p, &machinev1.MachineSetService_ServiceDesc, sets)
		return []func(context.Context) error{sets.Run}
	})
	c.owner("eviction-controller", func(p *serve.Process, st *store.Store) []func(context.Context) error {
		nodes := table[*nodev1.Node](c, p, st)
		serveTable(c, p, &nodev1.NodeService_ServiceDesc, nodes)
		return []func(context.Context) error{nodes.Run}
	})
	c.owner("etcd-guardian", func(p *serve.Process, st *store.Store) []func(context.Context) error {
		c.snapshots = resource.NewTable(st, p.Validator, resource.Config[*etcdv1.Snapshot]{})
		serveTable(c, p, &etcdv1.SnapshotService_ServiceDesc, c.snapshots)
		etcdv1.RegisterQuorumServiceServer(p.Services, quorum{})
		return []func(context.Context) error{c.snapshots.Run, c.guard}
	})
	c.cfg.Peers = map[string]string{"etcd-guardian": c.peers["etcd-guardian"]}
	return c
}

// quorum is one of a member that needs no restart.
type quorum struct {
	etcdv1.UnimplementedQuorumServiceServer
}

func (quorum) PlanQuorum(context.Context, *etcdv1.PlanQuorumRequest) (*etcdv1.PlanQuorumResponse, error) {
	return &etcdv1.PlanQuorumResponse{Quorum: &etcdv1.Quorum{
		ObserveTime: timestamppb.Now(),
		Members:     []*etcdv1.Member{{Name: "m0", Healthy: true, Version: "3.7.3", NextVersion: "3.7.3"}},
	}}, nil
}

// guard takes every snapshot at once, as far as its object says.
func (c *cluster) guard(ctx context.Context) error {
	for ticker := time.Tick(5 * time.Millisecond); ctx.Err() == nil && c.snapshots.WaitSynced(ctx) == nil; <-ticker {
		for _, s := range c.snapshots.All() {
			why := c.unsaved.Load()
			if s.GetStatus().GetPhase() != "" || why != nil && *why == "" {
				continue
			}
			// again with the next tick
			_, _ = c.snapshots.Modify(ctx, object.KeyOf(s), func(s *etcdv1.Snapshot) error {
				s.Status = &etcdv1.SnapshotStatus{Phase: proto.String("Completed")}
				if why != nil {
					s.Status = &etcdv1.SnapshotStatus{Phase: proto.String("Failed"), Message: why}
				}
				return nil
			})
		}
	}
	return nil
}

// renderer names what the machine configurations of a pool make by their contents.
type renderer struct {
	configv1.UnimplementedMachineConfigServiceServer
	c *cluster
}

func (r renderer) RenderMachineConfig(ctx context.Context, _ *configv1.RenderMachineConfigRequest) (
	*configv1.RenderMachineConfigResponse, error,
) {
	if err := r.c.configs.CatchUp(ctx); err != nil {
		return nil, err
	}
	sum := sha256.New()
	for _, name := range r.c.configs.Keys() {
		cfg, _ := r.c.configs.Lookup("", name)
		fmt.Fprint(sum, name, cfg.GetSpec().GetConfig().AsMap())
	}
	return &configv1.RenderMachineConfigResponse{MachineConfig: &configv1.MachineConfig{
		Metadata: &metav1.ObjectMeta{Name: fmt.Sprintf("rendered-master-%x", sum.Sum(nil)[:16])},
	}}, nil
}

// renew gives every deployment at once the pods that it wants.
func (c *cluster) renew(ctx context.Context) error {
	for ticker := time.Tick(5 * time.Millisecond); ctx.Err() == nil && c.deployments.WaitSynced(ctx) == nil; <-ticker {
		for _, d := range c.deployments.All() {
			if c.slow.Load() || d.GetStatus().GetObservedGeneration() == d.GetMetadata().GetGeneration() {
				continue
			}
			// again with the next tick
			_, _ = c.deployments.Modify(ctx, object.KeyOf(d), func(d *schedulingv1.Deployment) error {
				n := proto.Int32(d.GetSpec().GetReplicas())
				d.Status = &schedulingv1.DeploymentStatus{
					ObservedGeneration: proto.Int32(d.GetMetadata().GetGeneration()), Replicas: n, UpdatedReplicas: n,
					AvailableReplicas: n,
				}
				return nil
			})
		}
	}
	return nil
}

// table is a kind whose every write is noted.
func table[T object.Object](c *cluster, p *serve.Process, st *store.Store) *resource.Table[T] {
	return resource.NewTable(st, p.Validator, resource.Config[T]{Admit: func(w *resource.Write[T]) error {
		if w.By.User == identity.ServiceUser("update-orchestrator") && !proto.Equal(w.Old, w.New) {
			if refusal := c.refusal.Load(); refusal != nil {
				return *refusal
			}
			it := w.New
			if w.Deletes() {
				it = w.Old
			}
			name := object.TypeOf(it.ProtoReflect().Descriptor()).GetKind() + "/" + object.KeyOf(it).Name
			if refusal, ok := c.refused.Load(name); ok {
				c.refusals.Add(1)
				return refusal.(error)
			}
			c.note(name)
		}
		return nil
	}})
}

func serveTable[T object.Object](c *cluster, p *serve.Process, desc *grpc.ServiceDesc, t *resource.Table[T]) {
	c.t.Helper()
	if err := resource.Register(p.Services, desc, nil, t); err != nil {
		c.t.Fatal(err)
	}
}

// refuse has the owner of one object refuse every change of it, and that of all others none.
func (c *cluster) refuse(name string, refusal error) {
	c.refused.Clear()
	if refusal != nil {
		c.refused.Store(name, refusal)
	}
}

func (c *cluster) note(name string) {
	c.mu.Lock()
	c.applied = append(c.applied, name)
	c.mu.Unlock()
}

func (c *cluster) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applied = nil
}

func (c *cluster) seen(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.applied, name)
}

func (c *cluster) owner(name string, parts func(*serve.Process, *store.Store) []func(context.Context) error) {
	c.t.Helper()
	p := c.ground.Process(serve.Config{Name: name, Policy: c.policy, Peers: maps.Clone(c.peers)})
	run := parts(p, store.New(etcdtest.Client(c.t), "/windlass/"+name+"/"))
	c.peers[name] = p.Address()
	servetest.Run(c.t, p, run...)
}

// run starts the orchestrator; it may be stopped and run again.
func (c *cluster) run() {
	c.t.Helper()
	p := c.ground.Process(serve.Config{
		Name: "update-orchestrator", Listen: c.address, Dir: c.dir, Policy: c.policy,
		Peers: maps.Clone(c.peers), // a process reads it while the test adds others
	})
	c.cfg.Dir = c.dir
	parts, err := build(p, etcdtest.Client(c.t), c.cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = p.Address()
	if c.admin == nil {
		c.admin = c.ground.Dial(c.address, servetest.Admin())
	}
	c.stop = servetest.Run(c.t, p, parts...)
}

func (c *cluster) write(path string, data []byte) {
	c.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) newKey(name, ring string) release.Key {
	c.t.Helper()
	private, public, err := release.GenerateKey(name, time.Now().Add(-time.Hour))
	if err != nil {
		c.t.Fatal(err)
	}
	if ring != "" {
		c.write(ring, public)
	}
	key, err := release.ReadKey(private)
	if err != nil {
		c.t.Fatal(err)
	}
	return key
}

// manifest is one file of a release in the tests.
func manifest(kind, apiVersion, name, rest string) string {
	return fmt.Sprintf(
		"apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n  annotations:\n    include.release.openshift.io/self-managed-high-availability: \"true\"\n%s", apiVersion, kind, name, rest)
}

func operator(name, version string) string {
	return manifest("ClusterOperator", "config.openshift.io/v1", name,
		"status:\n  versions:\n  - name: operator\n    version: "+version+"\n")
}

func kept(name, version string) string {
	return manifest("LimitRange", "v1", name, "data:\n  version: "+version+"\n")
}

func service(name string) string {
	return manifest("Service", "v1", name, "  namespace: "+name+"\nspec:\n  selector: {app: "+name+
		"}\n  ports:\n  - {port: 80}\n")
}

// example is a release like that of deploy/examples, in small.
func example(version string) map[string]string {
	return map[string]string{
		"0000_10_ledger_00_service.yaml":          service("ledger"),
		"0000_10_beacon_00_service.yaml":          service("beacon"),
		"0000_20_archive_00_settings.yaml":        kept("archive", version),
		"0000_20_archive_01_clusteroperator.yaml": operator("archive", version),
		"0000_20_ledger_00_settings.yaml":         kept("ledger", version),
		"0000_20_ledger_01_clusteroperator.yaml":  operator("ledger", version),
		"0000_25_beacon_00_settings.yaml":         kept("beacon", version),
		"0000_25_beacon_01_clusteroperator.yaml":  operator("beacon", version),
		"0000_50_beacon_00_deployment.yaml": manifest("Deployment", "apps/v1", "beacon",
			"  namespace: beacon\nspec:\n  replicas: 1\n  selector:\n    matchLabels: {app: beacon}\n"+
				"  template:\n    metadata:\n      labels: {app: beacon}\n    spec:\n      containers:\n      - name: beacon\n        image: docker.io/ocpqe/hello-pod\n        env:\n        - {name: RELEASE, value: \""+version+"\"}\n"),
		"0000_80_machine-config_00_worker.yaml": manifest("MachineConfig", "machineconfiguration.openshift.io/v1",
			"50-worker-release", "  labels: {machineconfiguration.openshift.io/role: worker}\n"+
				"spec:\n  config:\n    ignition: {version: 3.5.0}\n    storage:\n      files:\n      - {path: /etc/windlass-release, mode: 420, contents: {source: \"data:,"+version+"\"}}\n"),
	}
}

// image makes a release image and returns its name by digest.
func (c *cluster) image(version string, files map[string]string, previous ...string) string {
	c.t.Helper()
	dir := c.t.TempDir()
	for name, content := range files {
		c.write(filepath.Join(dir, name), []byte(content))
	}
	digest, err := release.New(c.layout, release.Build{From: dir, Version: version, Previous: previous})
	if err != nil {
		c.t.Fatal(err)
	}
	return repository + "@" + digest
}

func (c *cluster) sign(image string, key release.Key) {
	c.t.Helper()
	_, digest, _ := strings.Cut(image, "@")
	if _, err := key.Sign(c.signed, digest, image, time.Now().Add(-time.Minute)); err != nil {
		c.t.Fatal(err)
	}
}

// offer writes the graph of channel stable: an edge from each version to the next.
func (c *cluster) offer(releases ...[2]string) {
	c.t.Helper()
	g := map[string]any{"version": 1, "nodes": []any{}, "edges": []any{}}
	for i, r := range releases {
		g["nodes"] = append(g["nodes"].([]any), map[string]any{
			"version": r[0], "payload": r[1],
			"metadata": map[string]string{"io.openshift.upgrades.graph.release.channels": "stable"},
		})
		if i > 0 {
			g["edges"] = append(g["edges"].([]any), []int{i - 1, i})
		}
	}
	raw, err := json.Marshal(g)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(filepath.Join(c.graph, "stable.json"), raw)
}

// edit changes the spec of the ClusterVersion.
func (c *cluster) edit(change func(*updatev1.ClusterVersionSpec)) {
	c.t.Helper()
	client := updatev1.NewClusterVersionServiceClient(c.admin)
	servetest.Await(c.t, func() string {
		cv, err := client.GetClusterVersion(c.t.Context(), &updatev1.GetClusterVersionRequest{})
		if err != nil {
			return err.Error()
		}
		change(cv.GetSpec())
		if _, err := client.UpdateClusterVersion(c.t.Context(), &updatev1.UpdateClusterVersionRequest{
			Name: "version", ClusterVersion: cv,
		}); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (c *cluster) follow(channel string) {
	c.edit(func(s *updatev1.ClusterVersionSpec) { s.Upstream, s.Channel = "file://"+c.graph, channel })
}

func (c *cluster) desire(version, image string) {
	c.edit(func(s *updatev1.ClusterVersionSpec) {
		s.DesiredUpdate = &updatev1.DesiredUpdate{}
		if version != "" {
			s.DesiredUpdate.Version = proto.String(version)
		}
		if image != "" {
			s.DesiredUpdate.Image = proto.String(image)
		}
	})
}

// version waits until the ClusterVersion is as want says: it returns what is missing.
func (c *cluster) version(want func(*updatev1.ClusterVersion) string) *updatev1.ClusterVersion {
	c.t.Helper()
	client := updatev1.NewClusterVersionServiceClient(c.admin)
	var cv *updatev1.ClusterVersion
	servetest.Await(c.t, func() string {
		var err error
		if cv, err = client.GetClusterVersion(c.t.Context(), &updatev1.GetClusterVersionRequest{}); err != nil {
			return err.Error()
		}
		if missing := want(cv); missing != "" {
			return missing + ": " + cv.GetStatus().String()
		}
		return ""
	})
	return cv
}

func completed(version string) func(*updatev1.ClusterVersion) string {
	return func(cv *updatev1.ClusterVersion) string {
		h := cv.GetStatus().GetHistory()
		if len(h) == 0 || h[0].GetVersion() != version || h[0].GetState() != "Completed" {
			return "no completed entry of " + version
		}
		return ""
	}
}

func has(typ, status, reason string) func(*updatev1.ClusterVersion) string {
	return func(cv *updatev1.ClusterVersion) string {
		c := object.FindCondition(cv.GetStatus().GetConditions(), typ)
		if c.GetStatus() != status || reason != "" && c.GetReason() != reason {
			return fmt.Sprintf("%s is not %s with reason %s", typ, status, reason)
		}
		return ""
	}
}

func offers(version string) func(*updatev1.ClusterVersion) string {
	return func(cv *updatev1.ClusterVersion) string {
		if !slices.ContainsFunc(cv.GetStatus().GetAvailableUpdates(), func(r *updatev1.ReleaseReference) bool {
			return r.GetVersion() == version
		}) {
			return version + " is not offered"
		}
		return ""
	}
}

// waitsFor is so when the update waits for exactly these operators.
func waitsFor(names ...string) func(*updatev1.ClusterVersion) string {
	return func(cv *updatev1.ClusterVersion) string {
		var have []string
		for _, w := range cv.GetStatus().GetProgress().GetWaits() {
			have = append(have, w.GetObject().GetName())
		}
		slices.Sort(have)
		if !slices.Equal(have, names) {
			return fmt.Sprintf("waits for %v, not for %v", have, names)
		}
		return ""
	}
}

// report writes what an operator says of itself.
func (c *cluster) report(name, version string, degraded bool) {
	c.t.Helper()
	client := updatev1.NewClusterOperatorServiceClient(c.admin)
	servetest.Await(c.t, func() string {
		if err := say(c.t.Context(), client, name, version, degraded); err != nil {
			return err.Error()
		}
		return ""
	})
}

func say(ctx context.Context, client updatev1.ClusterOperatorServiceClient, name, version string, degraded bool) error {
	o, err := client.GetClusterOperator(ctx, &updatev1.GetClusterOperatorRequest{Name: name})
	if err != nil {
		return err
	}
	condition := func(typ string, is bool) *metav1.Condition {
		return &metav1.Condition{
			Type: typ, Status: map[bool]string{true: "True", false: "False"}[is],
			LastTransitionTime: timestamppb.Now(),
		}
	}
	o.Status = &updatev1.ClusterOperatorStatus{
		Conditions: []*metav1.Condition{
			condition("Available", true), condition("Progressing", false),
			condition("Degraded", degraded),
		},
		Versions: []*updatev1.OperandVersion{{Name: "operator", Version: version}},
	}
	_, err = client.UpdateClusterOperatorStatus(ctx, &updatev1.UpdateClusterOperatorStatusRequest{
		Name: name, ClusterOperator: o,
	})
	return err
}

// ready lets every operator that is waited for report what it is waited for, at once, until the test ends.
func (c *cluster) ready(operators ...string) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			c.play(ctx, operators)
			time.Sleep(5 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); group.Wait() })
	c.t.Cleanup(stop)
	return stop
}

func (c *cluster) play(ctx context.Context, operators []string) {
	stream, err := updatev1.NewClusterVersionServiceClient(c.admin).WatchClusterVersions(ctx,
		&updatev1.WatchClusterVersionsRequest{})
	for err == nil {
		var m *updatev1.WatchClusterVersionsResponse
		if m, err = stream.Recv(); err != nil {
			return
		}
		for _, e := range m.GetEvents() {
			st := e.GetObject().GetStatus()
			for _, w := range st.GetProgress().GetWaits() {
				if slices.Contains(operators, w.GetObject().GetName()) {
					// What fails now is tried again with the next word about the wait, or the next watch.
					_ = say(ctx, updatev1.NewClusterOperatorServiceClient(c.admin), w.GetObject().GetName(),
						st.GetDesired().GetVersion(), false)
				}
			}
		}
	}
}
