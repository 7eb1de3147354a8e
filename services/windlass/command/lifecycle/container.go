package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/example"
	"github.com/windlass-dev/windlass/services/windlass/program"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

// containerFlags select the cluster that the containers belong to.
type containerFlags struct {
	dir, subnet string
	lifetime    time.Duration
}

func (f containerFlags) cluster(e *session.Env) *cluster.Cluster {
	return cluster.InContainers(f.dir, cluster.Settings{
		Name: e.ClusterName(), Subnet: f.subnet,
		Lifetime: cluster.Lifetime(f.lifetime),
	})
}

// NewContainer makes the commands that compose.yaml runs: the tasks of the supervisor, each in a container. Each of
// forCluster makes a further subcommand, which acts on the cluster that the containers belong to.
func NewContainer(e *session.Env,
	forCluster ...func(*session.Env, func() (*cluster.Cluster, error)) *cobra.Command,
) *cobra.Command {
	var f containerFlags
	cmd := &cobra.Command{
		Use: "container", Short: "Run a part of a cluster in containers (see compose.yaml)", Hidden: true,
	}
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.dir, "dir", "/cluster", "directory of the cluster; each container mounts a part of it")
	fs.StringVar(&f.subnet, "subnet", "172.31.250", "first three numbers of the containers' network")
	fs.DurationVar(&f.lifetime, "certificate-lifetime", cluster.DefaultLifetime, "lifetime of the certificates")
	own := func() (*cluster.Cluster, error) { return f.cluster(e), nil }
	for _, subcommand := range forCluster {
		cmd.AddCommand(subcommand(e, own))
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "certificates",
			Short: "Create missing certificates and renew expiring ones until stopped",
			Args:  cobra.NoArgs,
			RunE:  func(cmd *cobra.Command, _ []string) error { return keepCertificates(cmd.Context(), e, f.cluster(e)) },
		},
		&cobra.Command{
			Use: "run PROGRAM", Short: "Run one program", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				spec := f.cluster(e).Spec(args[0], e.Program)
				return program.Run(cmd.Context(), args[0], spec.Args[2:], terminal.Raw(e.Err)) // after "serve PROGRAM"
			},
		},
		&cobra.Command{
			Use: "healthy PROGRAM", Short: "Exit with 0 if the program in this container is ready", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				if args[0] == "certificates" {
					_, err := os.Stat(certificatesMade)
					return err
				}
				return healthy(cmd.Context(), f.cluster(e), args[0])
			},
		},
		&cobra.Command{
			Use: "seed", Short: "Create the initial objects of a new cluster and wait until it is ready", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return seedContainers(cmd.Context(), e, f.cluster(e)) },
		},
	)
	return cmd
}

// keepCertificates creates missing certificates, then the file for which `healthy certificates` checks, and renews
// certificates until ctx ends.
func keepCertificates(ctx context.Context, e *session.Env, c *cluster.Cluster) error {
	if err := forgetOldAdmin(c); err != nil {
		return err
	}
	made, err := c.EnsureCertificates(time.Now())
	if err == nil {
		err = c.EnsureRelease(time.Now())
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(e.Out, "%d created or renewed\n", made); err != nil {
		return err
	}
	if err := os.WriteFile(certificatesMade, nil, 0o600); err != nil {
		return err
	}
	return supervise.Renew(ctx, c, slog.New(slog.NewJSONHandler(terminal.Raw(e.Err), nil)))
}

// certificatesMade is in the container's temporary directory, so that it does not exist after a restart of the
// container.
var certificatesMade = filepath.Join(os.TempDir(), "windlass-certificates-made")

// forgetOldAdmin removes the administrator's certificate of a removed cluster: its directory is on the host and
// outlives the volumes.
func forgetOldAdmin(c *cluster.Cluster) error {
	files := c.AdminFiles()
	known, err := os.ReadFile(files.CA)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(c.Dir("pki", "windlass-ca.crt"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// the file may contain a second authority during a rotation
	if len(authority) > 0 && bytes.Contains(known, authority) {
		return nil
	}
	return errors.Join(os.RemoveAll(files.Cert), os.RemoveAll(files.Key), os.RemoveAll(files.CA))
}

// healthPatience limits one health check.
const healthPatience = 3 * time.Second

// healthy checks with the program's own certificate whether the program of this container is ready.
func healthy(ctx context.Context, c *cluster.Cluster, name string) error {
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	files := identity.Files{
		Cert: c.Service(name, "tls", "tls.crt"), Key: c.Service(name, "tls", "tls.key"),
		CA: c.Service(name, "tls", "ca.crt"),
	}
	cfg, err := files.ClientTLS("localhost")
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+c.LocalAddress(name),
		grpc.WithTransportCredentials(credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI(name)))))
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return errors.New(r.GetStatus().String())
	}
	return nil
}

// seedContainers runs the steps of `windlass up` that follow the start of the programs.
func seedContainers(ctx context.Context, e *session.Env, c *cluster.Cluster) error {
	o, end, err := probe.New(c)
	if err != nil {
		return err
	}
	defer end()
	s := progress.New(e.Out)
	return runSteps(ctx, o, s, append([]step{{"documents", seedExample}}, clusterSteps()...))
}

// seedExample creates the objects of the first-cluster example. It does not change objects that exist.
func seedExample(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	documents, err := example.FirstCluster()
	if err != nil {
		return "", err
	}
	var names []string
	for _, file := range slices.Sorted(maps.Keys(documents)) {
		created, err := o.Create(ctx, file, bytes.NewReader(documents[file]), s)
		if err != nil {
			return "", err
		}
		names = append(names, created...)
	}
	return strings.Join(names, ", "), nil
}
