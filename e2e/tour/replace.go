package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

// The hook that a program outside of Windlass answers for: the program backup-hook, from deploy/examples/hooks.
const (
	backupHook    = "BackupFileSystem"
	backupOwner   = "my-backup-controller"
	backupProgram = "backup-hook"
)

// replaced is how long a replacement may take.
const replaced = 2 * time.Minute

// replace deletes the control-plane machine whose member leads, while a hook holds its instance and writes go on.
func (t *tour) replace(ctx context.Context) error {
	c, err := t.chooseLeader(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"lifecycleHooks":{"preTerminate":[{"name":%q,"owner":%q}]}}}`, backupHook, backupOwner)
	if _, err := t.windlass(ctx, "patch", "machine", c.old, "--type=merge", "-p", patch); err != nil {
		return err
	}
	t.saw("%s leads the quorum; its instance may not go before %s has made a backup", c.old, backupOwner)
	t.saw("from now on two writers create objects over REST, each %d times a second", time.Second/writesEvery)
	backups, err := os.MkdirTemp(t.dir, "backups-")
	if err != nil {
		return err
	}
	ws := t.startWriters(ctx, 2, "replace")
	r := &replacement{tour: t, chronicle: c, backups: backups}
	err = r.watch(ctx)
	if errWrite := ws.stop(); err == nil {
		err = errWrite
	}
	if err != nil {
		return err
	}
	if err := t.check(r.backedUp()); err != nil {
		return err
	}
	if err := t.afterwards(ctx, c, ws); err != nil {
		return err
	}
	owner := c.seen[taskCompleted].at.Sub(c.seen[taskPending].at)
	all := c.seen[machineGone].at.Sub(c.seen[deletionAsked].at)
	t.saw("while it went on, `windlass describe machine %s` said that it waits for:\n- %s", c.old,
		strings.Join(c.waits, "\n- "))
	t.paragraph(
		`%s was replaced in %.1f s, of which its hook's owner took %.1f s and Windlass %.1f s. The replacement came first and had its vote `+
			`before the old voter left; %d changes of the quorum were seen, and never were there fewer healthy voters than a majority. %d writes were acknowledged during that, `+
			`the slowest after %d ms, and all are there.`, c.old, all.Seconds(), owner.Seconds(), (all - owner).Seconds(),
		c.samples,
		len(ws.acknowledged()), ws.slowest().Milliseconds())
	return t.removeSets(ctx, tourLabel+"="+t.run)
}

// chooseLeader waits until the quorum rests and returns a chronicle of the replacement of the machine whose member
// leads.
func (t *tour) chooseLeader(ctx context.Context) (*chronicle, error) {
	var old string
	err := within(ctx, settled, "a quorum at rest", func(ctx context.Context) (bool, string, error) {
		q, err := t.cluster.quorum(ctx)
		old = leader(q)
		return atRest(q), q.String(), err
	})
	if err != nil {
		return nil, err
	}
	machines, err := t.cluster.listMachines(ctx, "master")
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(names(machines), func(name string) bool { return name == old })
	return newChronicle(old, others), t.check(
		expect(len(others) == 2, "three machines of the control plane, one of them "+old, "%s",
			strings.Join(names(machines), ", ")))
}

// replacement is one replacement while it goes on.
type replacement struct {
	*tour
	chronicle *chronicle
	backups   string                      // directory that the owner writes to
	cordoned  func(context.Context) error // what to do once the node is cordoned; nil for nothing
	began     time.Time
	owner     *exec.Cmd
	ended     chan error // of the owner
}

// watch asks for the deletion and prints what happens until the machine is gone.
func (r *replacement) watch(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, replaced)
	defer cancel()
	g, ctx := errgroup.WithContext(limited)
	seen := make(chan observation)
	w := witness{r.cluster, seen}
	if err := w.watch(ctx, g); err != nil {
		cancel()
		return errors.Join(err, g.Wait())
	}
	g.Go(func() error { w.describe(ctx, r.shell, r.chronicle.old); return nil })
	deleted := make(chan error, 1)
	args := []string{"delete", "machine", r.chronicle.old, "--wait"}
	r.began = time.Now()
	r.command(r.shell.line("windlass", args...)+" &", 0, "")
	g.Go(func() error {
		_, err := r.shell.output(ctx, "windlass", args...)
		deleted <- err
		return nil
	})
	err := r.listen(ctx, seen, deleted)
	cancel()
	return errors.Join(err, r.stopOwner(), g.Wait())
}

// listen prints what is seen until the machine and its node are gone and the command that deleted it has ended.
func (r *replacement) listen(ctx context.Context, seen <-chan observation, deleted <-chan error) error {
	ended := false
	// of nodes another service reports, perhaps a little later
	for !ended || !r.chronicle.has(machineGone) || !r.chronicle.has(nodeGone) {
		select {
		case o := <-seen:
			for _, s := range r.chronicle.add(o) {
				if err := r.at(ctx, s); err != nil {
					return err
				}
			}
		case err := <-deleted:
			if err != nil && ctx.Err() == nil {
				return err
			}
			ended = true
			r.moment(time.Since(r.began), "`windlass delete` returns")
		case err := <-r.ended:
			r.owner = nil
			return fmt.Errorf("%s ended before its work was done: %w", backupProgram, err)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return r.late()
			}
			return ctx.Err() // the watch that broke says why
		}
	}
	return r.check(expect(ended, "`windlass delete machine --wait` returns once the machine is gone", "it did not"))
}

// late says what had been seen when the time was over.
func (r *replacement) late() error {
	said := "nothing"
	if n := len(r.chronicle.waits); n > 0 {
		said = r.chronicle.waits[n-1]
	}
	return mismatch{{
		expected: fmt.Sprintf("machine %s gone within %s", r.chronicle.old, replaced),
		seen:     fmt.Sprintf("%d of the moments of a replacement; last it waited for: %s", len(r.chronicle.seen), said),
	}}
}

// at prints a moment, and does what belongs to it.
func (r *replacement) at(ctx context.Context, s sighting) error {
	if s.text != "" {
		r.moment(s.at.Sub(r.began), s.text)
	}
	switch s.moment {
	case quorumHookGone:
		q, err := r.cluster.quorum(ctx)
		if err != nil {
			return err
		}
		// The guardian takes its hook away only after it has seen the old member leave.
		return r.check(expect(member(q, r.chronicle.old) == nil && member(q, r.chronicle.replacement) != nil,
			"the old voter out of the quorum and the new one in it when hook "+quorumHook+" goes", "%s", q.String()))
	case nodeCordoned:
		if r.cordoned != nil {
			return r.cordoned(ctx)
		}
	case taskPending:
		return r.startOwner(ctx)
	}
	return nil
}

// startOwner starts the program that answers for the hook.
func (r *replacement) startOwner(ctx context.Context) error {
	line := backupProgram + " --owner " + backupOwner + " --out " + quote(r.backups)
	r.command(line+" &", 0, "")
	r.owner = r.shell.command(ctx, "sh", "-c", `set -e; settings=$(`+r.shell.line("windlass", "env")+
		`); eval "$settings"; exec `+line)
	var said strings.Builder
	r.owner.Stdout, r.owner.Stderr = &said, &said
	if err := r.owner.Start(); err != nil {
		return err
	}
	r.ended = make(chan error, 1)
	go func() {
		err := r.owner.Wait()
		r.ended <- fmt.Errorf("%w: %s", errors.Join(err, errEnded), lastLines(said.String(), 10))
	}()
	return nil
}

var errEnded = errors.New("exited")

// stopOwner ends the hook's program, if it runs; the context that it was started with has ended.
func (r *replacement) stopOwner() error {
	if r.owner == nil {
		return nil
	}
	select {
	case <-r.ended:
		return nil
	case <-time.After(2 * r.owner.WaitDelay):
		return fmt.Errorf("%s does not end", backupProgram)
	}
}

// backedUp says that the owner did its work.
func (r *replacement) backedUp() fact {
	// the pattern is well formed
	found, _ := filepath.Glob(filepath.Join(r.backups, r.chronicle.old+"-"+backupHook+".tar"))
	return expect(len(found) == 1, "a backup of "+r.chronicle.old+" in "+r.backups, "%q", found)
}

// afterwards checks what a replacement promises, and that the cluster is settled again.
func (t *tour) afterwards(ctx context.Context, c *chronicle, ws *writers) error {
	if err := t.whole(ctx, c); err != nil {
		return err
	}
	saved, err := t.nothingLost(ctx, ws)
	if err != nil {
		return err
	}
	moved, err := t.leadershipMoved(ctx, c)
	if err != nil {
		return err
	}
	facts := []fact{
		saved, moved,
		expect(c.most == 4, "four machines of the control plane for a while", "at most %d", c.most),
		expect(len(c.unsafe) == 0 && c.samples > 0,
			"never fewer healthy voters than a majority, and the new vote before the old one went", "%s",
			strings.Join(c.unsafe, "; ")),
		c.waitedFor(quorumHook, deletionAsked, quorumHookGone),
		c.waitedFor(backupHook, taskPending, backupHookGone),
	}
	if t.here() {
		none, err := t.noProcessOf(ctx, c.old)
		if err != nil {
			return err
		}
		facts = append(facts, none)
	}
	facts = append(facts, c.inOrder(deletionAsked, replacementMade, replacementRuns)...)
	facts = append(facts, c.inOrder(learnerJoined, learnerVotes, oldVoterLeft)...)
	facts = append(facts, c.inOrder(replacementRuns, quorumHookGone, nodeCordoned, nodeDrained, machineDrained,
		taskPending, taskClaimed, taskCompleted,
		backupHookGone, instanceGone, nodeGone, machineGone)...)
	return t.check(facts...)
}

// noProcessOf says that nothing of a machine runs on this one.
func (t *tour) noProcessOf(ctx context.Context, machine string) (fact, error) {
	p, err := t.listProcesses(ctx)
	var left []string
	for key := range p.pids {
		if key == agentProcess(machine) || strings.HasPrefix(key, machineProcess(machine, "")) {
			left = append(left, spoken(key))
		}
	}
	return expect(len(left) == 0, "no process of "+machine, "%s", strings.Join(left, ", ")), err
}

// leadershipMoved says that the old member gave its leadership away while it was still there: seen as it happened, or
// reported by an event.
func (t *tour) leadershipMoved(ctx context.Context, c *chronicle) (fact, error) {
	if c.has(leadershipMoved) {
		return expect(true, "", ""), nil
	}
	expect := expect
	out, err := t.shell.output(ctx, "windlass", "events")
	return expect(strings.Contains(out, "LeaderMoved"), "leadership moves before the leader's machine goes",
		"no leader but %s while it was a member", c.old), err
}

// whole waits until the control plane is as it was: three machines that run, three voters, and nodes that are Ready.
func (t *tour) whole(ctx context.Context, c *chronicle) error {
	return within(ctx, settled, "three machines of the control plane, all of them healthy voters",
		func(ctx context.Context) (bool, string, error) {
			machines, err := t.cluster.listMachines(ctx, "master")
			if err != nil {
				return false, "", err
			}
			q, err := t.cluster.quorum(ctx)
			running := !slices.ContainsFunc(machines, func(m *machinev1.Machine) bool {
				return m.GetStatus().GetPhase() != "Running"
			})
			return running && len(machines) == 3 && atRest(q) && q.GetVoters() == 3 && member(q, c.replacement) != nil,
				fmt.Sprintf("machines %s, quorum %s", strings.Join(names(machines), ", "), q), err
		})
}
