package host

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func TestWhichFilesOfAHostConfigurationsChange(t *testing.T) {
	able := cluster.CheckFiles() == nil
	for _, tc := range []struct {
		flags      joinFlags
		files, err string
	}{
		{joinFlags{runtime: "process", files: "machine"}, "", ""},
		{joinFlags{runtime: "process", files: "all"}, "", `--files "all": must be host or machine`},
		{joinFlags{runtime: "process"}, "", ""}, // another directory than that of the package
		{
			joinFlags{runtime: "process", files: "machine", observe: true},
			"",
			"--observe: only the files of a host are observed",
		},
	} {
		tc.flags.dir, tc.flags.address, tc.flags.hostname = t.TempDir(), "192.0.2.1", "h1"
		m, err := tc.flags.member(t.Context(), &session.Env{Err: io.Discard})
		if err != nil && (tc.err == "" || !strings.Contains(err.Error(), tc.err)) || err == nil &&
			(tc.err != "" || m.Files != tc.files) {
			t.Errorf("%+v: files %q, error %v", tc.flags, m.Files, err)
		}
	}
	f := joinFlags{runtime: "process", dir: cluster.DefaultHostDir, address: "192.0.2.1", hostname: "h1"}
	if m, err := f.member(t.Context(), &session.Env{Err: io.Discard}); err != nil ||
		(m.Files == cluster.FilesOfHost) != able {
		t.Errorf("with the directory of the package: files %q, %v, and this host is able: %v", m.Files, err, able)
	}
}

func TestWhatConfigurationsMayChangeOfAHostIsSet(t *testing.T) {
	dir := t.TempDir()
	c, err := cluster.CreateHost(dir, cluster.Settings{
		Name: "main", Member: &cluster.Member{Name: "h1", Address: "192.0.2.1", Files: cluster.FilesOfHost},
	})
	if err != nil {
		t.Fatal(err)
	}
	set := func(want string, f filesFlags) {
		t.Helper()
		var out bytes.Buffer
		text := ""
		if err := setFiles(&session.Env{Out: &out}, c.Dir(), f); err != nil {
			text = err.Error()
		}
		if text += out.String(); !strings.Contains(text, want) {
			t.Errorf("%+v: %q, want %q", f, text, want)
		}
	}
	yes := true
	set("changed; in force once", filesFlags{observe: &yes})
	set("unchanged", filesFlags{observe: &yes})
	set("changed; in force once", filesFlags{allow: []string{"/srv/b", "/srv/a", "/srv/a"}})
	set("Windlass' own", filesFlags{allow: []string{"/var/lib/windlass/pki"}})
	set("was not allowed", filesFlags{forbid: []string{"/srv"}})
	set("changed; in force once", filesFlags{forbid: []string{"/srv/b"}})
	now, err := cluster.OpenHost(dir)
	if err != nil || !now.Member.Observe || !slices.Equal(now.AllowedPaths, []string{"/srv/a"}) {
		t.Errorf("%+v, allowed %q, %v", now.Member, now.AllowedPaths, err)
	}
	if _, err := cluster.ChangeHost(dir, func(s *cluster.Settings) { s.Member.Files = "" }); err != nil {
		t.Fatal(err)
	}
	set("do not change the files of this host", filesFlags{observe: &yes})
}
