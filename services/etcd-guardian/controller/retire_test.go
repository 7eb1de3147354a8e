package controller

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

func TestWhatIsLeftOfTheBootstrapMemberIsRemovedInTheEnd(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	note, err := store.OpenNote(filepath.Join(dir, "cluster.json"))
	if err != nil {
		t.Fatal(err)
	}
	data, allowed := filepath.Join(dir, "data"), filepath.Join(dir, "allowed")
	stuck := filepath.Join(allowed, "stuck") // the permission cannot be removed while this exists
	for _, d := range []string{filepath.Join(data, "member", "wal"), stuck} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sup := process.NewSupervisor(filepath.Join(dir, "run"), log)
	go func() { _ = sup.Run(t.Context()) }()
	<-sup.Active()
	c := &Controller{Config: Config{
		Bootstrap: NewBootstrap(BootstrapConfig{
			Supervisor: sup, Spec: process.Spec{Name: "etcd", Path: "/bin/true"}, DataDir: data, Allowed: allowed, Note: note,
			Log: log,
		}),
	}}
	first, once := make(chan struct{}), sync.Once{}
	c.clean = controller.NewLoop("bootstrap", 1, func(ctx context.Context, key string) (time.Time, error) {
		defer once.Do(func() { close(first) })
		return c.cleanBootstrap(ctx, key)
	}, log)
	c.clean.Begin(func() []string { return []string{all} })
	go func() { _ = c.clean.Run(t.Context()) }()
	// of which the bootstrap member has not left: only the retirement has it called again
	<-first
	_ = c.do(t.Context(), &Observation{}, plan.Action{Kind: plan.RetireBootstrap}) // a part of it fails
	if !note.Get().BootstrapRetired {
		t.Fatal("it is not written down that the member has left")
	}
	if err := os.RemoveAll(stuck); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		for _, path := range []string{data, allowed} {
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				return path + " is left"
			}
		}
		return ""
	})
}
