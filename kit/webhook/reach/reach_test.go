package reach

import (
	"net/netip"
	"testing"
)

func TestAddressesThatAWebhookMustNotHave(t *testing.T) {
	for text, want := range map[string]bool{
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "0.1.2.3": false,
		"::": false, "169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "ff02::1": false, "224.0.0.1": false,
		"2002:7f00:1::1": false, "2002:a9fe:a9fe::": false, "2002:cb00:7109::1": true, "::127.0.0.1": false,
		"100.100.100.200": false, "168.63.129.16": false, "2002:a83f:8110::1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "fd00:ec2::254": false,
		"10.0.0.1": true, "192.168.1.1": true, "203.0.113.9": true, "2001:db8::1": true, "64:ff9b::cb00:7109": true,
	} {
		if err := Allowed(netip.MustParseAddr(text)); (err == nil) != want {
			t.Errorf("%s: %v, want reachable: %v", text, err, want)
		}
	}
	if Allowed(netip.Addr{}) == nil {
		t.Error("no address is reachable")
	}
}
