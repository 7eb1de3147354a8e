package service

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/windlass-dev/windlass/services/node-agent/machine"
	"github.com/windlass-dev/windlass/services/node-agent/pods"
)

// TestAHaltTakesNoLongerThanTheSlowestProcess has several units end only when they are killed: one after the other they
// would take longer than the machine has.
func TestAHaltTakesNoLongerThanTheSlowestProcess(t *testing.T) {
	const slow, grace, patience = 12, 2 * time.Second, 20 * time.Second
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	boot, err := machine.LoadBoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///absent", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	i := &instance{cfg: config{dir: dir}, log: log, supervisor: process.NewSupervisor(filepath.Join(dir, "run"), log)}
	if i.pods, err = pods.New(pods.Config{
		Dir: filepath.Join(dir, "pods"), Conn: conn, Supervisor: i.supervisor, Log: log,
		ShimCommand: []string{"/bin/true"}, // no pod runs
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- i.supervisor.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := process.KillAll(context.Background(), filepath.Join(dir, "run")); err != nil {
			t.Error(err)
		}
	})
	for n := range slow {
		ready := filepath.Join(dir, fmt.Sprint("ready-", n))
		err := i.supervisor.Ensure(process.Spec{
			Name: fmt.Sprint("unit-", n), Path: "/bin/sh",
			Args: []string{"-c", `trap "" TERM; : >` + ready + `; while :; do sleep 0.1; done`}, Grace: grace,
		})
		if err != nil {
			t.Fatal(err)
		}
		servetest.Await(t, func() string {
			if _, err := os.Stat(ready); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	halting, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if err := i.halt(halting); err != nil {
		t.Error(err)
	}
	if left, err := process.Running(filepath.Join(dir, "run")); err != nil || len(left) > 0 {
		t.Errorf("still running: %v, %v", left, err)
	}
	if next, err := machine.LoadBoot(dir); err != nil || next.ID == boot.ID {
		t.Errorf("the next boot is the same: %v, %v", next, err)
	}
}
