package controller_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/etcd-guardian/controller"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

func TestAnEmptyBootstrapMemberIsStartedOnlyWhereThereWasNoCluster(t *testing.T) {
	cases := []struct {
		name                string
		note                store.Note
		data, endpoints     bool
		allowed             bool
		wantStart, wantFail bool
	}{
		{"the first time", store.Note{}, false, false, true, true, false},
		{"not in a fresh directory without permission", store.Note{}, false, false, false, false, true},
		{"again on its data", store.Note{ClusterID: 1}, true, true, false, true, false},
		{"on data without a note, after a crash at the very start", store.Note{}, true, false, false, true, false},
		{"not without its data when there was a cluster", store.Note{ClusterID: 1}, false, false, true, false, true},
		{"not without data and note when clients knew a cluster", store.Note{}, false, true, true, false, true},
		{"not after it has left", store.Note{ClusterID: 1, BootstrapRetired: true}, false, true, true, false, false},
		{
			"not after it has left, though its data is there",
			store.Note{ClusterID: 1, BootstrapRetired: true},
			true, true,
			true, false, false,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			note, err := store.OpenNote(filepath.Join(dir, "cluster.json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := note.Change(func(n *store.Note) { *n = c.note }); err != nil {
				t.Fatal(err)
			}
			data, endpoints := filepath.Join(dir, "data"), filepath.Join(dir, "endpoints")
			if c.data {
				mkdir(t, filepath.Join(data, "member", "wal"))
			}
			if c.allowed {
				mkdir(t, filepath.Join(dir, "allowed"))
			}
			if c.endpoints {
				mkdir(t, endpoints)
			}
			sup := process.NewSupervisor(filepath.Join(dir, "run"), slog.New(slog.DiscardHandler))
			config := controller.BootstrapConfig{
				Supervisor: sup, Spec: process.Spec{Name: "etcd", Path: "/bin/true"}, DataDir: data,
				Allowed: filepath.Join(dir, "allowed"), Known: []string{endpoints}, Note: note, Elsewhere: true,
				Log: slog.New(slog.DiscardHandler),
			}
			if err := controller.NewBootstrap(config).Start(); err != nil || len(sup.Status()) != 0 {
				t.Errorf("where it is on another host: %v, %v", sup.Status(), err)
			}
			config.Elsewhere = false
			err = controller.NewBootstrap(config).Start()
			if started := len(sup.Status()) == 1; started != c.wantStart || (err != nil) != c.wantFail {
				t.Errorf("started %v, error %v", started, err)
			}
		})
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}
