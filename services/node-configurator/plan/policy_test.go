package plan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// settings makes settings of the JSON of their policies.
func settings(policies string) *configv1.MachineConfiguration {
	c := &configv1.MachineConfiguration{}
	if err := protojson.Unmarshal([]byte(`{"spec":{"nodeDisruptionPolicy":`+policies+`}}`), c); err != nil {
		panic(err)
	}
	return c
}

// withUnits is a configuration of files and enabled services.
func withUnits(name string, files, units map[string]string) *configv1.MachineConfig {
	doc := map[string]any{"ignition": map[string]any{"version": "3.2.0"}}
	var list, services []any
	for path, text := range files {
		list = append(list, map[string]any{"path": path, "contents": map[string]any{"source": "data:," + text}})
	}
	for unit, text := range units {
		services = append(services, map[string]any{"name": unit, "enabled": true, "contents": text})
	}
	doc["storage"], doc["systemd"] = map[string]any{"files": list}, map[string]any{"units": services}
	return mc(name, "worker", ign(string(must(json.Marshal(doc)))))
}

func TestWhatAPolicyRequires(t *testing.T) {
	const (
		plain   = "[Service]\nExecStart=/bin/a\n"
		reloads = plain + "ExecReload=/bin/kill -HUP $MAINPID\n"
	)
	units := map[string]string{"a.service": plain, "b.service": reloads}
	before := withUnits("before", map[string]string{"/etc/x": "1"}, units)
	changed := withUnits("after", map[string]string{"/etc/x": "2"}, units)
	file := func(actions string) string { return `{"files":[{"path":"/etc/x","actions":[` + actions + `]}]}` }
	const (
		restartA = `{"type":"Restart","restart":{"serviceName":"a.service"}}`
		reloadB  = `{"type":"Reload","reload":{"serviceName":"b.service"}}`
		reloadA  = `{"type":"Reload","reload":{"serviceName":"a.service"}}`
	)
	for _, tc := range []struct {
		name, policies string
		after          *configv1.MachineConfig
		want           Impact
		why            string
		services       string
	}{
		{"no policy means a reboot", "{}", changed, Reboot, `file "/etc/x" changed`, ""},
		{"nothing", file(`{"type":"None"}`), changed, None, "", ""},
		{"a drain", file(`{"type":"Drain"}`), changed, Drain, `file "/etc/x" changed`, ""},
		{"a reboot", file(`{"type":"Reboot"}`), changed, Reboot, `file "/etc/x" changed`, ""},
		{"units are read again anyway", file(`{"type":"DaemonReload"}`), changed, None, "", ""},
		{"a service is restarted", file(restartA), changed, Restart, `file "/etc/x" changed`, "restart a.service"},
		{"a service is reloaded", file(reloadB), changed, Restart, `file "/etc/x" changed`, "reload b.service"},
		{
			"a drain and services", file(restartA + `,{"type":"Drain"},` + reloadB), changed, Drain, `file "/etc/x" changed`,
			"restart a.service, reload b.service",
		},
		{
			"a service that cannot be reloaded", file(reloadA), changed, Reboot,
			`file "/etc/x" changed: the unit "a.service" has no ExecReload`, "",
		},
		{
			"a service that is not there", file(`{"type":"Restart","restart":{"serviceName":"crio.service"}}`), changed, Reboot,
			`file "/etc/x" changed: the node has no enabled unit "crio.service"`, "",
		},
		{
			"a service that ends with the change", `{"files":[{"path":"/etc/x","actions":[` + restartA +
				`]}],"units":[{"name":"a.service","actions":[{"type":"None"}]}]}`,
			withUnits("after", map[string]string{"/etc/x": "2"}, map[string]string{"b.service": reloads}), None, "", "",
		},
		{
			"the longest path counts", `{"files":[{"path":"/etc/x","actions":[{"type":"None"}]},` +
				`{"path":"/etc","actions":[{"type":"Drain"}]},{"path":"/","actions":[{"type":"Reboot"}]}]}`,
			changed, None, "", "",
		},
		{
			"a directory above it", `{"files":[{"path":"/etc","actions":[` + restartA + `]}]}`, changed, Restart,
			`file "/etc/x" changed`, "restart a.service",
		},
		{
			"not a path that only begins so", `{"files":[{"path":"/et","actions":[{"type":"None"}]}]}`, changed, Reboot,
			`file "/etc/x" changed`, "",
		},
		{
			"a unit", `{"units":[{"name":"a.service","actions":[` + reloadB + `]}]}`,
			withUnits("after", map[string]string{"/etc/x": "1"}, map[string]string{
				"a.service": plain + "WorkingDirectory=/\n", "b.service": reloads,
			}), Restart, `unit "a.service" changed`, "reload b.service",
		},
		{
			"to restart one includes to reload it", `{"files":[{"path":"/etc/x","actions":[` + reloadB +
				`]},{"path":"/etc/y","actions":[{"type":"Restart","restart":{"serviceName":"b.service"}}]}]}`,
			withUnits("after", map[string]string{"/etc/x": "2", "/etc/y": "1"}, units), Restart, `file "/etc/x" changed`,
			"restart b.service",
		},
		{
			"a reboot swallows the rest", file(restartA),
			withUnits("after", map[string]string{"/etc/x": "2", "/etc/y": "1"}, units), Reboot, `file "/etc/y" added`, "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := settings(tc.policies)
			if bad := PolicyFaults(c.GetSpec().GetNodeDisruptionPolicy(), "spec"); len(bad) > 0 {
				t.Fatal(bad)
			}
			changes := Diff(before, tc.after, Policies(c))
			if impact, why := Needed(changes); impact != tc.want || why != tc.why {
				t.Errorf("%v because of %q, want %v because of %q", impact, why, tc.want, tc.why)
			}
			var got []string
			for _, s := range Services(changes) {
				got = append(got, map[bool]string{true: "reload ", false: "restart "}[s.GetReload()]+s.GetName())
			}
			if strings.Join(got, ", ") != tc.services {
				t.Errorf("services %q, want %q", got, tc.services)
			}
			v := NodeView{Node: node("n", "before", "after", working), Current: before, Desired: tc.after, Policy: Policies(c)}
			if o := order(v); len(o.Services) != len(got) || o.Reboot != (tc.want == Reboot) || o.Apply == tc.want.Drains() {
				t.Errorf("order %+v", o)
			}
		})
	}
}

func TestAPolicyOfUsersReplacesADefault(t *testing.T) {
	if diff := cmp.Diff(defaults(), Policies(nil), protocmp.Transform()); diff != "" {
		t.Errorf("without settings (-defaults +in force):\n%s", diff)
	}
	c := settings(`{"files":[{"path":"/etc/containers/registries.conf","actions":[{"type":"None"}]}],` +
		`"sshkey":{"actions":[{"type":"Reboot"}]}}`)
	p := Policies(c)
	if len(p.GetFiles()) != len(defaults().GetFiles()) {
		t.Errorf("%d files, want %d", len(p.GetFiles()), len(defaults().GetFiles()))
	}
	changes := Diff(mc("a", "worker", nil), mc("b", "worker", ign(fileDoc("/etc/containers/registries.conf", "1"))), p)
	if impact, _ := Needed(changes); impact != None {
		t.Errorf("its policy is not in force: %v", impact)
	}
	keys := ign(`{"ignition":{"version":"3.2.0"},"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-rsa x"]}]}}`)
	if impact, _ := Needed(Diff(mc("a", "worker", nil), mc("b", "worker", keys), p)); impact != Reboot {
		t.Errorf("a key of a user: %v", impact)
	}
	c.Metadata = mc("cluster", "", nil).GetMetadata()
	c.Metadata.Generation = 7
	want := &configv1.MachineConfigurationStatus{
		ObservedGeneration:         proto.Int32(7),
		NodeDisruptionPolicyStatus: &configv1.NodeDisruptionPolicyStatus{ClusterPolicies: p},
	}
	if diff := cmp.Diff(want, PolicyStatus(c), protocmp.Transform()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestPoliciesThatAreRefused(t *testing.T) {
	for policies, want := range map[string]string{
		`{"files":[{"path":"etc/x","actions":[{"type":"None"}]}]}`: `p.files[0].path: is "etc/x", must be an absolute path ` +
			`without . or .. or a slash at its end`,
		`{"files":[{"path":"/etc/","actions":[{"type":"None"}]}]}`: `p.files[0].path: is "/etc/", must be an absolute path ` +
			`without . or .. or a slash at its end`,
		`{"files":[{"path":"/a","actions":[{"type":"None"}]},{"path":"/a","actions":[{"type":"None"}]}]}`: `p.files[1].path: ` +
			`"/a" is there twice`,
		`{"units":[{"name":"a","actions":[{"type":"None"}]}]}`: `p.units[0].name: is "a", must be the name of a unit, such ` +
			`as chronyd.service`,
		`{"units":[{"name":"a.service","actions":[{"type":"None"},{"type":"Drain"}]}]}`: `p.units[0].actions[0].type: None ` +
			`must be the only action`,
		`{"sshkey":{"actions":[{"type":"Drain"},{"type":"Reboot"}]}}`: `p.sshkey.actions[1].type: Reboot must be the only ` +
			`action`,
		`{"sshkey":{"actions":[{"type":"Restart"}]}}`: `p.sshkey.actions[0].restart.serviceName: is "", must be the name of ` +
			`a service, such as chronyd.service`,
		`{"sshkey":{"actions":[{"type":"Reload","reload":{"serviceName":"a.timer"}}]}}`: `p.sshkey.actions[0].reload.` +
			`serviceName: is "a.timer", must be the name of a service, such as chronyd.service`,
		`{"sshkey":{"actions":[{"type":"Drain","restart":{"serviceName":"a.service"}}]}}`: `p.sshkey.actions[0].restart: ` +
			`must not be given for the type Drain`,
	} {
		bad := PolicyFaults(settings(policies).GetSpec().GetNodeDisruptionPolicy(), "p")
		if len(bad) != 1 || bad[0].String() != want {
			t.Errorf("%s: %v, want %s", policies, bad, want)
		}
	}
}
