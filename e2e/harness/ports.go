package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Ports from which FreeAddress takes: below those that the operating system gives to outgoing connections (from 32768
// on Linux), which would take a free port away before the program that is to have it listens.
const (
	firstFree = 24000
	freePorts = 8000
)

// FreeAddress returns a port of a host at which nothing listens, with the host, for a program that is started with it
// later.
func FreeAddress(t testing.TB, host string) string {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("%s:%d", host, firstFree+rand.N(freePorts))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}
