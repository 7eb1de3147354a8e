// Package lifecycle makes the commands that start, stop and show the clusters of this machine, and the hidden ones
// that run their programs.
package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/example"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

type upFlags struct {
	from     string
	lifetime time.Duration
	timeout  time.Duration
	settings []string
	unset    []string
}

// NewUp returns the command up.
func NewUp(e *session.Env) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create and start a cluster on this machine, or restart an existing one",
		Long: `Start a cluster on this machine and wait until it is ready: the etcd quorum runs on the
control-plane machines and every node is Ready. The cluster keeps running in the background.

If the cluster exists but is down, it is restarted with its state. If it is running, its programs
keep running unchanged.

--set and --unset on a running cluster restart only the programs whose flags change. If a restarted program
does not become ready, the new settings are rejected and the previous settings are restored.`,
		Example: `  windlass up
  windlass up --name lab --from deploy/examples/first-cluster`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return up(cmd.Context(), e, f) },
	}
	cmd.Flags().StringVar(&f.from, "from", "",
		"directory of YAML files with the initial objects of a new cluster (default: the first-cluster example)")
	cmd.Flags().DurationVar(&f.lifetime, "certificate-lifetime", 0, "lifetime of a new cluster's certificates (default "+
		cluster.DefaultLifetime.String()+")")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait for the cluster to be ready")
	cmd.Flags().StringArrayVar(&f.settings, "set", nil,
		"flag of one of the cluster's programs, as program.flag=value; stored with the cluster, replaces an earlier value")
	cmd.Flags().StringArrayVar(&f.unset, "unset", nil,
		"flag of one of the cluster's programs, as program.flag; removes what --set stored, so that its default applies")
	return cmd
}

func up(ctx context.Context, e *session.Env, f upFlags) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s := progress.New(e.Out)
	c, fresh, err := openOrCreate(ctx, e, f)
	if err != nil {
		return err
	}
	word := "restarting"
	if fresh {
		word = "starting"
	}
	fmt.Fprintf(e.Out, "%s cluster %q at https://%s\n", word, c.Name, c.Gateway())
	fmt.Fprintln(e.Out, podsRunAs(c))
	if c.Network == 0 {
		fmt.Fprintln(e.Out,
			"  pods have the addresses of their machines, and share their ports: no range of addresses is free")
	}
	alive, err := supervise.Alive(c)
	if err != nil {
		return err
	}
	s.Begin("certificates")
	made, err := c.EnsureCertificates(time.Now())
	if err != nil {
		return err
	}
	s.Done(fmt.Sprintf("%d created or renewed", made))
	if fresh {
		if err := c.EnsureRelease(time.Now()); err != nil {
			return err
		}
	}
	if to := cluster.MergeSettings(c.ProgramFlags, f.settings, f.unset); !fresh && alive != 0 && len(f.settings)+
		len(f.unset) > 0 {
		if err := changeSettings(ctx, e, c, to, s); err != nil {
			return err
		}
	}
	s.Begin("supervisor")
	pid, started, err := supervise.Start(c, e.Program)
	if err != nil {
		return err
	}
	s.Done(fmt.Sprintf("pid %d%s", pid, map[bool]string{false: ", already running", true: ""}[started]))
	if err := bringUp(ctx, e, c, s); err != nil {
		return explainUp(e, err, c)
	}
	fmt.Fprintf(e.Out, "cluster %q is ready after %.1f s: windlass status%s\n", c.Name, s.Total().Seconds(),
		session.NameFlag(c))
	return nil
}

// podsRunAs describes whether pods are isolated from the cluster's own user, and who may therefore create them.
func podsRunAs(c *cluster.Cluster) string {
	if users := c.PodUsers(); users.Count > 0 {
		return fmt.Sprintf("  pods run as separate users (%s): editors may create them", users.String())
	}
	return fmt.Sprintf(
		"  pods run as user %d, who can read the cluster's keys; only root can run them as separate users.\n"+
			"  Only administrators may create pods and run commands in them; bind the role pod-creator to users whom you\n"+
			"  trust with the keys.", os.Geteuid())
}

// bringUp waits step by step until the cluster is ready.
func bringUp(ctx context.Context, e *session.Env, c *cluster.Cluster, s *progress.Steps) error {
	o, end, err := probe.New(c)
	if err != nil {
		return err
	}
	defer end()
	return runSteps(ctx, o, s, append([]step{
		{"etcd", etcdAnswers},
		{"services", servicesReady},
		{"documents", func(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
			return seed(ctx, e, c, o, s)
		}},
	}, clusterSteps()...))
}

// step is one step of a cluster's start; do returns a short description of its outcome.
type step struct {
	name string
	do   func(context.Context, *probe.Cluster, *progress.Steps) (string, error)
}

// clusterSteps are the steps that a cluster takes by itself once its initial objects are created.
func clusterSteps() []step {
	return []step{
		{"machines", machinesRun},
		{"quorum", quorumStands},
		{"nodes", nodesReady},
		{"pods", podsRun},
		{"operators", operatorsAvailable},
	}
}

func runSteps(ctx context.Context, o *probe.Cluster, s *progress.Steps, list []step) error {
	for _, step := range list {
		s.Begin(step.name)
		outcome, err := step.do(ctx, o, s)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		s.Done(outcome)
	}
	return nil
}

// explainUp adds to the error of a start where to find the cause.
func explainUp(e *session.Env, err error, c *cluster.Cluster) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not ready in time: %w", err)
	}
	return fmt.Errorf("%w\nSee the programs' logs in %s, or run `windlass status%s`", err, c.Dir("logs"),
		session.NameFlag(c))
}

func openOrCreate(ctx context.Context, e *session.Env, f upFlags) (c *cluster.Cluster, fresh bool, err error) {
	if err := cluster.CheckSettings(f.settings, f.unset); err != nil {
		return nil, false, err
	}
	unlock, err := cluster.Lock()
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	c, err = cluster.Open(e.ClusterName())
	if err == nil {
		return c, false, reopen(ctx, e, c, f)
	}
	if !errors.Is(err, cluster.ErrNone) {
		return nil, false, err
	}
	documents, err := readDocuments(f.from)
	if err != nil {
		return nil, false, err
	}
	c, err = cluster.Create(ctx, cluster.Settings{
		Name: e.ClusterName(), Lifetime: cluster.Lifetime(f.lifetime),
		ProgramFlags: f.settings,
	})
	if err != nil {
		return nil, false, err
	}
	return c, true, keepDocuments(c, documents)
}

// reopen prepares an existing cluster for a restart. It does not change the settings of a running one.
func reopen(ctx context.Context, e *session.Env, c *cluster.Cluster, f upFlags) error {
	if err := c.CheckFormat(); err != nil {
		return err
	}
	if f.lifetime != 0 && cluster.Lifetime(f.lifetime) != c.Lifetime {
		return fmt.Errorf("cluster %q has a certificate lifetime of %s: --certificate-lifetime applies to new clusters only",
			c.Name,
			time.Duration(c.Lifetime))
	}
	if f.from != "" && c.Seeded {
		if same, err := keeps(c, f.from); err != nil {
			return err
		} else if !same {
			fmt.Fprintf(e.Err,
				"Warning: cluster %q was created from other files than those in %s; to change it, run `windlass apply -f %s`\n",
				c.Name, f.from, f.from)
		}
	}
	pid, err := supervise.Alive(c)
	if err != nil || pid != 0 {
		return err
	}
	c.ProgramFlags = cluster.MergeSettings(c.ProgramFlags, f.settings, f.unset)
	if err := c.EnsureNetwork(ctx); err != nil {
		return err
	}
	if err := c.EnsurePodUsers(); err != nil {
		return err
	}
	return c.Save()
}

// keeps reports whether a cluster was created from the documents of a directory.
func keeps(c *cluster.Cluster, dir string) (bool, error) {
	documents, err := readDocuments(dir)
	if err != nil {
		return false, err
	}
	for name, raw := range documents {
		if kept, err := os.ReadFile(c.Dir("documents", name)); err != nil || !bytes.Equal(kept, raw) {
			return false, nil
		}
	}
	return true, nil
}

// readDocuments returns the files with the initial objects of a new cluster, by name.
func readDocuments(dir string) (map[string][]byte, error) {
	if dir == "" {
		return example.FirstCluster()
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no *.yaml files in %q", dir)
	}
	out := map[string][]byte{}
	for _, f := range found {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		out[filepath.Base(f)] = raw
	}
	return out, nil
}

// keepDocuments copies the documents into the cluster's directory, so that an interrupted start resumes with the same
// ones.
func keepDocuments(c *cluster.Cluster, documents map[string][]byte) error {
	if err := os.MkdirAll(c.Dir("documents"), 0o700); err != nil {
		return err
	}
	for name, raw := range documents {
		if err := os.WriteFile(c.Dir("documents", name), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// seed creates the initial objects of a new cluster. It does not change objects that exist.
func seed(ctx context.Context, e *session.Env, c *cluster.Cluster, o *probe.Cluster, s *progress.Steps) (string,
	error,
) {
	if c.Seeded {
		return "created before", nil
	}
	files, err := filepath.Glob(c.Dir("documents", "*.yaml"))
	if err != nil {
		return "", err
	}
	var names []string
	for _, f := range files {
		created, err := o.CreateFile(ctx, f, s)
		if err != nil {
			return "", err
		}
		names = append(names, created...)
	}
	c.Seeded = true
	return strings.Join(names, ", "), c.Save()
}
