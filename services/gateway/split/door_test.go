package split

import (
	"net"
	"testing"
)

// at is a connection from an address.
type at struct {
	net.Conn
	ip   string
	port int
}

func (a at) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(a.ip), Port: a.port} }
func (at) Close() error           { return nil }

func TestAHandshakeIsNotEndedForAFloodFromAnotherAddress(t *testing.T) {
	const places = 10
	ended := 0
	d := newDoor(Limits{Anonymous: 4 * places}, func(string) { ended++ })
	slow := d.enter(at{ip: "10.0.0.1", port: 1})
	office := []*offer{d.enter(at{ip: "10.0.0.2", port: 1}), d.enter(at{ip: "10.0.0.2", port: 2})}
	for i := range 100 {
		d.enter(at{ip: "10.0.0.3", port: i})
	}
	if slow.left || office[0].left || office[1].left {
		t.Error("a handshake of an address with few was ended for a flood from another one")
	}
	if d.shaking.Len() != places || ended != 100+3-places {
		t.Errorf("%d handshakes and %d ended, want %d and %d", d.shaking.Len(), ended, places, 100+3-places)
	}
	// One handshake each from more addresses than there are places: the oldest ends, or no other client could connect.
	for i := range 100 {
		d.enter(at{ip: net.IPv4(10, 0, 1, byte(i)).String(), port: 1})
	}
	if !slow.left || d.shaking.Len() != places || len(d.handshakes) != places {
		t.Errorf("%d handshakes of %d addresses, the first among them: %v", d.shaking.Len(), len(d.handshakes), !slow.left)
	}
}
