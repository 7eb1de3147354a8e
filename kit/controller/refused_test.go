package controller_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/topology"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

func (l *lines) with(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.out.String(), text)
}

// TestAnElectionThatEtcdRefusesToShowIsCountedAndLoggedOnce takes the right to the election key away from a process
// that leads, and gives it back.
func TestAnElectionThatEtcdRefusesToShowIsCountedAndLoggedOnce(t *testing.T) {
	name := service(t)
	key := topology.ElectionKey(name)
	root, user := etcdtest.Users(t, etcdtest.StartMembers(t, 1), key)
	var log lines
	e := controller.NewElector(user, name, "127.0.0.1:2", slog.New(slog.NewTextHandler(&log, nil)))
	candidate := campaignWith(t, e)
	term := candidate.leads(t)
	if _, err := root.RoleRevokePermission(t.Context(), "user", key, clientv3.GetPrefixRangeEnd(key)); err != nil {
		t.Fatal(err)
	}
	// The open watch is reopened some seconds later, and is refused then.
	began, limit := time.Now(), time.After(patience)
	for counted(t, e) < 5 {
		select {
		case <-limit:
			t.Fatalf("refusals are not counted; the term: %v; the log:\n%s", context.Cause(term), log.text())
		case <-time.After(10 * time.Millisecond):
		}
	}
	// Once a minute: on a slow host five refusals may take longer.
	if n := log.with("watch of etcd failed"); n < 1 || n > 1+int(time.Since(began)/time.Minute) {
		t.Errorf("%v refusals are logged %d times", counted(t, e), n)
	}
	if cause := context.Cause(term); cause != nil && !errors.Is(cause, controller.ErrLeaseLost) {
		t.Errorf("the lead was given up though the lease is renewed: %v", cause)
	}
	if _, err := root.RoleGrantPermission(t.Context(), "user", key, clientv3.GetPrefixRangeEnd(key),
		clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	if _, err := root.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	ends(t, term)
	candidate.leads(t)
}

func counted(t *testing.T, e *controller.Elector) float64 {
	t.Helper()
	return metric(t, e, "windlass_election_refused_watches_total")
}

func metric(t *testing.T, e *controller.Elector, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(e)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() // one of them is set
		}
	}
	t.Fatalf("no %s in %v", name, families)
	return 0
}
