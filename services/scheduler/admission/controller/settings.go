// Package controller keeps what policies and configurations of admission say about themselves true.
package controller

import (
	"context"
	"log/slog"
	"time"

	"github.com/windlass-dev/windlass/kit/controller"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

const (
	settingsKey = "settings" // the one key of the loop
	// refreshEvery is how often files are read again: an administrator who changes one sees the result soon, and reading
	// costs nothing.
	refreshEvery = time.Minute
)

// Settings reads the files of admission plugins again, and stores whether policies and configurations are in force.
type Settings struct {
	tables *kinds.Tables
	now    func() time.Time
	loops  *controller.Loops
}

// NewSettings returns a controller that does nothing before Lead.
func NewSettings(tables *kinds.Tables, now func() time.Time, log *slog.Logger) *Settings {
	s := &Settings{tables: tables, now: now, loops: controller.New(log)}
	loop := s.loops.Loop("settings", 1, s.reconcile)
	loop.Begin(func() []string { return []string{settingsKey} })
	loop.Needs(tables.Policies, tables.AdmissionConfigs, tables.MasterConfigs)
	return s
}

// Lead works until ctx ends.
func (s *Settings) Lead(ctx context.Context) error { return s.loops.Lead(ctx) }

func (s *Settings) reconcile(ctx context.Context, _ string) (time.Time, error) {
	return s.now().Add(refreshEvery), s.tables.RefreshSettings(ctx)
}
