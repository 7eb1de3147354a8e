package main

import (
	"context"
	"embed"
	"os"
	"path/filepath"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// documents are what the steps apply; each can be applied manually, too.
//
//go:embed documents
var documents embed.FS

// document writes one of the documents to a file and returns its path.
func (t *tour) document(name string) (string, error) {
	raw, err := documents.ReadFile("documents/" + name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(t.dir, name)
	return path, os.WriteFile(path, raw, 0o600)
}

// apply applies one of the documents.
func (t *tour) apply(ctx context.Context, name string) error {
	path, err := t.document(name)
	if err != nil {
		return err
	}
	out, err := t.windlass(ctx, "apply", "-f", path)
	if err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(out))
	return nil
}

// remove deletes what some of the documents made and is still there, and waits until it is gone.
func (t *tour) remove(ctx context.Context, names ...string) error {
	for _, name := range names {
		path, err := t.document(name)
		if err != nil {
			return err
		}
		if _, err := t.windlass(ctx, "delete", "-f", path, "--ignore-not-found"); err != nil {
			return err
		}
	}
	return nil
}

// What the steps put on nodes.
const (
	placeLabel   = "tour.windlass.dev/place"
	taintLabel   = "tour.windlass.dev/taint"
	preemptLabel = "tour.windlass.dev/preempt"
	taintKey     = "key1"
)

// clearLeftovers removes what a tour that was interrupted left behind, quietly where there is nothing.
func (t *tour) clearLeftovers(ctx context.Context) error {
	list, err := documents.ReadDir("documents")
	if err != nil {
		return err
	}
	if err := t.endAutoscale(ctx); err != nil {
		return err
	}
	for _, d := range list {
		if d.Name() == autoscaleDocument {
			continue // it names the one ClusterAutoscaler, which need not be the tour's
		}
		path, err := t.document(d.Name())
		if err != nil {
			return err
		}
		out, err := t.shell.output(ctx, "windlass", "delete", "-f", path, "--ignore-not-found")
		if err != nil {
			return err
		}
		if out = strings.TrimSpace(out); out != "" {
			t.saw("an earlier tour was interrupted:\n%s", out)
		}
	}
	if err := t.removeSecret(ctx); err != nil {
		return err
	}
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := t.clearNode(ctx, n); err != nil {
			return err
		}
	}
	return t.clearUpdate(ctx)
}

func (t *tour) clearNode(ctx context.Context, n *nodev1.Node) error {
	name := n.GetMetadata().GetName()
	labels := n.GetMetadata().GetLabels()
	if _, ok := labels[silentLabel]; ok {
		_, err := t.windlass(ctx, "delete", "node", name)
		return err
	}
	if _, ok := labels[specialLabel]; ok {
		return nil // it goes with its machine
	}
	for _, label := range []string{placeLabel, taintLabel, preemptLabel, groupKey} {
		if value, ok := labels[label]; !ok || label == groupKey && value != groupName {
			continue
		}
		if _, err := t.windlass(ctx, "label", "node", name, label+"-"); err != nil {
			return err
		}
	}
	if findTaint(n, groupKey, "NoSchedule").GetValue() == groupName {
		if _, err := t.windlass(ctx, "adm", "taint", "nodes", name, groupKey+":NoSchedule-"); err != nil {
			return err
		}
	}
	if findTaint(n, taintKey, noExecute) == nil {
		return nil
	}
	_, err := t.windlass(ctx, "adm", "taint", "nodes", name, taintKey+"-")
	return err
}

const noExecute = "NoExecute"

// findTaint returns the taint of a node with a key and an effect, nil if there is none.
func findTaint(n *nodev1.Node, key, effect string) *nodev1.Taint {
	for _, taint := range n.GetSpec().GetTaints() {
		if taint.GetKey() == key && taint.GetEffect() == effect {
			return taint
		}
	}
	return nil
}
