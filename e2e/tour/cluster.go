package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Names of the cluster that the tour runs on.
const (
	namespace    = "openshift-machine-api"
	roleLabel    = "machine.openshift.io/cluster-api-machine-role"
	podNamespace = "default"
	workerLabel  = "node-role.kubernetes.io/worker"
	tourLabel    = "tour.windlass.dev/run" // on everything that a tour creates
	quorumHook   = "EtcdQuorumOperator"
	deleteFirst  = "machine.openshift.io/delete-machine"
)

// cluster is the same cluster for what a command per question would be too slow for: the generated clients, with the
// settings that `windlass env` prints.
type cluster struct {
	url      string
	conn     *grpc.ClientConn
	http     *http.Client
	machines machinev1.MachineServiceClient
	sets     machinev1.MachineSetServiceClient
	nodes    nodev1.NodeServiceClient
	drains   nodev1.DrainServiceClient
	quorums  etcdv1.QuorumServiceClient
	tasks    hookv1.HookTaskServiceClient
	pods     schedulingv1.PodServiceClient
	services schedulingv1.ServiceServiceClient
	pools    configv1.MachineConfigPoolServiceClient
	versions updatev1.ClusterVersionServiceClient
	reports  updatev1.ClusterOperatorServiceClient
	programs programv1.ProgramServiceClient
	dir      string // of a cluster on this machine: all its files
}

// connect reads the settings of the cluster. Nothing is sent before the first call.
func connect(ctx context.Context, s shell) (*cluster, error) {
	out, err := s.output(ctx, "windlass", "env")
	if err != nil {
		return nil, err
	}
	env, err := parseEnv(out)
	if err != nil {
		return nil, err
	}
	settings, err := tlsSettings(env)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+env["WINDLASS_SERVER"],
		grpc.WithTransportCredentials(credentials.NewTLS(settings)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6,
				MaxDelay: 250 * time.Millisecond,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	if err != nil {
		return nil, err
	}
	return &cluster{
		url: env["WINDLASS_URL"], conn: conn,
		http:     &http.Client{Transport: &http.Transport{TLSClientConfig: settings, MaxIdleConnsPerHost: 8}},
		machines: machinev1.NewMachineServiceClient(conn),
		sets:     machinev1.NewMachineSetServiceClient(conn),
		nodes:    nodev1.NewNodeServiceClient(conn),
		drains:   nodev1.NewDrainServiceClient(conn),
		quorums:  etcdv1.NewQuorumServiceClient(conn),
		tasks:    hookv1.NewHookTaskServiceClient(conn),
		pods:     schedulingv1.NewPodServiceClient(conn),
		services: schedulingv1.NewServiceServiceClient(conn),
		pools:    configv1.NewMachineConfigPoolServiceClient(conn),
		versions: updatev1.NewClusterVersionServiceClient(conn),
		reports:  updatev1.NewClusterOperatorServiceClient(conn),
		programs: programv1.NewProgramServiceClient(conn),
		dir:      filepath.Dir(filepath.Dir(env["WINDLASS_CACERT"])),
	}, nil
}

func (c *cluster) close() {
	c.http.CloseIdleConnections()
	c.conn.Close()
}

// parseEnv reads lines such as `export WINDLASS_SERVER="127.1.2.1:6443"`.
func parseEnv(text string) (map[string]string, error) {
	env := map[string]string{}
	for line := range strings.Lines(text) {
		assignment, ok := strings.CutPrefix(strings.TrimSpace(line), "export ")
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(assignment, "=")
		if plain, err := strconv.Unquote(value); err == nil {
			value = plain
		}
		env[name] = value
	}
	for _, name := range []string{"WINDLASS_SERVER", "WINDLASS_URL", "WINDLASS_CACERT", "WINDLASS_CERT", "WINDLASS_KEY"} {
		if env[name] == "" {
			return nil, fmt.Errorf("windlass env: no %s in\n%s", name, text)
		}
	}
	return env, nil
}

func tlsSettings(env map[string]string) (*tls.Config, error) {
	ca, err := os.ReadFile(env["WINDLASS_CACERT"])
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bytes.TrimSpace(ca)) {
		return nil, fmt.Errorf("%s: holds no certificate", env["WINDLASS_CACERT"])
	}
	own, err := tls.LoadX509KeyPair(env["WINDLASS_CERT"], env["WINDLASS_KEY"])
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{own}}, nil
}

// patient has a call wait for a service that is just being started again.
var patient = grpc.WaitForReady(true)

// listMachines returns the machines of a role; all of them for the empty one.
func (c *cluster) listMachines(ctx context.Context, role string) ([]*machinev1.Machine, error) {
	r := &machinev1.ListMachinesRequest{Namespace: namespace}
	if role != "" {
		r.LabelSelector = roleLabel + "=" + role
	}
	list, err := c.machines.ListMachines(ctx, r, patient)
	return list.GetItems(), err
}

// listSets returns the machine sets that a selector of labels matches.
func (c *cluster) listSets(ctx context.Context, selector string) ([]*machinev1.MachineSet, error) {
	list, err := c.sets.ListMachineSets(ctx, &machinev1.ListMachineSetsRequest{
		Namespace:     namespace,
		LabelSelector: selector,
	}, patient)
	return list.GetItems(), err
}

func (c *cluster) listNodes(ctx context.Context) ([]*nodev1.Node, error) {
	list, err := c.nodes.ListNodes(ctx, &nodev1.ListNodesRequest{}, patient)
	return list.GetItems(), err
}

func (c *cluster) listPools(ctx context.Context) ([]*configv1.MachineConfigPool, error) {
	list, err := c.pools.ListMachineConfigPools(ctx, &configv1.ListMachineConfigPoolsRequest{}, patient)
	return list.GetItems(), err
}

// listPods returns the pods of the default namespace that a selector of labels matches.
func (c *cluster) listPods(ctx context.Context, selector string) ([]*schedulingv1.Pod, error) {
	list, err := c.pods.ListPods(ctx, &schedulingv1.ListPodsRequest{Namespace: podNamespace, LabelSelector: selector},
		patient)
	return list.GetItems(), err
}

func (c *cluster) version(ctx context.Context) (*updatev1.ClusterVersion, error) {
	return c.versions.GetClusterVersion(ctx, &updatev1.GetClusterVersionRequest{Name: "version"}, patient)
}

func (c *cluster) quorum(ctx context.Context) (*etcdv1.Quorum, error) {
	return c.quorums.GetQuorum(ctx, &etcdv1.GetQuorumRequest{}, patient)
}

// member returns the member of a name, nil if there is none.
func member(q *etcdv1.Quorum, name string) *etcdv1.Member {
	for _, m := range q.GetMembers() {
		if m.GetName() == name {
			return m
		}
	}
	return nil
}

// leader returns the name of the member that leads, empty if none does.
func leader(q *etcdv1.Quorum) string {
	for _, m := range q.GetMembers() {
		if m.GetLeader() {
			return m.GetName()
		}
	}
	return ""
}

// follower returns the name of a member that votes and does not lead.
func follower(q *etcdv1.Quorum) string {
	for _, m := range q.GetMembers() {
		if !m.GetLearner() && !m.GetLeader() {
			return m.GetName()
		}
	}
	return ""
}

// atRest reports whether every member votes and is healthy.
func atRest(q *etcdv1.Quorum) bool {
	return q.GetVoters() == q.GetDesiredVoters() && q.GetHealthyVoters() == q.GetVoters() &&
		int(q.GetVoters()) == len(q.GetMembers()) && leader(q) != ""
}

// isReady reports whether a node's Ready condition is true.
func isReady(n *nodev1.Node) bool {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetStatus() == "True"
		}
	}
	return false
}

// object is any resource.
type object interface{ GetMetadata() *metav1.ObjectMeta }

// names returns the names of objects, in order.
func names[T object](objects []T) []string {
	out := make([]string, len(objects))
	for i, o := range objects {
		out[i] = o.GetMetadata().GetName()
	}
	slices.Sort(out)
	return out
}

// uids returns the names of objects with their uids, in order.
func uids[T object](objects []T) []string {
	out := make([]string, len(objects))
	for i, o := range objects {
		out[i] = o.GetMetadata().GetName() + " (" + o.GetMetadata().GetUid() + ")"
	}
	slices.Sort(out)
	return out
}

// revision is when an object changed last, on the one clock that all objects of a cluster share: that of its etcd.
func revision(o object) int64 {
	n, err := strconv.ParseInt(o.GetMetadata().GetResourceVersion(), 10, 64)
	if err != nil {
		return 0 // an object that was never stored
	}
	return n
}
