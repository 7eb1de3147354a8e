package supervise

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// RunHost keeps the programs of a host running and their certificates valid until ctx ends. The programs run on then.
func RunHost(ctx context.Context, c *cluster.Cluster, executable string, log *slog.Logger) error {
	s := process.NewSupervisor(c.Dir("run"), log)
	if err := os.MkdirAll(c.Dir("logs"), 0o700); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Run(ctx) })
	g.Go(func() error { // as the one supervisor of the host
		select {
		case <-s.Active():
		case <-ctx.Done():
			return nil
		}
		for _, name := range c.Programs() {
			if err := s.Ensure(c.Spec(name, executable)); err != nil {
				return err
			}
		}
		return register(ctx, c, log)
	})
	g.Go(func() error { return Renew(ctx, c, log) })
	return g.Wait()
}

// register has the inventory know the host that began the cluster, once: no other host can join by its name then. The
// others are registered when they join.
func register(ctx context.Context, c *cluster.Cluster, log *slog.Logger) error {
	logged := ""
	for ctx.Err() == nil && !c.Member.Registered {
		err := registerOnce(ctx, c)
		if err == nil {
			c.Member.Registered = true
			return c.Save()
		}
		if status.Code(err) == codes.AlreadyExists {
			log.ErrorContext(ctx, "this host is not registered: another one has its name or its address", "error", err)
			return nil
		}
		if text := fmt.Sprint(err); text != logged {
			logged = text
			log.InfoContext(ctx, "this host is not registered yet", "error", err)
		}
		backoff.Sleep(ctx, time.Second)
	}
	return nil
}

func registerOnce(ctx context.Context, c *cluster.Cluster) error {
	files := c.AdminFiles()
	conn, err := client.Dial(client.Target{Server: c.Gateway(), CA: files.CA, Cert: files.Cert, Key: files.Key})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = hostv1.NewHostServiceClient(conn).RegisterHost(ctx, &hostv1.RegisterHostRequest{
		Name: c.Member.Name, Roles: []string{"control-plane"}, Zone: c.Member.Zone, Address: c.Member.Address,
	})
	return err
}
