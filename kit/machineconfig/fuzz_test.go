package machineconfig

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// FuzzWanted holds that a configuration never wants anything outside the machine's directory, nor more than a machine
// takes.
func FuzzWanted(f *testing.F) {
	for _, seed := range []string{
		`{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/x","mode":420,"contents":{"source":"data:,x"}}],"directories":[{"path":"/d"}],"links":[{"path":"/l","target":"/etc/x"}]}}`,
		`{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/../x","contents":{"source":"data:;base64,AAAA"}},{"path":"/a/../../b"}]}}`,
		`{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/z","contents":{"compression":"gzip","source":"data:;base64,H4sIAAAAAAAAA0vOzytJzStRyM1TyC9LLQIAh6LTrQ4AAAA="}}]}}`,
		`{"ignition":{"version":"3.2.0"},"systemd":{"units":[{"name":"../a.service","enabled":true,"contents":"[Service]\nType=oneshot\nExecStart=/bin/sh -c \"echo $$A %n\"\n"}]}}`,
		`{"ignition":{"version":"3.2.0"},"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-rsa A"]}]}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		doc := &structpb.Struct{}
		if doc.UnmarshalJSON([]byte(text)) != nil {
			return
		}
		cfg := &configv1.MachineConfig{Spec: &configv1.MachineConfigSpec{Config: doc}}
		w, bad := Read(nil, cfg)
		_, err := parse(cfg)
		if again, none := Read(cfg, cfg); err == nil && len(none) > 0 || len(bad) == 0 && !reflect.DeepEqual(again, w) {
			t.Fatalf("%s wants %v, of a machine that has it %v, %v", text, w, again, none)
		}
		if len(bad) > 0 {
			return
		}
		size := 0
		for _, e := range w.Entries {
			if !filepath.IsLocal(e.Path) || filepath.Clean(e.Path) != e.Path {
				t.Fatalf("%s wants %q", text, e.Path)
			}
			size += len(e.Content)
		}
		if size > maxContent {
			t.Fatalf("%s wants %d bytes", text, size)
		}
		for _, u := range w.Units {
			if strings.ContainsAny(u.Name, "/\x00") {
				t.Fatalf("%s wants the unit %q", text, u.Name)
			}
		}
	})
}

// FuzzUnit holds that a unit that is taken has whole commands, and the same ones when it is read again without its
// comments.
func FuzzUnit(f *testing.F) {
	for _, seed := range []string{
		"[Unit]\nDescription=x\n[Service]\nType=oneshot\nExecStart=-/bin/sh -c 'a b' \"c\\n\"\nExecStart=/bin/true\nEnvironment=A=b \"C=d e\"\nTimeoutStartSec=1min 30s\n[Install]\nWantedBy=multi-user.target\n",
		"# c\n[Service]\nExecStart=/bin/echo a \\\n  b\nRestart=always\n", "[Service]\nExecStart=\nExecStart=%%a %n %\n",
		"[Service\nx", "=", "[Service]\nTimeoutStartSec=infinity\n",
		"[Service]\nExecStart=/a \"\\x41\\101\\u00e9\n", "[Service]\nTimeoutStartSec=99999999999999999999h\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parse := func(text string) (unitFile, bool) {
			u, bad := parseUnit("a.service", []part{{"contents", text}})
			return u, len(bad) == 0
		}
		u, ok := parse(text)
		if !ok {
			return
		}
		if u.Limit < 0 {
			t.Fatalf("%q starts in %v", text, u.Limit)
		}
		for _, c := range slices.Concat(u.Pre, u.Start) {
			if len(c.Args) == 0 || c.Args[0] == "" {
				t.Fatalf("%q has the command %+v", text, c)
			}
		}
		again, ok := parse(strings.Join(logicalLines(text), "\n"))
		if !ok || len(again.Start) != len(u.Start) || len(again.Pre) != len(u.Pre) || len(again.Env) != len(u.Env) {
			t.Fatalf("%q is %+v, without comments %+v", text, u, again)
		}
	})
}
