package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// KillAll ends every process of a run directory by SIGKILL, as if the machine that they belong to lost its power, and
// waits until they are gone. It is for a run directory whose supervisor is dead; a living one would start them again.
// No process is no error.
func KillAll(ctx context.Context, runDir string) error {
	dir, err := makeDir(runDir)
	if err != nil {
		return err
	}
	targets, err := findStrays(dir)
	if err != nil {
		return err
	}
	found, err := Running(dir)
	if err != nil {
		return err
	}
	for _, f := range found {
		r, err := readRecord(dir, f.Name)
		if err != nil {
			return err
		}
		if _, known := targets[f.Name]; !known {
			targets[f.Name] = &r
		}
	}
	var errs []error
	for name, r := range targets {
		if err := r.kill(ctx); err != nil {
			errs = append(errs, fmt.Errorf("kill %q: %w", name, err))
			continue
		}
		removeRecord(dir, name)
	}
	return errors.Join(errs...)
}

// kill ends the process and waits until it is gone.
func (r record) kill(ctx context.Context) error {
	h, err := r.open()
	if errors.Is(err, ErrNoProcess) {
		return nil
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
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
