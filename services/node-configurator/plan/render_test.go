package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// must is a value of a test's own making.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ign makes an Ignition configuration of JSON.
func ign(doc string) *structpb.Struct {
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON([]byte(doc)); err != nil {
		panic(err)
	}
	return s
}

func fileDoc(path, content string) string {
	return fmt.Sprintf(
		`{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":%q,"mode":420,"contents":{"source":"data:,%s"}}]}}`,
		path, content)
}

func mc(name, role string, config *structpb.Struct,
	change ...func(*configv1.MachineConfigSpec),
) *configv1.MachineConfig {
	c := &configv1.MachineConfig{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Spec: &configv1.MachineConfigSpec{
			Config: config,
		},
	}
	if role != "" {
		c.Metadata.Labels[RoleLabel] = role
	}
	for _, f := range change {
		f(c.Spec)
	}
	return c
}

func poolOf(name string, roles ...string) *configv1.MachineConfigPool {
	return &configv1.MachineConfigPool{
		Metadata: &metav1.ObjectMeta{Name: name},
		Spec: &configv1.MachineConfigPoolSpec{
			MachineConfigSelector: &metav1.LabelSelector{MatchExpressions: []*metav1.LabelSelectorRequirement{
				{Key: RoleLabel, Operator: "In", Values: roles},
			}},
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"node-role.kubernetes.io/" + name: ""}},
		},
	}
}

func content(t testing.TB, c *configv1.MachineConfig, path string) string {
	t.Helper()
	config, bad := parse(c.GetSpec().GetConfig(), "")
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	for _, f := range config.Storage.Files {
		if f.Path == path {
			return strings.TrimPrefix(*f.Contents.Source, "data:,")
		}
	}
	return "(none)"
}

func TestThePoolsOwnConfigurationsHaveTheLastWord(t *testing.T) {
	r, err := Render(poolOf("infra", "worker", "infra"), []*configv1.MachineConfig{
		mc("00-infra", "infra", ign(fileDoc("/etc/x", "infra"))),
		mc("99-worker", "worker", ign(fileDoc("/etc/x", "worker"))),
		mc("50-worker", "worker", ign(fileDoc("/etc/y", "early"))),
		mc("60-worker", "worker", ign(fileDoc("/etc/y", "late"))),
		mc("50-master", "master", ign(fileDoc("/etc/x", "master"))),
		mc("rendered-infra-0", "infra", ign(fileDoc("/etc/x", "rendered"))),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"50-worker", "60-worker", "99-worker", "00-infra"}; !slices.Equal(r.Sources, want) {
		t.Errorf("merged %v, want %v", r.Sources, want)
	}
	if x, y := content(t, r.Config, "/etc/x"), content(t, r.Config, "/etc/y"); x != "infra" || y != "late" {
		t.Errorf("x %s, y %s", x, y)
	}
}

func TestSettingsAreMergedEachInItsOwnWay(t *testing.T) {
	r, err := Render(poolOf("worker", "worker"), []*configv1.MachineConfig{
		mc("a", "worker", nil, func(s *configv1.MachineConfigSpec) {
			s.KernelArguments, s.Extensions, s.OsImageUrl, s.KernelType = []string{"quiet", "a=1"}, []string{"usbguard"},
				"first", "realtime"
		}),
		mc("b", "worker", nil, func(s *configv1.MachineConfigSpec) {
			s.KernelArguments, s.Fips, s.OsImageUrl, s.KernelType = []string{"quiet"}, proto.Bool(true), "second", "default"
		}),
		mc("c", "worker", nil),
	}, []*configv1.MachineConfig{mc("rendered-worker-0", "", nil, func(s *configv1.MachineConfigSpec) {
		s.KernelArguments, s.Extensions, s.OsImageUrl, s.KernelType = []string{"quiet", "a=1", "quiet"}, []string{"usbguard"},
			"second", "realtime"
		s.Fips = proto.Bool(true)
	})})
	if err != nil {
		t.Fatal(err)
	}
	s := r.Config.GetSpec()
	if !slices.Equal(s.GetKernelArguments(), []string{"quiet", "a=1", "quiet"}) || !s.GetFips() ||
		s.GetOsImageUrl() != "second" ||
		s.GetKernelType() != "realtime" || !slices.Equal(s.GetExtensions(), []string{"usbguard"}) {
		t.Errorf("merged %v", s)
	}
}

func TestACompressionIsNotInherited(t *testing.T) {
	packed := `{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/x","contents":{"compression":"gzip","source":"data:,p"}}]}}`
	r, err := Render(poolOf("worker", "worker"), []*configv1.MachineConfig{
		mc("a", "worker", ign(packed)), mc("b", "worker", ign(fileDoc("/x", "plain"))),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := must(json.Marshal(r.Config.GetSpec().GetConfig().AsMap()))
	want := `{"ignition":{"version":"3.5.0"},"storage":{"files":[{"contents":{"source":"data:,plain"},"mode":420,"overwrite":true,"path":"/x"}]}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestWhatCannotBeRenderedIsSaid(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		configs    []*configv1.MachineConfig
	}{
		{"nothing is selected", "no machine config matches", []*configv1.MachineConfig{mc("a", "master", nil)}},
		{"a broken one", `machine config "a": spec.config.ignition.version: is "2.2.0"`, []*configv1.MachineConfig{
			mc("a", "worker", ign(`{"ignition":{"version":"2.2.0"}}`)),
		}},
		{"a kernel without sources", "kernel-devel does not go with the kernel type realtime", []*configv1.MachineConfig{
			mc("a", "worker", nil, func(s *configv1.MachineConfigSpec) {
				s.Extensions, s.KernelType = []string{"kernel-devel"},
					"realtime"
			}),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := Render(poolOf("worker", "worker"), tc.configs, nil); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("Render = %v, want %q", err, tc.want)
			}
		})
	}
	unlabelled := poolOf("worker", "worker")
	unlabelled.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}}
	c := mc("a", "", nil)
	c.Metadata.Labels["x"] = "y"
	if _, err := Render(unlabelled, []*configv1.MachineConfig{c}, nil); err == nil ||
		!strings.Contains(err.Error(), "has no label") {
		t.Errorf("Render = %v", err)
	}
}

// unitDoc is an Ignition configuration of enabled services; each has a line of its own.
func unitDoc(services ...string) string {
	var units []any
	for _, s := range services {
		name, line, _ := strings.Cut(s, ":")
		units = append(units, map[string]any{
			"name": name, "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n" + line + "\n",
		})
	}
	return string(must(json.Marshal(map[string]any{
		"ignition": map[string]any{"version": "3.4.0"}, "systemd": map[string]any{"units": units},
	})))
}

func TestWhatCannotBePutInForceNamesItsFieldAndItsSource(t *testing.T) {
	const begin = "cannot be put in force: "
	const kernel = "spec.kernelType: cannot be changed: no driver of this release changes the kernel of a machine"
	const chrony = `[Service] User=: "chrony" is not put in force: units run as root of their machine`
	realtime := func(s *configv1.MachineConfigSpec) { s.KernelType = "realtime" }
	fips := func(s *configv1.MachineConfigSpec) { s.Fips = proto.Bool(true) }
	base := mc("50-base", "worker", ign(fileDoc("/etc/base", "1")))
	for _, tc := range []struct {
		name             string
		configs, present []*configv1.MachineConfig
		want             string // empty if all can be put in force
	}{
		{
			"the kernel of a first configuration",
			[]*configv1.MachineConfig{base, mc("60-a", "worker", nil, realtime)},
			nil, begin + `machine config "60-a": ` + kernel,
		},
		{
			"a kernel that comes",
			[]*configv1.MachineConfig{base, mc("60-a", "worker", nil, realtime)},
			[]*configv1.MachineConfig{mc("r", "", nil)},
			begin + `machine config "60-a": ` + kernel,
		},
		{
			"a kernel that the nodes have been asked for before",
			[]*configv1.MachineConfig{base, mc("60-a", "worker", nil, realtime)},
			[]*configv1.MachineConfig{mc("r", "", nil, realtime)},
			"",
		},
		{
			"a kernel that one of two nodes has been asked for before",
			[]*configv1.MachineConfig{base, mc("60-a", "worker", nil, realtime)},
			[]*configv1.MachineConfig{mc("r", "", nil, realtime), mc("s", "", nil)},
			begin + `machine config "60-a": ` + kernel,
		},
		{
			"a unit has another place in the merged list",
			[]*configv1.MachineConfig{
				mc("60-a", "worker", ign(unitDoc("a.service:", "b.service:User=chrony"))),
				mc("70-b", "worker", ign(unitDoc("c.service:", "a.service:", "d.service:User=chrony"))),
			},
			nil, begin + `machine config "60-a": spec.config.systemd.units[1].contents: ` + chrony +
				`; machine config "70-b": spec.config.systemd.units[2].contents: ` + chrony,
		},
		{
			"a unit that is overridden",
			[]*configv1.MachineConfig{
				mc("60-a", "worker", ign(unitDoc("a.service:User=chrony"))), mc("70-b", "worker", ign(unitDoc("a.service:"))),
			},
			nil, "",
		},
		{
			"a change that no single one makes",
			[]*configv1.MachineConfig{base},
			[]*configv1.MachineConfig{mc("r", "", nil, fips)},
			begin + `machine config "50-base": spec.fips: cannot be changed once a machine has its configuration`,
		},
		{
			"two that do not go together",
			[]*configv1.MachineConfig{base, mc("60-a", "worker", ign(fileDoc("/etc/base/x", "1")))},
			nil,
			begin + `merged: spec.config: "/etc/base/x" is wanted below "/etc/base", which is a file`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			have := ""
			if _, err := Render(poolOf("worker", "worker"), tc.configs, tc.present); err != nil {
				have = err.Error()
			}
			if diff := cmp.Diff(tc.want, have); diff != "" {
				t.Errorf("reason (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAReasonNamesNotTooMuch(t *testing.T) {
	var services []string
	for i := range maxNamed + 2 {
		services = append(services, fmt.Sprintf("%d.service:User=chrony", i))
	}
	_, err := Render(poolOf("worker", "worker"), []*configv1.MachineConfig{mc("a", "worker", ign(unitDoc(services...)))},
		nil)
	if err == nil || strings.Count(err.Error(), "User=") != maxNamed || !strings.HasSuffix(err.Error(), " and 2 more") {
		t.Errorf("Render = %v", err)
	}
}

func TestTheNameDependsOnTheContentAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,8}`), 1, 5, rapid.ID[string]).Draw(t, "names")
		var configs []*configv1.MachineConfig
		for i, n := range names {
			configs = append(configs,
				mc(n, "worker", ign(fileDoc("/"+rapid.StringMatching(`[a-c]`).Draw(t, "path"), fmt.Sprint(i)))))
		}
		pool := poolOf("worker", "worker")
		a := must(Render(pool, configs, nil))
		other := slices.Clone(configs)
		slices.Reverse(other)
		for i, c := range other {
			other[i] = proto.CloneOf(c)
			other[i].Metadata.ResourceVersion = fmt.Sprint(i)
			other[i].Metadata.Annotations = map[string]string{"note": "x"}
		}
		b := must(Render(pool, other, nil))
		if a.Config.GetMetadata().GetName() != b.Config.GetMetadata().GetName() {
			t.Fatal("the same content has two names")
		}
		other[0].Spec.Fips = proto.Bool(true)
		if c := must(Render(pool, other, nil)); c.Config.GetMetadata().GetName() == a.Config.GetMetadata().GetName() {
			t.Fatal("two contents have one name")
		}
	})
}

func TestTheGreatestActionCountsAndNamesItsItem(t *testing.T) {
	base := mc("a", "worker", ign(fileDoc("/etc/x", "1")))
	for _, tc := range []struct {
		name   string
		after  *configv1.MachineConfig
		action Impact
		why    string
	}{
		{"nothing differs", mc("b", "worker", ign(fileDoc("/etc/x", "1"))), None, ""},
		{"a file means a reboot", mc("b", "worker", ign(fileDoc("/etc/x", "2"))), Reboot, `file "/etc/x" changed`},
		{
			"kernel arguments mean a reboot", mc("b", "worker", ign(fileDoc("/etc/x", "1")),
				func(s *configv1.MachineConfigSpec) { s.KernelArguments = []string{"a"} }), Reboot,
			`kernelArguments changed: added "a"`,
		},
		{"the default kernel is the default", mc("b", "worker", ign(fileDoc("/etc/x", "1")),
			func(s *configv1.MachineConfigSpec) { s.KernelType = "default" }), None, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if action, why := Needed(Diff(base, tc.after, defaults())); action != tc.action || why != tc.why {
				t.Errorf("%v because of %q, want %v because of %q", action, why, tc.action, tc.why)
			}
		})
	}
	for path, want := range map[string]Impact{
		"/var/lib/kubelet/config.json": None, "/etc/nmstate/openshift/a.yml": None, "/etc/nmstate/openshiftx": Reboot,
		"/etc/containers/policy.json": None, "/etc/containers/registries.d/a": None,
		"/etc/containers/registries.conf": Drain, "/etc/containers": Reboot,
	} {
		changes := Diff(mc("a", "worker", nil), mc("b", "worker", ign(fileDoc(path, "1"))), defaults())
		if action, _ := Needed(changes); action != want {
			t.Errorf("%s: %v, want %v", path, action, want)
		}
	}
	keys := ign(`{"ignition":{"version":"3.2.0"},"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-rsa x"]}]}}`)
	if action, _ := Needed(Diff(mc("a", "worker", nil), mc("b", "worker", keys), defaults())); action != None {
		t.Errorf("a key of a user: %v", action)
	}
	unit := ign(
		`{"ignition":{"version":"3.2.0"},"systemd":{"units":[{"name":"a.service","contents":"[Service]\nExecStart=/bin/true\n"}]}}`)
	if action, why := Needed(Diff(mc("a", "worker", nil), mc("b", "worker", unit), defaults())); action != Reboot ||
		why != `unit "a.service" added` {
		t.Errorf("a unit: %v %s", action, why)
	}
}

func TestAChangeOfAListNamesItsEntries(t *testing.T) {
	of := func(arguments ...string) *configv1.MachineConfig {
		return mc("a", "worker", nil, func(s *configv1.MachineConfigSpec) { s.KernelArguments = arguments })
	}
	for name, tc := range map[string]struct {
		before, after *configv1.MachineConfig
		want          string
	}{
		"nothing differs":        {of("a"), of("a"), ""},
		"one comes and one goes": {of("a", "b"), of("a", "c"), `kernelArguments changed: added "c"; removed "b"`},
		"one comes once more":    {of("a"), of("a", "a"), `kernelArguments changed: added "a"`},
		"one goes":               {of("a", "b", "a"), of("b", "a"), `kernelArguments changed: removed "a"`},
		"their order":            {of("a", "b"), of("b", "a"), "kernelArguments reordered"},
		"extensions": {
			of(), mc("a", "worker", nil, func(s *configv1.MachineConfigSpec) { s.Extensions = []string{"usbguard"} }),
			`extensions changed: added "usbguard"`,
		},
	} {
		var lines []string
		for _, c := range Diff(tc.before, tc.after, defaults()) {
			lines = append(lines, c.String())
		}
		if got := strings.Join(lines, ", "); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestAPreviewSaysWhatNodesCannotBeBroughtTo(t *testing.T) {
	pool := poolOf("worker", "worker")
	possible := []*configv1.MachineConfig{mc("50-a", "worker", ign(fileDoc("/etc/x", "1")))}
	impossible := []*configv1.MachineConfig{mc("50-a", "worker", ign(fileDoc("/etc/x", "1")),
		func(s *configv1.MachineConfigSpec) { s.KernelType = "realtime" })}
	if r, why, err := Preview(pool, possible, nil); err != nil || len(why) > 0 || r.Config == nil {
		t.Errorf("what is possible: %v, %v, %v", r, why, err)
	}
	r, why, err := Preview(pool, impossible, nil)
	if err != nil || len(why) != 1 || !strings.Contains(why[0], `machine config "50-a": spec.kernelType`) ||
		r.Config.GetSpec().GetKernelType() != "realtime" {
		t.Errorf("what is impossible: %v, %v, %v", r, why, err)
	}
	if _, err := Render(pool, impossible, nil); err == nil || !strings.Contains(err.Error(), why[0]) {
		t.Errorf("the controller renders it: %v", err)
	}
	if _, _, err := Preview(pool, nil, nil); err == nil {
		t.Error("nothing is rendered, without an error")
	}
}
