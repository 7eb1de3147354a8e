// Command tour shows on a running cluster what Windlass does: it lists the cluster, replaces one of its
// control-plane machines, scales its workers, asks for plans, breaks things, has pods placed, drained and evicted,
// configures nodes and updates the cluster. Each step uses the commands of a user, and checks what it says:
// the program ends with exit code 1 at the first step that fails, and leaves the cluster as it is then.
//
// It can be run again on the same cluster, and touches no other.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if exit, is := asWindlass(os.Args[1:]); is {
		os.Exit(exit)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

// tour is what the steps share.
type tour struct {
	*story
	shell   shell
	cluster *cluster
	run     string // distinguishes the objects of this run from others
	dir     string // for files
	example string // directory of the manifests that releases are made of
}

// here reports whether the cluster runs on this machine, so that its processes and files can be got at.
func (t *tour) here() bool { return t.shell.target == nil }

// settings are the flags of the program.
type settings struct {
	name, server, ca, cert, key string
	manifests                   string
	steps                       []int // nil means all
	verbose                     bool
}

func parse(args []string) (settings, error) {
	var s settings
	var steps string
	flags := flag.NewFlagSet("tour", flag.ContinueOnError)
	flags.StringVar(&s.name, "name", "", "name of the cluster on this machine (default $WINDLASS_CLUSTER or main)")
	flags.StringVar(&s.server, "server", "",
		"host:port of the gateway of a cluster elsewhere; what needs processes or files of its host is left out")
	flags.StringVar(&s.ca, "cacert", "", "file of the authority to trust, with --server")
	flags.StringVar(&s.cert, "cert", "", "file of your certificate, with --server")
	flags.StringVar(&s.key, "key", "", "file of its key, with --server")
	flags.StringVar(&s.manifests, "manifests", "deploy/examples/releases/"+exampleVersion,
		"directory of the manifests that releases are made of")
	flags.StringVar(&steps, "steps", "", "steps to run, as in 1,2,6 (default all)")
	flags.BoolVar(&s.verbose, "verbose", false, "print all that the commands print")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	for word := range strings.FieldsFuncSeq(steps, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > lastStep {
			return s, fmt.Errorf("--steps: %q is no number from 1 to %d", word, lastStep)
		}
		s.steps = append(s.steps, n)
	}
	given := 0
	for _, v := range []string{s.server, s.ca, s.cert, s.key} {
		if v != "" {
			given++
		}
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case given != 0 && given != 4:
		return s, errors.New("--server, --cacert, --cert and --key must be given together")
	case given != 0 && s.name != "":
		return s, errors.New("--name is for a cluster on this machine, --server for one elsewhere")
	}
	return s, nil
}

// target returns the settings of the environment for a cluster that is elsewhere, nil for one on this machine.
func (s settings) target() []string {
	if s.server == "" {
		return nil
	}
	return []string{"WINDLASS_SERVER=" + s.server, "WINDLASS_CACERT=" + s.ca, "WINDLASS_CERT=" + s.cert, "WINDLASS_KEY=" +
		s.key}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &tour{
		story: &story{out: out, verbose: s.verbose},
		shell: shell{name: s.name, target: s.target()},
		run:   fmt.Sprintf("%x", time.Now().Unix()),
		dir:   dir, example: s.manifests,
	}
	return t.play(ctx, s.steps)
}

// dirPrefix begins the names of directories for files of a tour.
const dirPrefix = "windlass-tour-"

// lastStep is the number of steps.
const lastStep = 25

// ofShell is what a step needs whose pods run a command of the host.
const ofShell = "it runs commands of the host"

// step is one part of the tour.
type step struct {
	title string
	run   func(context.Context) error
	needs string // what it needs of this machine; empty means that it runs on any cluster
	uses  string // program that it runs and that the machine may lack; empty if there is none
}

// lacks returns why a step cannot run here, empty if it can.
func (t *tour) lacks(s step) string {
	if s.needs != "" && !t.here() {
		return s.needs + ", and this one runs elsewhere"
	}
	if s.uses != "" {
		if _, err := exec.LookPath(s.uses); err != nil {
			return "it runs " + s.uses + ", which is not installed"
		}
	}
	return ""
}

func (t *tour) all() [lastStep]step {
	return [...]step{
		{title: "Look", run: t.look},
		{title: "Replace a control-plane machine", run: t.replace},
		{title: "Scale", run: t.scale},
		{title: "Plan", run: t.plan},
		{title: "Break it", run: t.breakIt, needs: "it kills processes of the cluster"},
		{title: "Place", run: t.place},
		{title: "Drain", run: t.drain},
		{title: "Taint and evict", run: t.taint},
		{title: "Configure nodes", run: t.configure, needs: "it reads the files of the machines"},
		{title: "Update", run: t.update, needs: "it makes releases in the directory of the cluster"},
		{title: "Override a hook", run: t.override},
		{title: "Repair", run: t.repair, needs: "it stops a process of the cluster"},
		{title: "Autoscale", run: t.autoscale},
		{title: "Recover", run: t.recoverQuorum, needs: "it makes a second cluster"},
		{title: "Rebalance", run: t.rebalance},
		{title: "Taint a machine set", run: t.taintSet},
		{title: "Add a scheduler", run: t.addScheduler, needs: "it issues a certificate of the cluster", uses: python},
		{title: "Preempt", run: t.preempt},
		{title: "Add an admission controller", run: t.admit, needs: "it changes a setting of the cluster", uses: python},
		{title: "Lose most of a zone", run: t.disrupt},
		{title: "Tie a pod to a volume", run: t.volume},
		{title: "Stop a roll-out", run: t.stopRollout},
		{title: "Limit a pod", run: t.limit, needs: ofShell},
		{title: "Change a secret", run: t.changeSecret, needs: ofShell},
		{title: "Lead traffic", run: t.leadTraffic, needs: "it calls a service from one of the cluster's hosts"},
	}
}

// play runs the steps that are asked for, all if none is, and prints the table at the end.
func (t *tour) play(ctx context.Context, steps []int) error {
	defer func() {
		if t.cluster != nil {
			t.cluster.close()
		}
	}()
	if err := t.settle(ctx); err != nil {
		return err
	}
	for i, step := range t.all() {
		n := i + 1
		if steps != nil && !slices.Contains(steps, n) {
			continue
		}
		if why := t.lacks(step); why != "" {
			t.skip(n, step.title, why)
			continue
		}
		if err := t.chapter(n, step.title, func() error { return step.run(ctx) }); err != nil {
			return err
		}
	}
	t.end()
	return nil
}

// settled is how long a cluster may take to come to rest after whatever was done to it before.
const settled = 2 * time.Minute

// settle waits until the cluster is ready, without what an earlier tour left behind.
func (t *tour) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settled)
	defer cancel()
	name := ""
	if t.here() {
		status, err := t.shell.output(ctx, "windlass", "status")
		if err != nil && status == "" {
			return fmt.Errorf("%w: `make up` starts a cluster", err)
		}
		if name = strconv.Quote(field(status, "Cluster")) + " "; !strings.HasPrefix(field(status, "Supervisor"), "pid") {
			return fmt.Errorf("cluster %sis not up: `make up` brings it back\n%s", name, status)
		}
	}
	var err error
	if t.cluster, err = connect(ctx, t.shell); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "A tour of cluster %sat %s\n", name, t.cluster.url)
	if t.here() {
		if err := t.wakeAgents(ctx); err != nil {
			return err
		}
	}
	if err := t.releaseMachines(ctx); err != nil {
		return err
	}
	if err := t.clearLeftovers(ctx); err != nil {
		return err
	}
	if err := until(ctx, "a cluster that is ready", t.ready); err != nil {
		return err
	}
	return t.removeSets(ctx, tourLabel)
}

// ready reports whether all machines run, all nodes are Ready with their configuration, and all members are healthy
// voters.
func (t *tour) ready(ctx context.Context) (bool, string, error) {
	if t.here() {
		if status, err := t.shell.output(ctx, "windlass", "status"); err != nil {
			return false, lastLines(status, 30), nil
		}
	}
	machines, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return false, "", err
	}
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return false, "", err
	}
	q, err := t.cluster.quorum(ctx)
	if err != nil {
		return false, "", err
	}
	pools, err := t.cluster.listPools(ctx)
	var wrong []string
	for _, f := range append(healthy(machines, nodes), expect(atRest(q), "a quorum at rest", "%s", q)) {
		if !f.holds {
			wrong = append(wrong, f.expected+": "+f.seen)
		}
	}
	for _, p := range pools {
		if !rolledOut(p) || ofTour(p) {
			wrong = append(wrong, "pool "+p.GetMetadata().GetName()+": "+fmt.Sprint(p.GetStatus()))
		}
	}
	return len(wrong) == 0, strings.Join(wrong, "\n"), err
}

// releaseMachines removes the tour's hook from every machine: a tour that was interrupted left it there, and nothing
// else answers for it.
func (t *tour) releaseMachines(ctx context.Context) error {
	machines, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return err
	}
	for _, m := range machines {
		hooks := m.GetSpec().GetLifecycleHooks().GetPreTerminate()
		if !hasHook(hooks, backupHook) {
			continue
		}
		others := []map[string]string{}
		for _, h := range hooks {
			if h.GetName() != backupHook {
				others = append(others, map[string]string{"name": h.GetName(), "owner": h.GetOwner()})
			}
		}
		patch,
			err := json.Marshal(map[string]any{"spec": map[string]any{"lifecycleHooks": map[string]any{"preTerminate": others}}})
		if err != nil {
			return err
		}
		if _, err := t.windlass(ctx, "patch", "machine", m.GetMetadata().GetName(), "--type=merge", "-p",
			string(patch)); err != nil {
			return err
		}
		t.saw("an earlier tour was interrupted: %s no longer waits for its hook", m.GetMetadata().GetName())
	}
	return nil
}

// removeSets deletes the machine sets that a selector of labels matches and waits until they are gone.
func (t *tour) removeSets(ctx context.Context, selector string) error {
	if out, err := t.shell.output(ctx, "windlass", "delete", "machinesets", "-l", selector); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return until(ctx, "the tour's machine sets to go", func(ctx context.Context) (bool, string, error) {
		list, err := t.cluster.listSets(ctx, selector)
		return len(list) == 0, fmt.Sprintf("%d are there", len(list)), err
	})
}
