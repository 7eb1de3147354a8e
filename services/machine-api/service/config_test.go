package service

import (
	"io"
	"net/netip"
	"slices"
	"strings"
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

func TestTheChosenProviderIsAPeer(t *testing.T) {
	for chosen, ok := range map[string]bool{
		"TestSpec=provider-a": true, "TestSpec=provider-b": false, "TestSpec=eviction-controller": false,
		"=provider-a": false, "TestSpec=": false,
	} {
		_, err := parse([]string{
			"--pki", "x", "--dir", "x", "--tls-dir", "x", "--listen", "127.0.0.1:7101", "--gateway", "127.0.0.1:6443",
			"--peer", "eviction-controller=10.1.2.3:7104", "--peer", "provider-a=10.1.2.3:9", "--provider-for", chosen,
		}, io.Discard)
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "--provider-for") {
			t.Errorf("--provider-for %s: %v, accepted is to be %t", chosen, err, ok)
		}
	}
}
