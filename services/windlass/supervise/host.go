package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/process"
	nodeagent "github.com/windlass-dev/windlass/services/node-agent/service"
	"github.com/windlass-dev/windlass/services/windlass/access"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/rotation"
)

// resumePatience is how long the programs wait for the machine.
const resumePatience = 30 * time.Second

// runHost keeps the machine and the programs of a host running and their certificates valid until ctx ends, and attends
// for the host. The programs run on then. own is what it was first started from, if not by itself, by launch.
func runHost(ctx context.Context, c *cluster.Cluster, own ownExecutable, log *slog.Logger) error {
	for {
		err := runOnce(ctx, c, own, log)
		if !errors.Is(err, errLater) || ctx.Err() != nil {
			return err
		}
	}
}

// runOnce is runHost until another host recovers etcd.
func runOnce(ctx context.Context, c *cluster.Cluster, own ownExecutable, log *slog.Logger) error {
	if !c.Member.Worker {
		if err := setAsideIfLater(ctx, c, log); err != nil {
			return err
		}
	}
	executable, err := self()
	if err != nil {
		return err
	}
	s := process.NewSupervisor(c.Dir("run"), log)
	if err := os.MkdirAll(c.Dir("logs"), 0o700); err != nil {
		return err
	}
	cfg := nodeagent.HostConfig{
		Name: c.Member.Name, Address: c.Host(), Dir: c.Dir(), Executable: executable, Link: link(c), PodsDir: c.PodsDir,
		PodUsers: c.PodUsers(), Supervisor: s, Files: c.HostFiles(), Renews: true, GatewaysFile: c.GatewaysFile(), Log: log,
	}
	cfg.Runtime = c.Member.Runtime
	if c.Member.Files == cluster.FilesOfHost {
		cfg.Root, cfg.Observe, cfg.AllowedPaths = "/", c.Member.Observe, c.AllowedPaths
	}
	if !c.Member.Worker {
		follower, err := rotation.NewFollower(c, log)
		if err != nil {
			return err
		}
		cfg.Gateway, cfg.Renews, cfg.Certificates = c.Gateway(), false, follower
		cfg.Access = access.NewFollower(c, log)
	}
	agent := nodeagent.NewHost(cfg)
	programs, err := newPrograms(c, own, s, log)
	if err != nil {
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
		if err := programs.link(executable); err != nil {
			return err
		}
		// The member of etcd is the machine's: it comes first, since all else needs it. A wipe may take long.
		resumed := make(chan struct{})
		g.Go(func() error {
			defer close(resumed)
			if err := agent.Resume(ctx); err != nil {
				log.ErrorContext(ctx, "the machine of this host does not run", "error", err)
			}
			return nil
		})
		select {
		case <-resumed:
		case <-time.After(resumePatience):
		}
		if err := programs.begin(); err != nil {
			return err
		}
		g.Go(func() error {
			err := programs.run(ctx)
			if errors.Is(err, errRelaunch) { // the rest must not take longer than an end that is asked for
				time.AfterFunc(endPatience, func() { os.Exit(againCode) })
			}
			return err
		})
		<-resumed
		register(ctx, c, log)
		return agent.Run(ctx)
	})
	if !c.Member.Worker {
		g.Go(func() error { return Renew(ctx, c, log) })
		g.Go(func() error { return awaitLater(ctx, c, log) })
	}
	return g.Wait()
}

// register has the inventory know the host that began the cluster, once: no other host can join by its name then. The
// others are registered when they join.
func register(ctx context.Context, c *cluster.Cluster, log *slog.Logger) {
	for logged := ""; ctx.Err() == nil; backoff.Sleep(ctx, time.Second) {
		err := registerOnce(ctx, c)
		if err == nil {
			return
		}
		if text := fmt.Sprint(err); text != logged {
			logged = text
			level, message := slog.LevelInfo, "this host is not registered yet"
			if status.Code(err) == codes.AlreadyExists {
				level = slog.LevelError
				message = "the inventory has another host of this name or address, with another zone, address or roles: remove " +
					"that one with `windlass host remove`"
			}
			log.Log(ctx, level, message, "error", err)
		}
	}
}

// registerOnce does the next steps of register, of which each is done once: registration, the certificate of this
// host's agent, and a set that puts a member of etcd on each of three control-plane hosts, with the pools of nodes and
// hourly snapshots.
func registerOnce(ctx context.Context, c *cluster.Cluster) error {
	files := c.AdminFiles()
	if _, err := os.Stat(c.HostFiles().Cert); err == nil && c.Member.Registered {
		return nil
	}
	conn, err := client.Dial(client.Target{Server: c.Gateway(), CA: files.CA, Cert: files.Cert, Key: files.Key})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	hosts := hostv1.NewHostServiceClient(conn)
	var host *hostv1.Host
	if c.Member.Registered { // one that was removed is not registered again
		host, err = hosts.GetHost(ctx, &hostv1.GetHostRequest{Name: c.Member.Name})
	} else {
		host, err = hosts.RegisterHost(ctx, &hostv1.RegisterHostRequest{
			Name: c.Member.Name, Roles: []string{"control-plane"}, Zone: c.Member.Zone, Address: c.Member.Address,
		})
	}
	if err != nil {
		return err
	}
	if err := c.EnsureHostCertificate(host.GetMetadata().GetUid()); err != nil || c.Member.Registered {
		return err
	}
	if err := errors.Join(createControlPlane(ctx, conn), createPools(ctx, conn), createSchedule(ctx, conn)); err != nil {
		return err
	}
	_, err = cluster.ChangeHost(c.Dir(), func(s *cluster.Settings) { s.Member.Registered = true })
	c.Member.Registered = err == nil
	return err
}

// controlPlane is the set that a cluster on hosts begins with: any control-plane host will do. Users change it as any
// other one.
const controlPlane = `{
  "apiVersion": "machine.openshift.io/v1", "kind": "ControlPlaneMachineSet",
  "metadata": {"name": "cluster", "namespace": "openshift-machine-api"},
  "spec": {
    "state": "Active", "replicas": 3, "strategy": {"type": "RollingUpdate"},
    "selector": {"matchLabels": {
      "machine.openshift.io/cluster-api-machine-role": "master",
      "machine.openshift.io/cluster-api-machine-type": "master"
    }},
    "template": {
      "machineType": "machines_v1beta1_machine_openshift_io",
      "machines_v1beta1_machine_openshift_io": {
        "metadata": {"labels": {
          "machine.openshift.io/cluster-api-machine-role": "master",
          "machine.openshift.io/cluster-api-machine-type": "master"
        }},
        "spec": {
          "metadata": {"labels": {"node-role.kubernetes.io/control-plane": "", "node-role.kubernetes.io/master": ""}},
          "taints": [{"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"}],
          "providerSpec": {"value": {"apiVersion": "windlass.dev/v1", "kind": "InventoryMachineProviderSpec"}}
        }
      }
    }
  }
}`

func createControlPlane(ctx context.Context, conn grpc.ClientConnInterface) error {
	set := &machinev1.ControlPlaneMachineSet{}
	if err := protojson.Unmarshal([]byte(controlPlane), set); err != nil {
		return err
	}
	_, err := machinev1.NewControlPlaneMachineSetServiceClient(conn).CreateControlPlaneMachineSet(ctx,
		&machinev1.CreateControlPlaneMachineSetRequest{ControlPlaneMachineSet: set})
	return created(err)
}

// created returns the error of a creation; none if an earlier attempt was cut off after it.
func created(err error) error {
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

// createPools makes the two pools that a cluster begins with: of nodes of the control plane, and of all others. Without
// them a machine configuration would be accepted and change nothing. Each has a configuration that changes nothing:
// without any it would be degraded, and no update would begin. Source: OpenShift.
func createPools(ctx context.Context, conn grpc.ClientConnInterface) error {
	pools, configs := configv1.NewMachineConfigPoolServiceClient(conn), configv1.NewMachineConfigServiceClient(conn)
	for _, role := range []string{"master", "worker"} {
		empty, err := structpb.NewStruct(map[string]any{"ignition": map[string]any{"version": "3.5.0"}})
		if err != nil {
			return err
		}
		_, err = configs.CreateMachineConfig(ctx, &configv1.CreateMachineConfigRequest{
			MachineConfig: &configv1.MachineConfig{
				Metadata: &metav1.ObjectMeta{
					Name: "00-" + role, Labels: map[string]string{"machineconfiguration.openshift.io/role": role},
				},
				Spec: &configv1.MachineConfigSpec{Config: empty},
			},
		})
		if created(err) != nil {
			return err
		}
		_, err = pools.CreateMachineConfigPool(ctx, &configv1.CreateMachineConfigPoolRequest{
			MachineConfigPool: &configv1.MachineConfigPool{
				Metadata: &metav1.ObjectMeta{Name: role},
				Spec: &configv1.MachineConfigPoolSpec{
					MachineConfigSelector: &metav1.LabelSelector{
						MatchLabels: map[string]string{"machineconfiguration.openshift.io/role": role},
					},
					NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{nodeid.RolePrefix + role: ""}},
				},
			},
		})
		if created(err) != nil {
			return err
		}
	}
	return nil
}

// createSchedule has snapshots of etcd taken from the beginning, on the host of the guardian's leader: users who keep
// them elsewhere change its storage.
func createSchedule(ctx context.Context, conn grpc.ClientConnInterface) error {
	_, err := etcdv1.NewSnapshotScheduleServiceClient(conn).CreateSnapshotSchedule(ctx,
		&etcdv1.CreateSnapshotScheduleRequest{SnapshotSchedule: &etcdv1.SnapshotSchedule{
			Metadata: &metav1.ObjectMeta{Name: "hourly"},
			Spec:     &etcdv1.SnapshotScheduleSpec{Schedule: "@hourly", Retention: &etcdv1.SnapshotRetention{MaxNumber: 24}},
		}})
	return created(err)
}
