package serve

import (
	"context"
	"errors"
	"io"
)

// Part is a long-lived part of a process: it runs until ctx ends, and returns nil then.
type Part = func(ctx context.Context) error

// errNoEtcd means that neither the settings nor the process's own files have addresses of etcd.
var errNoEtcd = errors.New("--etcd-endpoints is required at the first start")

// Run opens the process that c describes, calls build to create its parts and register its gRPC services, and runs it
// until ctx ends. It logs to stderr. needsEtcd is whether the service keeps records in etcd.
func (c Config) Run(ctx context.Context, stderr io.Writer, needsEtcd bool, build func(*Process) ([]Part, error)) error {
	log, err := c.Logger(stderr)
	if err != nil {
		return err
	}
	p, err := New(c, log)
	if err != nil {
		return err
	}
	if needsEtcd && p.Etcd == nil {
		return errors.Join(errNoEtcd, p.Close())
	}
	parts, err := build(p)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	return p.Run(ctx, parts...)
}
