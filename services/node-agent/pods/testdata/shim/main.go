// Shim is the first process of containers, for tests whose own executable is linked dynamically.
package main

import (
	"os"

	_ "github.com/windlass-dev/windlass/services/node-agent/shim"
)

func main() { os.Exit(2) }
