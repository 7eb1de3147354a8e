package faults

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// pauseFor is longer than every grace of the cluster: leases, heartbeats, learners.
const pauseFor = 60 * time.Second

func TestFaultsAPauseOfTheWholeCluster(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	before := objects(t, c)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(before)), func(k string) bool {
		return strings.HasPrefix(k, "pod ")
	}) {
		t.Error("no pod runs that could be evicted")
	}
	known := reported(t, c, time.Time{}) // an earlier test set clocks forward: times alone do not say what is new
	if len(known) == 0 {
		t.Error("no event reports how the cluster was made, so silence later would mean nothing")
	}
	began := time.Now()
	if err := c.PauseAll(); err != nil {
		t.Fatal(err)
	}
	// A paused cluster takes nothing from another one.
	t.Run("the certificates of another cluster expire", certificatesRunOut)
	timer := time.NewTimer(time.Until(began.Add(pauseFor)))
	<-timer.C
	asleep, cancel := context.WithTimeout(t.Context(), time.Second)
	if _, err := c.Quorum(asleep); err == nil {
		t.Error("the cluster answers although it is paused")
	}
	cancel()
	awake := time.Now()
	if err := c.ContinueAll(); err != nil {
		t.Fatal(err)
	}
	c.Settle(patience)
	t.Logf("healthy again %s after a pause of %s", time.Since(awake).Round(10*time.Millisecond),
		awake.Sub(began).Round(time.Second))
	c.Hold(10*time.Second, "nothing is replaced, deleted, drained, evicted or restarted",
		func(ctx context.Context) (string, error) { return differs(ctx, c, before) })
	for which, text := range reported(t, c, awake) {
		if known[which] == "" {
			t.Error(text)
		}
	}
}

// reported returns the events since then about a machine that is deleted or a node that is given up, by uid and
// revision.
func reported(t *testing.T, c *harness.Cluster, since time.Time) map[string]string {
	t.Helper()
	out := map[string]string{}
	list, err := c.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		text := fmt.Sprintf("%s %s/%s: %s", e.GetReason(), e.GetInvolvedObject().GetKind(), e.GetInvolvedObject().GetName(),
			e.GetMessage())
		for _, word := range []string{
			"Drain", "Delete", "Schedulable", "NotReady", "Create", "Member", "Taint", "Evict",
			"Killing",
		} {
			if strings.Contains(e.GetReason(), word) && e.GetLastTimestamp().AsTime().After(since) {
				out[e.GetMetadata().GetUid()+" "+e.GetMetadata().GetResourceVersion()] = text
			}
		}
	}
	return out
}

// object is what must stay of an object.
type object struct {
	UID      string
	Deleting bool
	Cordoned bool
	Ready    string // since when its Ready condition is as it is
	Restarts int
}

// objects returns all machines, nodes, sets, drains and pods.
func objects(t *testing.T, c *harness.Cluster) map[string]object {
	t.Helper()
	var out map[string]object
	c.Wait(patience, "a list of everything", func(ctx context.Context) (bool, string, error) {
		var err error
		out, err = list(ctx, c)
		return err == nil, "", err
	})
	return out
}

func list(ctx context.Context, c *harness.Cluster) (map[string]object, error) {
	out := map[string]object{}
	note := func(kind string, m *metav1.ObjectMeta) object {
		o := object{UID: m.GetUid(), Deleting: m.GetDeletionTimestamp() != nil}
		out[kind+" "+m.GetName()] = o
		return o
	}
	machines, err := c.Machines(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, m := range machines {
		note("machine", m.GetMetadata())
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		o := note("node", n.GetMetadata())
		o.Cordoned = n.GetSpec().GetUnschedulable()
		for _, cond := range n.GetStatus().GetConditions() {
			if cond.GetType() == "Ready" {
				o.Ready = cond.GetStatus() + " since " + cond.GetLastTransitionTime().AsTime().Format(time.RFC3339)
			}
		}
		out["node "+n.GetMetadata().GetName()] = o
	}
	sets, err := machinev1.NewMachineSetServiceClient(c.Conn()).ListMachineSets(ctx, &machinev1.ListMachineSetsRequest{})
	if err != nil {
		return nil, err
	}
	for _, s := range sets.GetItems() {
		note("machineset", s.GetMetadata())
	}
	planes, err := machinev1.NewControlPlaneMachineSetServiceClient(c.Conn()).ListControlPlaneMachineSets(ctx,
		&machinev1.ListControlPlaneMachineSetsRequest{})
	if err != nil {
		return nil, err
	}
	for _, s := range planes.GetItems() {
		note("controlplanemachineset", s.GetMetadata())
	}
	drains, err := nodev1.NewDrainServiceClient(c.Conn()).ListDrains(ctx, &nodev1.ListDrainsRequest{})
	if err != nil {
		return nil, err
	}
	for _, d := range drains.GetItems() {
		note("drain", d.GetMetadata())
	}
	pods, err := c.Pods(ctx, "")
	for _, p := range pods {
		o := note("pod", p.GetMetadata())
		for _, s := range p.GetStatus().GetContainerStatuses() {
			o.Restarts += int(s.GetRestartCount())
		}
		out["pod "+p.GetMetadata().GetName()] = o
	}
	return out, err
}

// differs says how what is there differs from what was there.
func differs(ctx context.Context, c *harness.Cluster, before map[string]object) (string, error) {
	now, err := list(ctx, c)
	if err != nil {
		return "", err
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(now)) {
		if was, ok := before[k]; !ok {
			out = append(out, k+" is new")
		} else if was != now[k] {
			out = append(out, fmt.Sprintf("%s was %+v and is %+v", k, was, now[k]))
		}
	}
	for k := range before {
		if _, ok := now[k]; !ok {
			out = append(out, k+" is gone")
		}
	}
	return strings.Join(out, "; "), nil
}

// withoutReady forgets since when nodes are ready and how often pods were restarted: a reboot is a reboot.
func withoutReady(list map[string]object) map[string]object {
	out := map[string]object{}
	for k, o := range list {
		o.Ready, o.Restarts = "", 0
		out[k] = o
	}
	return out
}

func TestFaultsTheHostReboots(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	before := withoutReady(objects(t, c))
	was, err := c.Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writers := c.Write()
	c.Wait(patience, "some writes", func(context.Context) (bool, string, error) {
		return writers.Acknowledged() > 100, fmt.Sprint(writers.Acknowledged()), nil
	})
	if err := c.KillAll(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.Up()
	t.Logf("up again after %s", time.Since(began).Round(10*time.Millisecond))
	c.SettleAll(patience)
	same(t, c, before)
	if is, err := c.Quorum(t.Context()); err != nil || is.GetClusterId() != was.GetClusterId() {
		t.Errorf("etcd's cluster was %s and is %s (%v)", was.GetClusterId(), is.GetClusterId(), err)
	}
	writers.Check()
}

func TestFaultsTheHostRebootsDuringAReplacement(t *testing.T) {
	for _, at := range []step{learning, left} {
		t.Run("at "+at.String(), func(t *testing.T) {
			c := shared.Cluster(t)
			c.Settle(patience)
			writers := c.Write()
			r := follow(t, c, victim(t, c, 0))
			c.DeleteMachine(r.old)
			r.run(t, func(s step) {
				if s != at {
					return
				}
				if err := c.KillAll(); err != nil {
					t.Fatal(err)
				}
				c.Up()
			})
			c.Settle(patience)
			writers.Check()
		})
	}
}

// same fails the test unless the same objects are there, with their uids.
func same(t *testing.T, c *harness.Cluster, before map[string]object) {
	t.Helper()
	now := withoutReady(objects(t, c))
	for k := range now {
		if strings.HasPrefix(k, "machineset writer-") {
			delete(now, k)
		}
	}
	for k, was := range before {
		if now[k] != was {
			t.Errorf("%s was %+v and is %+v", k, was, now[k])
		}
	}
	if len(now) != len(before) {
		t.Errorf("there are %d objects, there were %d", len(now), len(before))
	}
}

// certificatesRunOut takes a cluster down, waits until not one of its certificates is valid any more, and brings it
// back.
func certificatesRunOut(t *testing.T) {
	const lifetime = 20 * time.Second
	c := harness.Second(t, "--certificate-lifetime", lifetime.String())
	c.SettleAll(patience)
	before := withoutReady(objects(t, c))
	sets := machinev1.NewMachineSetServiceClient(c.Conn())
	_, err := sets.CreateMachineSet(t.Context(), &machinev1.CreateMachineSetRequest{MachineSet: &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: "kept", Namespace: harness.Namespace}, Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(0),
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.Down()
	c.Wait(2*lifetime, "every certificate to run out", func(context.Context) (bool, string, error) {
		last, path, err := lastExpiry(c.Dir())
		return err == nil && time.Now().After(last), fmt.Sprintf("%s is valid until %s", path, last), err
	})
	c.Up()
	c.SettleAll(patience)
	if _, err := sets.GetMachineSet(t.Context(), &machinev1.GetMachineSetRequest{
		Namespace: harness.Namespace,
		Name:      "kept",
	}); err != nil {
		t.Errorf("what was written before: %v", err)
	}
	before["machineset kept"] = objects(t, c)["machineset kept"]
	same(t, c, before)
	// And it lives on: by then every certificate was renewed while it runs, and the connections to etcd that were opened
	// by the former ones have ended.
	// No leader changes for that. On a busy host one may for want of a processor, but not in each renewal.
	writers := c.Write()
	diff := ""
	for range 3 {
		won, began := terms(t, c), time.Now()
		c.Wait(3*lifetime, "every certificate to be renewed", func(context.Context) (bool, string, error) {
			first, path, err := firstExpiry(c.Dir())
			return err == nil && first.After(began.Add(2*lifetime)), fmt.Sprintf("%s is valid until %s", path, first), err
		})
		c.Settle(patience)
		if diff = cmp.Diff(won, terms(t, c)); diff == "" {
			break
		}
		t.Logf("leaders changed (-before +after):\n%s", diff)
	}
	if diff != "" {
		t.Error("leaders changed in each of three renewals")
	}
	writers.Check()
}

// terms returns by each election the revision at which its leader won it.
func terms(t *testing.T, c *harness.Cluster) map[string]int64 {
	t.Helper()
	root, err := c.Root()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	q, err := c.Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := root.Only(q.GetMembers()[0].GetClientUrls()[0])
	if err != nil {
		t.Fatal(err)
	}
	found, err := client.Get(t.Context(), "/windlass/elections/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, kv := range found.Kvs {
		out[string(kv.Key)] = kv.CreateRevision
	}
	if len(out) == 0 {
		t.Fatal("there is no election")
	}
	return out
}

// lastExpiry returns the last moment at which one of the certificates below a directory is valid, authorities not
// counted, nor the administrator's, which lives 30 times as long.
func lastExpiry(dir string) (last time.Time, path string, err error) {
	all, err := expiries(dir)
	for p, at := range all {
		if at.After(last) && filepath.Base(filepath.Dir(p)) != "admin" {
			last, path = at, p
		}
	}
	return last, path, err
}

// firstExpiry returns when the first of them runs out.
func firstExpiry(dir string) (first time.Time, path string, err error) {
	all, err := expiries(dir)
	for p, at := range all {
		if first.IsZero() || at.Before(first) {
			first, path = at, p
		}
	}
	return first, path, err
}

func expiries(dir string) (map[string]time.Time, error) {
	out := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".crt") {
			return ignoreGone(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return ignoreGone(err)
		}
		block, _ := pem.Decode(raw)
		if block == nil {
			return nil
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		if !cert.IsCA {
			out[path] = cert.NotAfter
		}
		return nil
	})
	return out, err
}

// ignoreGone: a running program replaces its files.
func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
