package service

import (
	"io"
	"net/netip"
	"slices"
	"testing"
)

func TestAddressesOfProgramsAreReserved(t *testing.T) {
	c, err := parse([]string{
		"--pki", "x", "--dir", "x", "--tls-dir", "x", "--listen", "0.0.0.0:7101", "--advertise", "machine-api:7101",
		"--gateway", "gateway:6443",
		"--peer", "eviction-controller=10.1.2.3:7104", "--etcd-endpoints", "https://172.31.250.2:2379", "--reserved",
		"172.31.250.0/27",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	got := c.addresses()
	for _, want := range []string{"172.31.250.0/27", "10.1.2.3/32", "172.31.250.2/32"} {
		if !slices.Contains(got, netip.MustParsePrefix(want)) {
			t.Errorf("reserved are %v, want %s too", got, want)
		}
	}
	if len(got) != 3 {
		t.Errorf("reserved are %v, want 3", got)
	}
}
