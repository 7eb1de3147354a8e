// Package seeds runs every command line that the documents show on a whole cluster, in their order and unchanged,
// but for names that differ.
package seeds

import (
	"os"
	"testing"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// shared is the cluster of the package. Each test leaves it as it was.
var shared harness.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }
