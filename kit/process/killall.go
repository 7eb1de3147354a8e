package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

// KillAll ends every process of a run directory by SIGKILL, as a power loss would, and waits until they are gone. The
// supervisor of the run directory must have ended: a running one would start them again. What they started ends with
// them. It is no error if there is none.
func KillAll(ctx context.Context, runDir string) error {
	dir, err := makeDir(runDir)
	if err != nil {
		return err
	}
	found, err := findStrays(dir)
	if err != nil {
		return err
	}
	names, err := recorded(dir)
	if err != nil {
		return err
	}
	groups := cgroup.Find(dir)
	var errs []error
	for _, name := range names {
		r, err := readRecord(dir, name)
		if err == nil || !scarce(err) { // a truncated record is ignored
			err = r.kill(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("kill %q: %w", name, err))
			continue
		}
		removeRecord(dir, name)
	}
	for name, r := range found {
		if err := r.kill(ctx); err != nil {
			errs = append(errs, fmt.Errorf("kill %q: %w", name, err))
		}
	}
	errs = append(errs, groups.Sweep(nil), killAll(func() (processes, error) { return descended(dir, "") }))
	return errors.Join(errs...)
}

// kill ends the process and waits until it is gone.
func (r record) kill(ctx context.Context) error {
	h, err := r.open()
	if errors.Is(err, ErrNoProcess) {
		return r.sweep(false)
	}
	if err != nil {
		return err
	}
	defer h.close()
	if err := h.signal(unix.SIGKILL); err != nil && !errors.Is(err, ErrNoProcess) {
		return err
	}
	select {
	case <-h.exited:
		return r.sweep(true)
	case <-ctx.Done():
		return ctx.Err()
	}
}
