package objects

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// terminalOf returns the terminal that input comes from; nil if it is none.
func terminalOf(in io.Reader) *os.File {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return f
}

// sizeOf returns the size of a terminal; nil if it is not known.
func sizeOf(screen *os.File) *schedulingv1.TerminalSize {
	columns, rows, err := term.GetSize(int(screen.Fd()))
	if err != nil || columns < 1 || rows < 1 {
		return nil
	}
	return &schedulingv1.TerminalSize{Columns: int32(columns), Rows: int32(rows)}
}

// useTerminal passes on what is typed as it is, if it is passed on at all, and calls resized with each new size of the
// terminal until ctx ends. restore makes the terminal what it was.
func useTerminal(ctx context.Context, screen *os.File, typed bool, resized func(*schedulingv1.TerminalSize)) (
	restore func(), err error,
) {
	restore = func() {}
	if typed {
		was, err := term.MakeRaw(int(screen.Fd()))
		if err != nil {
			return nil, err
		}
		restore = func() { _ = term.Restore(int(screen.Fd()), was) }
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	go func() {
		defer signal.Stop(changes)
		for {
			select {
			case <-changes:
				if size := sizeOf(screen); size != nil {
					resized(size)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return restore, nil
}
