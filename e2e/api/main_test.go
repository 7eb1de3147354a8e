// Package api tests the API of a whole cluster from outside: what the documents show, what is wrong, and who may do
// what, each over gRPC, REST and the command line.
package api

import (
	"os"
	"testing"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// shared is the cluster of all tests of the package. None of them takes anything of it away.
var shared harness.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }
