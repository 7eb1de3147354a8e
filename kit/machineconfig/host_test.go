package machineconfig

import (
	"strings"
	"testing"
)

func TestFilesOfAHost(t *testing.T) {
	f := Files{Allowed: []string{"/srv/app", "/etc/sudoers.d/app", "/var/lib/other"}}
	for _, tc := range []struct{ path, kind, at, want string }{
		{"etc/chrony.conf", File, "", ""},
		{"opt/app/bin/x", File, "", ""},
		{"usr/local/bin/x", Link, "", ""},
		{"srv/app", File, "", ""},
		{"srv/app/x/y", File, "", ""},
		{"srv/apple", File, "", "not below /etc"},
		{"etc", Directory, "", "not below /etc"},
		{"usr/bin/x", File, "", "not below /etc"},
		{"etc/shadow", File, "", "not changed by configurations"},
		{"etc/sudoers.d/x", File, "", "not changed by configurations"},
		{"etc/sudoers.d/app", File, "", ""},
		{"etc/sudoers.d", Link, "", "not changed by configurations"},
		{"etc/ssh", Directory, "", ""},
		{"etc/ssh", Link, "", "must stay a directory"},
		{"etc/ssh/ssh_config", File, "", ""},
		{"etc/x/login", File, "etc/pam.d/login", "not changed by configurations"},
		{"opt/x", File, "var/opt/x", "not below /etc"},
		{"etc/windlass/x", File, "", "Windlass' own"},
		{"etc/x/y", File, "var/lib/windlass/host.json", "Windlass' own"},
		{"etc/systemd/system/windlass.service", File, "", "own unit"},
		{"etc/systemd/system/multi-user.target.wants/windlass.service", Link, "", "own unit"},
		{"etc/systemd/system/windlass.service.d/x.conf", File, "", "Windlass' own"},
		{"etc/systemd/system/app.service", File, "", ""},
		{"etc/systemd/system", File, "", "Windlass' own"},
	} {
		at := tc.at
		if at == "" {
			at = tc.path
		}
		got := f.Faults(Entry{Path: tc.path, Kind: tc.kind}, at)
		if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), tc.want)) {
			t.Errorf("%s %s at %s: %v, want %q", tc.kind, tc.path, at, got, tc.want)
		}
	}
	for p, ok := range map[string]bool{
		"/srv/app": true, "/etc/pam.d": true, "srv": false, "/": false, "/srv/../etc": false, "/srv/": false,
		"/var/lib/windlass/pki": false, "/etc/systemd/system/windlass.service": false,
	} {
		if err := CheckAllowed(p); (err == nil) != ok {
			t.Errorf("%q: %v", p, err)
		}
	}
}
