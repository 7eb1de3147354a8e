package client_test

import (
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/client"
)

func TestGivenServersAreChecked(t *testing.T) {
	for _, c := range []struct{ server, ca, says string }{
		{"192.0.2.1:6443", "ca.crt", ""},
		{"https://192.0.2.1:6443, [2001:db8::1]:6443", "ca.crt", ""},
		{"192.0.2.1", "ca.crt", `--server "192.0.2.1": must be host:port`},
		{"192.0.2.1:6443,", "ca.crt", `--server "": must be host:port`},
		{"2001:db8::1:6443", "ca.crt", `--server "2001:db8::1:6443": must be host:port`},
		{"192.0.2.1:6443", "", "--cacert"},
	} {
		_, err := client.Target{Server: c.server, CA: c.ca}.Resolve()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, want %q", c.server, err, c.says)
		}
	}
	if got := (client.Target{Server: " 192.0.2.1:6443,192.0.2.2:6443"}).URL(); got != "https://192.0.2.1:6443" {
		t.Errorf("URL = %q", got)
	}
}
