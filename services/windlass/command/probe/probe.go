// Package probe checks the programs, members, machines and pods of a cluster while it starts or changes. The cluster
// is on this machine or in the containers of one network.
package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
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
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
)

// Cluster checks a cluster on this machine, or in the containers of one network, during a start or a rotation.
type Cluster struct {
	Cluster *cluster.Cluster
	Client  *client.Client
	TLS     *tls.Config
}

// New returns a cluster to check, with the administrator's credentials, and a function that closes its connection.
func New(c *cluster.Cluster) (*Cluster, func(), error) {
	files := c.AdminFiles()
	conn, err := client.Dial(client.Target{Server: c.Gateway(), CA: files.CA, Cert: files.Cert, Key: files.Key})
	if err != nil {
		return nil, nil, err
	}
	cfg, err := files.ClientTLS("")
	if err != nil {
		return nil, nil, err
	}
	return &Cluster{Cluster: c, Client: client.New(conn), TLS: cfg}, func() { conn.Close() }, nil
}

// lookEvery is short compared with the shortest step, and long compared with the cost of one check.
const lookEvery = 40 * time.Millisecond

// Until calls look repeatedly until it reports done or ctx ends, and prints what it waits for. Errors that are normal
// while programs start (the cluster cannot be reached) are retried; any other error is returned.
func Until(ctx context.Context, s *progress.Steps, look func(context.Context) (done bool, waits string,
	err error),
) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for waits := ""; ; {
		done, seen, err := lookOnce(ctx, look)
		switch {
		case done:
			return nil
		case err != nil && !Passing(err):
			return err
		case err != nil && over(ctx) && waits != "": // what was seen before that counts
		case err != nil:
			waits = status.Convert(err).Message()
		default:
			waits = seen
		}
		s.Wait(waits)
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", waits, ctx.Err())
		case <-tick.C:
		}
	}
}

// over reports whether the time of ctx is over. A call that has it as its own limit may end a moment before.
func over(ctx context.Context) bool {
	end, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && time.Until(end) < lookEvery
}

func lookOnce(ctx context.Context, look func(context.Context) (bool, string, error)) (bool, string, error) {
	const patience = 3 * time.Second // a program that hangs is called again
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return look(ctx)
}

func Passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled:
		return true
	}
	return false
}

// Quorum returns the state of etcd's members.
func (o *Cluster) Quorum(ctx context.Context) (*etcdv1.Quorum, error) {
	return etcdv1.NewQuorumServiceClient(o.Client.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
}

// Serving checks at a program's own address whether it is ready.
func (o *Cluster) Serving(ctx context.Context, name string) (bool, error) {
	conn, err := grpc.NewClient("passthrough:///"+o.Cluster.Address(name),
		grpc.WithTransportCredentials(credentials.NewTLS(o.TLS)))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{},
		grpc.WaitForReady(true))
	return r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING, err
}

// CreateFile creates the objects of a file.
func (o *Cluster) CreateFile(ctx context.Context, file string, s *progress.Steps) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return o.Create(ctx, file, f, s)
}

// Create creates objects and returns their names.
func (o *Cluster) Create(ctx context.Context, file string, text io.Reader, s *progress.Steps) ([]string, error) {
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
		err = Until(ctx, s, func(ctx context.Context) (bool, string, error) {
			_, err := o.Client.Create(ctx, k, obj, false)
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

// Machines returns the machines, and how many the machine sets and the active control plane request.
func (o *Cluster) Machines(ctx context.Context) ([]*machinev1.Machine, int, error) {
	list, err := machinev1.NewMachineServiceClient(o.Client.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{})
	if err != nil {
		return nil, 0, err
	}
	sets, err := machinev1.NewMachineSetServiceClient(o.Client.Conn()).ListMachineSets(ctx,
		&machinev1.ListMachineSetsRequest{})
	if err != nil {
		return nil, 0, err
	}
	planes, err := machinev1.NewControlPlaneMachineSetServiceClient(o.Client.Conn()).ListControlPlaneMachineSets(ctx,
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

// NodeReady reports whether a node's condition Ready is True.
func NodeReady(n *nodev1.Node) bool {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetStatus() == "True"
		}
	}
	return false
}

// Direct checks a program at its own address.
func (o *Cluster) Direct(ctx context.Context, program, part string) (*grpc_health_v1.HealthCheckResponse, error) {
	conn, err := grpc.NewClient("passthrough:///"+o.Cluster.Address(program),
		grpc.WithTransportCredentials(credentials.NewTLS(o.TLS)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: part})
}
