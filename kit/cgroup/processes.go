package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

const maxFile = "pids.max" // of both versions

// errNoPids means that a host has no controller pids that this process can use.
var errNoPids = errors.New("the controller pids of control groups cannot be used by this process")

// CanLimitProcesses returns why pools have no limit of processes on this host, whatever their Limits say; nil if they
// have.
func (t Tree) CanLimitProcesses() error {
	switch {
	case t.unified && t.counts:
		return t.passPIDs()
	case t.base == "" || t.unified || t.pids == "":
		return errNoPids
	}
	return nil
}

// passPIDs has the pools of the unified hierarchy have the controller pids. The groups in a pool do not need it: they
// count in their pool.
func (t Tree) passPIDs() error {
	if err := t.pass("+pids", t.pools()); err != nil {
		return fmt.Errorf("%w: %w", errNoPids, err)
	}
	return nil
}

// limitProcesses gives a pool its limit of processes, if there is one, and on a host with version 1 makes the group of
// a process for it. It is an errNoPids where the controller cannot be used.
func (t Tree) limitProcesses(g *Group, pool Pool, mark string) error {
	n := min(pool.Limits.Processes, maxProcesses)
	switch {
	case n <= 0:
		return nil
	case t.unified && t.counts:
		err := write(t.pool(pool.Name), maxFile, n)
		if errors.Is(err, fs.ErrNotExist) { // not passed on yet
			if err := t.passPIDs(); err != nil {
				return err
			}
			err = write(t.pool(pool.Name), maxFile, n)
		}
		return err
	case t.unified || t.pids == "":
		return errNoPids
	}
	g.PIDs = filepath.Join(t.pids, t.name, pool.Name, mark)
	if err := mkdirAgain(g.PIDs); err != nil {
		return err
	}
	return write(filepath.Dir(g.PIDs), maxFile, n)
}

// ProcessLimit returns the limit of processes that the pool of the group has now; 0 if it has none. The group must be
// in a pool.
func (g Group) ProcessLimit() int64 {
	at := g.PIDs
	if at == "" {
		at = g.Path
	}
	if at == "" {
		return 0
	}
	n, err := number(filepath.Join(filepath.Dir(at), maxFile))
	if err != nil { // the text "max" is none
		return 0
	}
	return n
}
