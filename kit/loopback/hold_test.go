package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestANetworkIsHeldByOneProcess(t *testing.T) {
	const network = 100_000 // of no cluster
	held, err := Hold(network)
	if err != nil {
		t.Fatal(err)
	}
	for range 5000 { // more than may wait in the queue
		if _, err := Hold(network); !errors.Is(err, ErrHeld) {
			t.Fatalf("it is held twice: %v", err)
		}
	}
	if pid, uid := Holder(network); int(pid) != os.Getpid() || int(uid) != os.Getuid() {
		t.Errorf("it is held by process %d of user %d", pid, uid)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := Await(ctx, network); !errors.Is(err, ErrHeld) ||
		!strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("%v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { held.Close() })
	again, err := Await(t.Context(), network)
	if err != nil {
		t.Fatalf("its holder has ended: %v", err)
	}
	again.Close()
	if pid, _ := Holder(network); pid != 0 {
		t.Errorf("nothing holds it, but process %d", pid)
	}
}

func TestANetworkIsInUseByItsSockets(t *testing.T) {
	network := 0
	for n := Networks; n > 0 && network == 0; n-- { // of a cluster that runs beside the test, some are in use
		if !InUse(n) {
			network = n
		}
	}
	for _, address := range []string{PodRange(network).Addr().Next().String(), DNS(ServiceRange(network)).String()} {
		l, err := net.Listen("tcp", address+":0")
		if err != nil {
			t.Fatal(err)
		}
		if !InUse(network) {
			t.Errorf("something listens on %s, and the network is not in use", address)
		}
		l.Close()
		udp, err := net.ListenPacket("udp", address+":0")
		if err != nil {
			t.Fatal(err)
		}
		if !InUse(network) {
			t.Errorf("a UDP socket has %s, and the network is not in use", address)
		}
		udp.Close()
	}
	if InUse(network) {
		t.Error("nothing has an address of the network, and it is in use")
	}
}
