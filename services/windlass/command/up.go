package command

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

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/example"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

type upFlags struct {
	from     string
	lifetime time.Duration
	timeout  time.Duration
	settings []string
}

func newUp(e *env) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster on this machine, or bring one back",
		Long: `Start a cluster on this machine and wait until it is ready: its control-plane machines carry the etcd quorum and every node
is Ready. The cluster then runs on in the background. Called again it brings the same cluster back, with its state; if it runs already,
its programs are taken over as they are. --set on a cluster that runs starts the programs again whose flags change, and no others; settings
with which one of them does not become ready are refused, and those before stay in force.`,
		Example: `  windlass up
  windlass up --name lab --from deploy/examples/first-cluster`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.up(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.from, "from", "", "directory of YAML documents that a new cluster begins with (default: the first-cluster example)")
	cmd.Flags().DurationVar(&f.lifetime, "certificate-lifetime", 0, "lifetime of a new cluster's certificates (default "+cluster.DefaultLifetime.String()+")")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait for the cluster to be ready")
	cmd.Flags().StringArrayVar(&f.settings, "set", nil, "flag of one of the programs, as program.flag=value; kept with the cluster, in place of what it had for the same flag")
	return cmd
}

// clusterName returns the name of the cluster on this machine that the user means.
func (e *env) clusterName() string {
	if e.target.Cluster != "" {
		return e.target.Cluster
	}
	if name := os.Getenv(client.EnvCluster); name != "" {
		return name
	}
	return cluster.DefaultName
}

// cluster returns the cluster on this machine that the user means.
func (e *env) cluster() (*cluster.Cluster, error) {
	c, err := cluster.Open(e.clusterName())
	if errors.Is(err, cluster.ErrNone) {
		return nil, fmt.Errorf("%w: %s", err, cluster.Others())
	}
	return c, err
}

func (e *env) up(ctx context.Context, f upFlags) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s := newSteps(e.out)
	c, fresh, err := e.openOrCreate(f)
	if err != nil {
		return err
	}
	word := "bringing back"
	if fresh {
		word = "starting"
	}
	fmt.Fprintf(e.out, "%s cluster %q at https://%s\n", word, c.Name, c.Gateway())
	fmt.Fprintln(e.out, podsRunAs(c))
	alive, err := supervise.Alive(c)
	if err != nil {
		return err
	}
	s.begin("certificates")
	made, err := c.EnsureCertificates(time.Now())
	if err != nil {
		return err
	}
	s.done(fmt.Sprintf("%d made or renewed", made))
	if fresh {
		if err := c.EnsureRelease(time.Now()); err != nil {
			return err
		}
	}
	if to := mergeSettings(c.ProgramFlags, f.settings); !fresh && alive != 0 && len(f.settings) > 0 {
		if err := e.changeSettings(ctx, c, to, s); err != nil {
			return err
		}
	}
	s.begin("supervisor")
	pid, started, err := supervise.Start(c, e.program)
	if err != nil {
		return err
	}
	s.done(fmt.Sprintf("pid %d%s", pid, map[bool]string{false: ", was running", true: ""}[started]))
	if err := e.bringUp(ctx, c, s); err != nil {
		return e.explainUp(err, c)
	}
	fmt.Fprintf(e.out, "cluster %q is ready after %.1f s: windlass status%s\n", c.Name, s.total().Seconds(), nameFlag(c))
	return nil
}

// podsRunAs says whether pods are kept apart from the cluster, and what that means for who may create them.
func podsRunAs(c *cluster.Cluster) string {
	if users := c.PodUsers(); users.Count > 0 {
		return fmt.Sprintf("  pods run under users of their own (%s): editors may create them", users.String())
	}
	return fmt.Sprintf("  pods run as user %d, who has the cluster's keys, since only root can run them under users of their own:\n"+
		"  creating pods and commands in them are administrators' rights; bind the role pod-creator to those whom you trust with the keys", os.Geteuid())
}

// bringUp waits step by step until the cluster is ready.
func (e *env) bringUp(ctx context.Context, c *cluster.Cluster, s *steps) error {
	o, end, err := newObserver(c)
	if err != nil {
		return err
	}
	defer end()
	return runSteps(ctx, o, s, append([]step{
		{"etcd", etcdAnswers},
		{"services", servicesReady},
		{"documents", func(ctx context.Context, o *observer, s *steps) (string, error) { return e.seed(ctx, c, o, s) }},
	}, clusterSteps()...))
}

// step is one thing that a cluster comes to on its way to being ready; do returns in a few words what came of it.
type step struct {
	name string
	do   func(context.Context, *observer, *steps) (string, error)
}

// clusterSteps is what a cluster does by itself once it has its documents.
func clusterSteps() []step {
	return []step{{"machines", machinesRun}, {"quorum", quorumStands}, {"nodes", nodesReady}, {"pods", podsRun}}
}

func runSteps(ctx context.Context, o *observer, s *steps, list []step) error {
	for _, step := range list {
		s.begin(step.name)
		outcome, err := step.do(ctx, o, s)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		s.done(outcome)
	}
	return nil
}

// explainUp adds where to look to the error of a start.
func (e *env) explainUp(err error, c *cluster.Cluster) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not ready in time: %w", err)
	}
	return fmt.Errorf("%w\nthe programs' logs are in %s; `windlass status%s` says what runs", err, c.Dir("logs"), nameFlag(c))
}

// nameFlag is how to name a cluster on the command line.
func nameFlag(c *cluster.Cluster) string {
	if c.Name == cluster.DefaultName {
		return ""
	}
	return " --name " + c.Name
}

func (e *env) openOrCreate(f upFlags) (c *cluster.Cluster, fresh bool, err error) {
	for _, s := range f.settings {
		if err := cluster.CheckSetting(s); err != nil {
			return nil, false, err
		}
	}
	unlock, err := cluster.Lock()
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	c, err = cluster.Open(e.clusterName())
	if err == nil {
		return c, false, e.reopen(c, f)
	}
	if !errors.Is(err, cluster.ErrNone) {
		return nil, false, err
	}
	documents, err := readDocuments(f.from)
	if err != nil {
		return nil, false, err
	}
	c, err = cluster.Create(cluster.Settings{Name: e.clusterName(), Lifetime: cluster.Lifetime(f.lifetime), ProgramFlags: f.settings})
	if err != nil {
		return nil, false, err
	}
	return c, true, keepDocuments(c, documents)
}

// reopen prepares a cluster that is there for being brought back. What a running one changes by is not changed here.
func (e *env) reopen(c *cluster.Cluster, f upFlags) error {
	if err := c.CheckFormat(); err != nil {
		return err
	}
	if f.lifetime != 0 && cluster.Lifetime(f.lifetime) != c.Lifetime {
		return fmt.Errorf("cluster %q has certificates for %s: --certificate-lifetime is for new clusters", c.Name, time.Duration(c.Lifetime))
	}
	if f.from != "" && c.Seeded {
		if same, err := keeps(c, f.from); err != nil {
			return err
		} else if !same {
			fmt.Fprintf(e.err, "Warning: cluster %q began with other documents than those of %s: `windlass apply -f %s` changes what it has\n", c.Name, f.from, f.from)
		}
	}
	pid, err := supervise.Alive(c)
	if err != nil || pid != 0 {
		return err
	}
	c.ProgramFlags = mergeSettings(c.ProgramFlags, f.settings)
	if err := c.EnsurePodUsers(); err != nil {
		return err
	}
	return c.Save()
}

// keeps reports whether a cluster began with the documents of a directory.
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

// readDocuments returns the files that a new cluster begins with, by name.
func readDocuments(dir string) (map[string][]byte, error) {
	if dir == "" {
		return example.FirstCluster()
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no *.yaml in %q", dir)
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

// keepDocuments puts the documents into the cluster's directory, so that a start that was interrupted goes on with the same ones.
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

// seed creates the documents of a new cluster. What is there already is left as it is.
func (e *env) seed(ctx context.Context, c *cluster.Cluster, o *observer, s *steps) (string, error) {
	if c.Seeded {
		return "created before", nil
	}
	files, err := filepath.Glob(c.Dir("documents", "*.yaml"))
	if err != nil {
		return "", err
	}
	var names []string
	for _, f := range files {
		created, err := o.createFile(ctx, f, s)
		if err != nil {
			return "", err
		}
		names = append(names, created...)
	}
	c.Seeded = true
	return strings.Join(names, ", "), c.Save()
}
