package command

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// observer checks a cluster on this machine, or in the containers of one network, during a start or a rotation.
type observer struct {
	cluster *cluster.Cluster
	client  *client.Client
	tls     *tls.Config
}

func newObserver(c *cluster.Cluster) (*observer, func(), error) {
	files := c.AdminFiles()
	conn, err := client.Dial(client.Target{Server: c.Gateway(), CA: files.CA, Cert: files.Cert, Key: files.Key})
	if err != nil {
		return nil, nil, err
	}
	cfg, err := files.ClientTLS("")
	if err != nil {
		return nil, nil, err
	}
	return &observer{cluster: c, client: client.New(conn), tls: cfg}, func() { conn.Close() }, nil
}

// lookEvery is short compared with the shortest step, and long compared with the cost of one check.
const lookEvery = 40 * time.Millisecond

// until calls look repeatedly until it reports done or ctx ends, and prints what it waits for. Errors that are normal
// while programs start (the cluster cannot be reached) are retried; any other error is returned.
func until(ctx context.Context, s *steps, look func(context.Context) (done bool, waits string, err error)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		done, waits, err := lookOnce(ctx, look)
		switch {
		case done:
			return nil
		case err != nil && passing(err):
			waits = status.Convert(err).Message()
		case err != nil:
			return err
		}
		s.wait(waits)
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", waits, ctx.Err())
		case <-tick.C:
		}
	}
}

func lookOnce(ctx context.Context, look func(context.Context) (bool, string, error)) (bool, string, error) {
	const patience = 3 * time.Second // a program that hangs is called again
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return look(ctx)
}

func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled:
		return true
	}
	return false
}

func etcdAnswers(ctx context.Context, o *observer, s *steps) (string, error) {
	var what string
	err := until(ctx, s, func(ctx context.Context) (bool, string, error) {
		q, err := o.quorum(ctx)
		if err != nil {
			return false, "", err
		}
		what = fmt.Sprintf("%d of %d voters respond", q.GetHealthyVoters(), q.GetVoters())
		for _, m := range q.GetMembers() {
			if m.GetBootstrap() && m.GetHealthy() {
				what = "bootstrap member"
			}
		}
		return q.GetHealthyVoters() > 0 && q.GetHealthyVoters() >= q.GetMajority(), q.GetWaitsFor(), nil
	})
	return what, err
}

func (o *observer) quorum(ctx context.Context) (*etcdv1.Quorum, error) {
	return etcdv1.NewQuorumServiceClient(o.client.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
}

// serving checks at a program's own address whether it is ready.
func (o *observer) serving(ctx context.Context, name string) (bool, error) {
	conn, err := grpc.NewClient("passthrough:///"+o.cluster.Address(name),
		grpc.WithTransportCredentials(credentials.NewTLS(o.tls)))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{},
		grpc.WaitForReady(true))
	return r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING, err
}

func servicesReady(ctx context.Context, o *observer, s *steps) (string, error) {
	for _, name := range topology.Names() {
		err := until(ctx, s, func(ctx context.Context) (bool, string, error) {
			ready, err := o.serving(ctx, name)
			return ready, name, err
		})
		if err != nil {
			return "", err
		}
	}
	return strings.Join(topology.Names(), ", "), nil
}

// createFile creates the objects of a file.
func (o *observer) createFile(ctx context.Context, file string, s *steps) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return o.create(ctx, file, f, s)
}

// create creates objects and returns their names.
func (o *observer) create(ctx context.Context, file string, text io.Reader, s *steps) ([]string, error) {
	documents, err := manifest.Split(text, file)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range documents {
		k, err := client.KindOf(d.APIVersion, d.Kind)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, d.Line, err)
		}
		obj := k.New()
		if err := manifest.Decode(d.JSON, obj); err != nil {
			return nil, d.Locate(err)
		}
		err = until(ctx, s, func(ctx context.Context) (bool, string, error) {
			_, err := o.client.Create(ctx, k, obj, false)
			if status.Code(err) == codes.AlreadyExists {
				err = nil
			}
			return err == nil, k.GetSingular() + " " + obj.GetMetadata().GetName(), err
		})
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, d.Line, err)
		}
		names = append(names, k.GetSingular()+"/"+obj.GetMetadata().GetName())
	}
	return names, nil
}

func (o *observer) machines(ctx context.Context) ([]*machinev1.Machine, int, error) {
	list, err := machinev1.NewMachineServiceClient(o.client.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{})
	if err != nil {
		return nil, 0, err
	}
	sets, err := machinev1.NewMachineSetServiceClient(o.client.Conn()).ListMachineSets(ctx,
		&machinev1.ListMachineSetsRequest{})
	if err != nil {
		return nil, 0, err
	}
	planes, err := machinev1.NewControlPlaneMachineSetServiceClient(o.client.Conn()).ListControlPlaneMachineSets(ctx,
		&machinev1.ListControlPlaneMachineSetsRequest{})
	wanted := 0
	for _, s := range sets.GetItems() {
		wanted += int(s.GetSpec().GetReplicas())
	}
	for _, p := range planes.GetItems() {
		if p.GetSpec().GetState() == "Active" {
			wanted += int(p.GetSpec().GetReplicas())
		}
	}
	return list.GetItems(), wanted, err
}

func machinesRun(ctx context.Context, o *observer, s *steps) (string, error) {
	var running int
	err := until(ctx, s, func(ctx context.Context) (bool, string, error) {
		list, wanted, err := o.machines(ctx)
		if err != nil {
			return false, "", err
		}
		running = 0
		for _, m := range list {
			if m.GetStatus().GetPhase() == "Running" {
				running++
			}
		}
		return running >= wanted, fmt.Sprintf("%d of %d run", running, wanted), nil
	})
	return fmt.Sprintf("%d run", running), err
}

func quorumStands(ctx context.Context, o *observer, s *steps) (string, error) {
	var what string
	err := until(ctx, s, func(ctx context.Context) (bool, string, error) {
		q, err := o.quorum(ctx)
		if err != nil {
			return false, "", err
		}
		what = fmt.Sprintf("%d voters on machines", q.GetVoters())
		return q.GetBootstrapRetired() && q.GetVoters() >= q.GetDesiredVoters() && q.GetHealthyVoters() == q.GetVoters(),
			fmt.Sprintf("%d of %d voters; %s", q.GetVoters(), q.GetDesiredVoters(), q.GetWaitsFor()), nil
	})
	return what, err
}

func nodesReady(ctx context.Context, o *observer, s *steps) (string, error) {
	var ready int
	err := until(ctx, s, func(ctx context.Context) (bool, string, error) {
		list, wanted, err := o.machines(ctx)
		if err != nil {
			return false, "", err
		}
		nodes, err := nodev1.NewNodeServiceClient(o.client.Conn()).ListNodes(ctx, &nodev1.ListNodesRequest{})
		if err != nil {
			return false, "", err
		}
		ready = 0
		for _, n := range nodes.GetItems() {
			if isReady(n) {
				ready++
			}
		}
		return ready >= wanted && ready >= len(list), fmt.Sprintf("%d of %d Ready", ready, max(wanted, len(list))), nil
	})
	return fmt.Sprintf("%d Ready", ready), err
}

func isReady(n *nodev1.Node) bool {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetStatus() == "True"
		}
	}
	return false
}
