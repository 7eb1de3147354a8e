package serve_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/serve"
)

func TestAKMSThatFailsIsReported(t *testing.T) {
	cfg := newCluster(t).config("machine-api")
	cfg.RecordKMS = "unix:///nowhere/kms.sock"
	p := newProcess(t, cfg)
	defer start(t, p)() //nolint:errcheck // the test is about its report
	limit := time.After(2 * time.Minute)
	for !serve.State(p).Degraded {
		select {
		case <-limit:
			t.Fatal("it is not reported")
		case <-time.After(5 * time.Millisecond):
		}
	}
	if s := serve.State(p); s.Reason != "RecordKMSFailed" || !strings.Contains(s.Message, cfg.RecordKMS) {
		t.Errorf("state = %+v", s)
	}
}

func TestWrongSettingsOfRecordKeysAreRefused(t *testing.T) {
	for _, wrong := range [][2]string{
		{"/run/kms.sock", ""},
		{"unix:///run/kms.sock", "vault"},
		{"unix:///run/kms.sock", serve.SealByFile},
	} {
		cfg := newCluster(t).config("machine-api")
		cfg.RecordKMS, cfg.RecordSealer = wrong[0], wrong[1]
		if p, err := serve.New(cfg, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%v is taken", wrong)
			_ = p.Close()
		}
	}
}
