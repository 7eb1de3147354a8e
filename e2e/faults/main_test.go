// Package faults tests what a whole cluster does while its programs die, hang or never come: it ends what it began, in
// the right order, and loses nothing. With WINDLASS_FAULTS=all every program is killed at every step of a replacement.
package faults

import (
	"os"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	// patience is for the end of one replacement under faults. Without any it takes some ten seconds.
	patience = 2 * time.Minute
	// learnerTimeout is when the guardian gives a learner up, shortened for the test of that.
	learnerTimeout = "10s"
)

// shared is the cluster of all tests of the package. Each leaves it whole.
var shared = harness.Shared{Flags: []string{"--set", "etcd-guardian.learner-timeout=" + learnerTimeout}}

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }
