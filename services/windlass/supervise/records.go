package supervise

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

func recordFile(c *cluster.Cluster, name string) string { return c.Dir("programs", name+".json") }

// read returns what a program runs from. It is the cluster's own executable where that of an image is lost: it is
// fetched again then.
func (ps *programs) read(name string) (plan.Record, error) {
	own := plan.Record{Running: ps.own()}
	raw, err := os.ReadFile(recordFile(ps.cluster, name))
	if errors.Is(err, fs.ErrNotExist) {
		return own, nil
	}
	if err != nil {
		return own, err
	}
	var r plan.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		ps.log.Error("program runs from the executable of the cluster", "program", name, "error", err)
		return own, nil
	}
	if gone, err := ps.executables.gone(r.Running); err != nil {
		return own, err
	} else if gone {
		ps.log.Error("program runs from the executable of the cluster", "program", name, "missing", r.Running)
		return plan.Record{Running: ps.own(), Refused: r.Refused}, nil
	}
	for _, e := range []*plan.Executable{&r.Running, &r.Previous} {
		if e.Image == "" {
			*e = ps.own()
		}
	}
	return r, nil
}

// OnTrial returns the name of a program of the cluster that is on trial with another executable; empty if none is.
func OnTrial(c *cluster.Cluster) string {
	for _, name := range c.Programs() {
		var r plan.Record
		raw, err := os.ReadFile(recordFile(c, name))
		if err == nil && json.Unmarshal(raw, &r) == nil && r.OnTrial {
			return name
		}
	}
	return ""
}

// write writes a record down.
func (ps *programs) write(p *program, r plan.Record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(ps.cluster.Dir("programs"), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(recordFile(ps.cluster, p.name), append(raw, '\n'), 0o600)
}
