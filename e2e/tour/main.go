// Command tour tells on a running cluster what Windlass does: it looks at the cluster, replaces one of its control-plane
// machines, scales its workers, asks for plans, and breaks things. Each step is asked for as a user would ask, and what is told is
// checked: the program ends with exit code 1 at the first step that is not as told, and leaves the cluster as it is then.
//
// It can be run again on the same cluster, and touches no other.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
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
	run     string // tells the objects of this run from those of others
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("tour", flag.ContinueOnError)
	name := flags.String("name", "", "name of the cluster on this machine (default $WINDLASS_CLUSTER or main)")
	verbose := flags.Bool("verbose", false, "print all that the commands print")
	if err := flags.Parse(args); err != nil {
		return err
	}
	t := &tour{
		story: &story{out: out, verbose: *verbose},
		shell: shell{name: *name},
		run:   fmt.Sprintf("%x", time.Now().Unix()),
	}
	return t.tell(ctx)
}

// tell tells everything, from the first look to the table at the end.
func (t *tour) tell(ctx context.Context) error {
	defer func() {
		if t.cluster != nil {
			t.cluster.close()
		}
	}()
	if err := t.settle(ctx); err != nil {
		return err
	}
	for _, step := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"Look", t.look},
		{"Replace a control-plane machine", t.replace},
		{"Scale", t.scale},
		{"Plan", t.plan},
		{"Break it", t.breakIt},
	} {
		if err := t.chapter(step.title, func() error { return step.tell(ctx) }); err != nil {
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
	status, err := t.shell.output(ctx, "windlass", "status")
	if err != nil && status == "" {
		return fmt.Errorf("%w: `make up` starts a cluster", err)
	}
	if !strings.HasPrefix(field(status, "Supervisor"), "pid") {
		return fmt.Errorf("cluster %q is not up: `make up` brings it back\n%s", field(status, "Cluster"), status)
	}
	if t.cluster, err = connect(ctx, t.shell); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "A tour of cluster %q at %s\n", field(status, "Cluster"), t.cluster.url)
	if err := t.releaseMachines(ctx); err != nil {
		return err
	}
	err = until(ctx, "a cluster that is ready", func(ctx context.Context) (bool, string, error) {
		status, err := t.shell.output(ctx, "windlass", "status")
		return err == nil, lastLines(status, 30), nil
	})
	if err != nil {
		return err
	}
	return t.removeSets(ctx, tourLabel)
}

// releaseMachines removes the tour's hook from every machine: a tour that was interrupted left it there, and nobody else answers for it.
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
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"lifecycleHooks": map[string]any{"preTerminate": others}}})
		if err != nil {
			return err
		}
		if _, err := t.windlass(ctx, "patch", "machine", m.GetMetadata().GetName(), "--type=merge", "-p", string(patch)); err != nil {
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
