package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// writers create machine sets of no machines over REST while other things happen: each has a name that must be free, so
// that none is written twice, and what was acknowledged must be there afterwards.
type writers struct {
	list   []*writer
	group  errgroup.Group
	cancel context.CancelFunc
}

// writer is one of them. Its fields may be read once it has stopped.
type writer struct {
	cluster  *cluster
	run      string
	prefix   string
	acked    map[string]string // uid by name
	slowest  time.Duration
	repeated int // tries that had to be made again
}

// startWriters starts n writers. They write until stop is called.
func (t *tour) startWriters(ctx context.Context, n int, purpose string) *writers {
	ctx, cancel := context.WithCancel(ctx)
	ws := &writers{cancel: cancel}
	for i := range n {
		w := &writer{
			cluster: t.cluster, run: t.run, prefix: fmt.Sprintf("tour-%s-%s-%d", t.run, purpose, i),
			acked: map[string]string{},
		}
		ws.list = append(ws.list, w)
		ws.group.Go(func() error { return w.write(ctx) })
	}
	return ws
}

// stop ends the writers and returns the first error that was not one of passing.
func (ws *writers) stop() error {
	ws.cancel()
	return ws.group.Wait()
}

// acknowledged returns the uids of everything that was acknowledged, by name.
func (ws *writers) acknowledged() map[string]string {
	all := map[string]string{}
	for _, w := range ws.list {
		maps.Copy(all, w.acked)
	}
	return all
}

// slowest returns how long the slowest write took, with all its tries.
func (ws *writers) slowest() time.Duration {
	var d time.Duration
	for _, w := range ws.list {
		d = max(d, w.slowest)
	}
	return d
}

// nothingLost says that everything acknowledged is there, as it was acknowledged.
func (t *tour) nothingLost(ctx context.Context, ws *writers) (fact, error) {
	sets, err := t.cluster.listSets(ctx, tourLabel+"="+t.run)
	if err != nil {
		return fact{}, err
	}
	there := map[string]string{}
	for _, s := range sets {
		there[s.GetMetadata().GetName()] = s.GetMetadata().GetUid()
	}
	var lost []string
	acked := ws.acknowledged()
	for _, name := range slices.Sorted(maps.Keys(acked)) {
		if there[name] == "" || acked[name] != "" && there[name] != acked[name] {
			lost = append(lost, name)
		}
	}
	return expect(len(lost) == 0 && len(acked) > 0, fmt.Sprintf("each of %d acknowledged writes", len(acked)),
		"%d are not there: %s", len(lost), strings.Join(lost, ", ")), nil
}

const writesEvery = 50 * time.Millisecond

func (w *writer) write(ctx context.Context) error {
	tick := time.NewTicker(writesEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// A write that has begun is ended: only then it is known whether it was acknowledged.
		if err := w.one(context.WithoutCancel(ctx), fmt.Sprintf("%s-%04d", w.prefix, i)); err != nil {
			return err
		}
	}
}

// errPassing marks what a client meets while something behind the gateway changes: another try succeeds.
var errPassing = errors.New("try again")

// one creates one machine set, as often as it takes.
func (w *writer) one(ctx context.Context, name string) error {
	const patience, pause = 30 * time.Second, 10 * time.Millisecond
	began := time.Now()
	for tries := 0; ; tries++ {
		uid, err := w.try(ctx, name, tries > 0)
		switch {
		case err == nil:
			w.acked[name] = uid
			w.slowest = max(w.slowest, time.Since(began))
			return nil
		case !errors.Is(err, errPassing) || time.Since(began) > patience:
			return fmt.Errorf("write %s, try %d: %w", name, tries+1, err)
		}
		w.repeated++
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// try returns the uid of what it created; no uid if an earlier try turns out to have come through.
func (w *writer) try(ctx context.Context, name string, again bool) (uid string, err error) {
	const limit = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	body, err := json.Marshal(emptySet(name, w.run))
	if err != nil {
		return "", err
	}
	url := w.cluster.url + "/v1/namespaces/" + namespace + "/machinesets"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.cluster.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errPassing, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errPassing, err)
	}
	switch {
	case resp.StatusCode/100 == 2:
		var set struct{ Metadata struct{ UID string } }
		err := json.Unmarshal(answer, &set)
		return set.Metadata.UID, err
	case resp.StatusCode == http.StatusConflict && again:
		return "", nil
	case slices.Contains([]int{http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests},
		resp.StatusCode):
		return "", fmt.Errorf("%w: %s: %s", errPassing, resp.Status, answer)
	}
	return "", fmt.Errorf("%s: %s", resp.Status, answer)
}

// emptySet is a machine set of no machines.
func emptySet(name, run string) any {
	type m = map[string]any
	labels := m{tourLabel: run}
	return m{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
		"metadata": m{"name": name, "namespace": namespace, "labels": labels},
		"spec": m{
			"replicas": 0,
			"selector": m{"matchLabels": m{tourLabel: name}},
			"template": m{
				"metadata": m{"labels": m{tourLabel: name}},
				"spec":     m{"providerSpec": m{"value": m{"apiVersion": "windlass.dev/v1", "kind": "LocalMachineProviderSpec"}}},
			},
		},
	}
}
