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
func (x *executables) read(name string) (plan.Record, error) {
	own := plan.Record{Running: x.first()}
	raw, err := os.ReadFile(recordFile(x.cluster, name))
	if errors.Is(err, fs.ErrNotExist) {
		return own, nil
	}
	if err != nil {
		return own, err
	}
	var r plan.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		x.log.Error("program runs from the executable of the cluster", "program", name, "error", err)
		return own, nil
	}
	if gone, err := x.gone(r.Running); err != nil {
		return own, err
	} else if gone {
		x.log.Error("program runs from the executable of the cluster", "program", name, "missing", r.Running)
		return plan.Record{Running: x.first(), Refused: r.Refused}, nil
	}
	for _, e := range []*plan.Executable{&r.Running, &r.Previous} {
		if e.Image == "" {
			*e = x.first()
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
func (x *executables) write(name string, r plan.Record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(x.cluster.Dir("programs"), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(recordFile(x.cluster, name), append(raw, '\n'), 0o600)
}
