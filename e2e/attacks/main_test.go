// Package attacks attacks a cluster from outside with real callers: what a hostile or careless caller sends, and what
// must come of it. docs/security.md lists each attack with the test that makes it.
package attacks

import (
	"os"
	"testing"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// shared is the cluster of the tests that leave it as they found it. A test that takes something away, fills a disk or
// needs other settings starts a cluster of its own.
var shared harness.Shared

func TestMain(m *testing.M) {
	harness.Flooding()
	os.Exit(shared.Main(m))
}
