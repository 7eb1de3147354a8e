package machineconfig

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// ign makes an Ignition configuration of JSON, without its version.
func ign(t testing.TB, doc string) *structpb.Struct {
	t.Helper()
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON([]byte(doc)); err != nil {
		t.Fatal(err)
	}
	ignition := s.GetFields()["ignition"].GetStructValue()
	if ignition == nil {
		ignition = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		s.Fields["ignition"] = structpb.NewStructValue(ignition)
	}
	ignition.Fields["version"] = structpb.NewStringValue("3.5.0")
	return s
}

func config(t testing.TB, doc string) *configv1.MachineConfig {
	t.Helper()
	return &configv1.MachineConfig{Spec: &configv1.MachineConfigSpec{Config: ign(t, doc)}}
}

func spec(f func(*configv1.MachineConfigSpec)) *configv1.MachineConfig {
	c := &configv1.MachineConfig{Spec: &configv1.MachineConfigSpec{KernelType: "default", Fips: proto.Bool(false)}}
	f(c.Spec)
	return c
}

func lines(faults []object.Fault) []string {
	var out []string
	for _, f := range faults {
		out = append(out, f.String())
	}
	return out
}

// check compares the faults of a change, by their lines.
func check(t *testing.T, before, after *configv1.MachineConfig, want ...string) {
	t.Helper()
	_, bad := Read(before, after)
	if diff := cmp.Diff(want, lines(bad)); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestTheKernelCannotBeChanged(t *testing.T) {
	const fault = "spec.kernelType: cannot be changed: no driver of this release changes the kernel of a machine"
	plain := spec(func(*configv1.MachineConfigSpec) {})
	of := func(kernel string) *configv1.MachineConfig {
		return spec(func(s *configv1.MachineConfigSpec) { s.KernelType = kernel })
	}
	check(t, nil, of("realtime"), fault)
	check(t, plain, of("realtime"), fault)
	check(t, of("realtime"), of("64k-pages"), fault)
	check(t, of("realtime"), of("realtime"))
	check(t, of("realtime"), plain) // a machine has none of it, whatever it was asked to have
}

func TestOfTheOperatingSystem(t *testing.T) {
	image := "example.com/os@sha256:" + strings.Repeat("0", 64)
	for _, tc := range []struct {
		name   string
		change func(*configv1.MachineConfigSpec)
		system System
		faults []string
	}{
		{"nothing", func(*configv1.MachineConfigSpec) {}, System{}, nil},
		{"an image", func(s *configv1.MachineConfigSpec) { s.OsImageUrl = image }, System{Image: image}, nil},
		{
			"a tag", func(s *configv1.MachineConfigSpec) { s.OsImageUrl = "example.com/os:1" },
			System{Image: "example.com/os:1"},
			[]string{`spec.osImageURL: "example.com/os:1" must name an image by its digest, as NAME@sha256:…: a tag may be ` +
				"another image on another node"},
		},
		{
			"extensions without an image", func(s *configv1.MachineConfigSpec) { s.Extensions = []string{"usbguard"} },
			System{Extensions: []string{"usbguard"}},
			[]string{"spec.extensions: requires spec.baseOSExtensionsContainerImage, the image that has them"},
		},
		{
			"an image without extensions",
			func(s *configv1.MachineConfigSpec) { s.BaseOsExtensionsContainerImage = image },
			System{},
			nil,
		},
		{
			"extensions",
			func(s *configv1.MachineConfigSpec) {
				s.BaseOsExtensionsContainerImage, s.Extensions = image, []string{"b", "a", "b"}
			},
			System{ExtensionsImage: image, Extensions: []string{"a", "b"}},
			nil,
		},
		{
			"an extension that leads out",
			func(s *configv1.MachineConfigSpec) {
				s.BaseOsExtensionsContainerImage, s.Extensions = image, []string{"../a"}
			},
			System{ExtensionsImage: image, Extensions: []string{"../a"}},
			[]string{`spec.extensions[0]: "../a" is no name of an extension`},
		},
		{
			"kernel arguments",
			func(s *configv1.MachineConfigSpec) { s.KernelArguments = []string{`a="b c"  d`, "e"} },
			System{KernelArguments: []string{`a="b c"`, "d", "e"}},
			nil,
		},
		{
			"no kernel arguments",
			func(s *configv1.MachineConfigSpec) { s.KernelArguments = []string{" ", "a\nb", `a="b`} },
			System{KernelArguments: []string{"a", "b", `a="b`}},
			[]string{
				`spec.kernelArguments[0]: " " is no kernel argument`, `spec.kernelArguments[1]: "a\nb" is no kernel argument`,
				`spec.kernelArguments[2]: "a=\"b": a quote does not end`,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := spec(tc.change)
			check(t, nil, c, tc.faults...)
			check(t, c, c)
			if diff := cmp.Diff(tc.system, SystemOf(c)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFIPSIsChosenWhenAMachineIsMade(t *testing.T) {
	with := spec(func(s *configv1.MachineConfigSpec) { s.Fips = proto.Bool(true) })
	without := spec(func(*configv1.MachineConfigSpec) {})
	const fault = "spec.fips: cannot be changed once a machine has its configuration"
	check(t, nil, with)
	check(t, with, with)
	check(t, without, with, fault)
	check(t, with, without, fault)
}

// Each section is refused where it comes, changes or goes, and not where it stays as it is.
func TestSectionsThatOnlyANewMachineCanHave(t *testing.T) {
	for _, tc := range []struct{ path, has, other string }{
		{
			"ignition.config", `{"ignition":{"config":{"merge":[{"source":"https://example.com/a"}]}}}`,
			`{"ignition":{"config":{"replace":{"source":"https://example.com/a"}}}}`,
		},
		{
			"ignition.proxy", `{"ignition":{"proxy":{"httpProxy":"http://proxy.example.com"}}}`,
			`{"ignition":{"proxy":{"httpProxy":"http://other.example.com"}}}`,
		},
		{
			"ignition.security",
			`{"ignition":{"security":{"tls":{"certificateAuthorities":[{"source":"data:,a"}]}}}}`,
			`{"ignition":{"security":{"tls":{"certificateAuthorities":[{"source":"data:,b"}]}}}}`,
		},
		{
			"ignition.timeouts", `{"ignition":{"timeouts":{"httpTotal":30}}}`, `{"ignition":{"timeouts":{"httpTotal":60}}}`,
		},
		{"kernelArguments", `{"kernelArguments":{"shouldExist":["quiet"]}}`, `{"kernelArguments":{"shouldExist":["nosmt"]}}`},
		{"passwd.groups", `{"passwd":{"groups":[{"name":"a"}]}}`, `{"passwd":{"groups":[{"name":"b"}]}}`},
		{"storage.disks", `{"storage":{"disks":[{"device":"/dev/a"}]}}`, `{"storage":{"disks":[{"device":"/dev/b"}]}}`},
		{
			"storage.filesystems", `{"storage":{"filesystems":[{"device":"/dev/a","format":"xfs","path":"/var"}]}}`,
			`{"storage":{"filesystems":[{"device":"/dev/a","format":"ext4","path":"/var"}]}}`,
		},
		{
			"storage.luks", `{"storage":{"luks":[{"name":"a","device":"/dev/a","clevis":{"tpm2":true}}]}}`,
			`{"storage":{"luks":[{"name":"a","device":"/dev/b","clevis":{"tpm2":true}}]}}`,
		},
		{
			"storage.raid", `{"storage":{"raid":[{"name":"r","level":"raid1","devices":["/dev/a","/dev/b"]}]}}`,
			`{"storage":{"raid":[{"name":"r","level":"raid0","devices":["/dev/a","/dev/b"]}]}}`,
		},
	} {
		t.Run(tc.path, func(t *testing.T) {
			fault := "spec.config." + tc.path + ": cannot be changed on a machine that runs"
			has, other, plain := config(t, tc.has), config(t, tc.other), config(t, `{}`)
			check(t, nil, has, fault)
			check(t, plain, has, fault)
			check(t, has, other, fault)
			check(t, has, plain, fault)
			check(t, has, has)
			check(t, plain, plain)
		})
	}
}

func TestItemsThatCannotBePutInForceAreNamedByTheirPaths(t *testing.T) {
	for _, tc := range []struct{ name, doc, want string }{
		{
			"another user", `{"passwd":{"users":[{"name":"core"},{"name":"admin"}]}}`,
			`spec.config.passwd.users[1].name: is "admin": no user but core can be changed`,
		},
		{
			"a shell of core", `{"passwd":{"users":[{"name":"core","shell":"/bin/sh"}]}}`,
			"spec.config.passwd.users[0]: only sshAuthorizedKeys can be changed",
		},
		{
			"append", `{"storage":{"files":[{"path":"/x","append":[{"source":"data:,x"}]}]}}`,
			"spec.config.storage.files[0].append: append is not supported: the existing content of the file is unknown",
		},
		{
			"remote contents", `{"storage":{"files":[{"path":"/x","contents":{"source":"https://example.com/x"}}]}}`,
			"spec.config.storage.files[0].contents.source: is a https URL: contents must be inline, as data: URLs",
		},
		{
			"other contents than the hash says",
			`{"storage":{"files":[{"path":"/x","contents":{"source":"data:,x","verification":{"hash":"sha256-` +
				strings.Repeat("0", 64) + `"}}}]}}`,
			"spec.config.storage.files[0].contents.verification.hash: the contents have another hash: " +
				"sha256-2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
		},
		{
			"another owner", `{"storage":{"files":[{"path":"/x","user":{"name":"chrony"}}]}}`,
			"spec.config.storage.files[0].user: files of other users than root cannot be made",
		},
		{
			"another group", `{"storage":{"directories":[{"path":"/x","group":{"id":7}}]}}`,
			"spec.config.storage.directories[0].group: files of other groups than root cannot be made",
		},
		{
			"a hard link", `{"storage":{"links":[{"path":"/x","target":"/y","hard":true}]}}`,
			"spec.config.storage.links[0]: only symbolic links with a target can be made",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			check(t, nil, config(t, tc.doc), tc.want)
			check(t, config(t, tc.doc), config(t, tc.doc))
		})
	}
}

func TestPathsThatCannotAllExist(t *testing.T) {
	check(t, nil, config(t, `{"storage":{"files":[{"path":"/home/core/.ssh/authorized_keys.d/ignition"}]},
		"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["a"]}]}}`),
		`spec.config: "/home/core/.ssh/authorized_keys.d/ignition" is wanted twice`)
	check(t, nil, config(t, `{"storage":{"files":[{"path":"/a"},{"path":"/a/b/c"}]}}`),
		`spec.config: "/a/b/c" is wanted below "/a", which is a file`)
	check(t, nil, config(t, `{"storage":{"directories":[{"path":"/a"}],"files":[{"path":"/a/b"}]}}`))
}

func TestAllFaultsAreNamedAtOnce(t *testing.T) {
	c := config(t, `{"storage":{"disks":[{"device":"/dev/a"}],"files":[{"path":"/x","user":{"id":1}}]}}`)
	c.Spec.KernelType = "realtime"
	check(t, nil, c,
		"spec.kernelType: cannot be changed: no driver of this release changes the kernel of a machine",
		"spec.config.storage.disks: cannot be changed on a machine that runs",
		"spec.config.storage.files[0].user: files of other users than root cannot be made")
}

func packed(t *testing.T, content []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(content)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return "data:;base64," + base64.StdEncoding.EncodeToString(out.Bytes())
}

func packedFile(t *testing.T, path, source string) string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{
		"path": path, "contents": map[string]any{"source": source, "compression": "gzip"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestPackedContentsAreUnpacked(t *testing.T) {
	file := packedFile(t, "/x", packed(t, []byte("unpacked")))
	got, bad := Read(nil, config(t, `{"storage":{"files":[`+file+`]}}`))
	want := []Entry{{Path: "x", Kind: File, Mode: 0o644, Content: []byte("unpacked")}}
	if diff := cmp.Diff(want, got.Entries); diff != "" || len(bad) > 0 {
		t.Errorf("%v, entries (-want +got):\n%s", bad, diff)
	}
}

func TestPackedContentsDoNotFillTheMemory(t *testing.T) {
	source := packed(t, make([]byte, maxContent/2+1))
	one, two := packedFile(t, "/x", source), packedFile(t, "/y", source)
	check(t, nil, config(t, `{"storage":{"files":[`+one+`]}}`))
	check(t, nil, config(t, `{"storage":{"files":[`+one+`,`+two+`]}}`), fmt.Sprintf(
		"spec.config.storage.files[1].contents.compression: the files of the configuration unpack to more than %d bytes",
		maxContent))
}

// unit makes a configuration of one unit of a name and an unset or set enabled, whose file and drop-ins are given.
func unit(t *testing.T, name string, enabled bool, contents string, dropins ...string) *configv1.MachineConfig {
	t.Helper()
	u := map[string]any{"name": name, "enabled": enabled}
	if contents != "" {
		u["contents"] = contents
	}
	var list []any
	for i, d := range dropins {
		list = append(list, map[string]any{"name": fmt.Sprintf("%d.conf", 9-i), "contents": d})
	}
	u["dropins"] = list
	raw, err := json.Marshal(map[string]any{"systemd": map[string]any{"units": []any{u}}})
	if err != nil {
		t.Fatal(err)
	}
	return config(t, string(raw))
}

// Source: systemd.unit(5), systemd.service(5) and systemd.exec(5).
func TestDirectivesThatAreNotPutInForce(t *testing.T) {
	const none = "this directive is not put in force"
	const only = "is not put in force, only basic.target, local-fs.target, network-online.target, network.target, " +
		"sysinit.target"
	for _, tc := range []struct{ text, want string }{
		{"[Unit]\nAfter=network.target crio.service\n", `[Unit] After=: "crio.service" ` + only},
		{"[Unit]\nRequires=crio.service\n", `[Unit] Requires=: "crio.service" ` + only},
		{"[Unit]\nWants=crio.service\n", `[Unit] Wants=: "crio.service" ` + only},
		{"[Unit]\nBefore=kubelet.service\n", "[Unit] Before=: " + none},
		{"[Unit]\nBindsTo=dev-a.device\n", "[Unit] BindsTo=: " + none},
		{"[Unit]\nConflicts=b.service\n", "[Unit] Conflicts=: " + none},
		{"[Unit]\nConditionPathExists=/x\n", "[Unit] ConditionPathExists=: " + none},
		{"[Unit]\nOnFailure=b.service\n", "[Unit] OnFailure=: " + none},
		{"[Unit]\nStartLimitBurst=3\n", "[Unit] StartLimitBurst=: " + none},
		{"[Service]\nUser=chrony\n", `[Service] User=: "chrony" is not put in force: units run as root of their machine`},
		{"[Service]\nGroup=chrony\n", `[Service] Group=: "chrony" is not put in force: units run as root of their machine`},
		{"[Service]\nDynamicUser=yes\n", "[Service] DynamicUser=: " + none},
		{"[Service]\nEnvironmentFile=/etc/x\n", "[Service] EnvironmentFile=: " + none},
		{"[Service]\nExecStop=/bin/true\n", "[Service] ExecStop=: " + none},
		{"[Service]\nExecStartPost=/bin/true\n", "[Service] ExecStartPost=: " + none},
		{"[Service]\nExecStopPost=/bin/true\n", "[Service] ExecStopPost=: " + none},
		{"[Service]\nRestartSec=10\n", "[Service] RestartSec=: " + none},
		{"[Service]\nMemoryMax=1G\n", "[Service] MemoryMax=: " + none},
		{"[Service]\nProtectSystem=strict\n", "[Service] ProtectSystem=: " + none},
		{"[Service]\nNoSuchDirective=1\n", "[Service] NoSuchDirective=: " + none},
		{"[Service]\nRemainAfterExit=yes\n", "[Service] RemainAfterExit=: is put in force for oneshot units only"},
		{"[Service]\nRemainAfterExit=perhaps\n", `[Service] RemainAfterExit=: "perhaps" is no boolean`},
		{"[Service]\nType=forking\n", `[Service] Type=: "forking" is not put in force, only simple, exec, oneshot`},
		{"[Service]\nType=notify\n", `[Service] Type=: "notify" is not put in force, only simple, exec, oneshot`},
		{
			"[Service]\nRestart=on-abort\n", `[Service] Restart=: "on-abort" is not put in force, only always, on-failure, no`,
		},
		{
			"[Service]\nType=oneshot\nRestart=on-failure\n",
			"[Service] Restart=: a oneshot unit is not started again: only no is put in force",
		},
		{"[Service]\nWorkingDirectory=here\n", `[Service] WorkingDirectory=: "here" is no absolute path`},
		{
			"[Service]\nWorkingDirectory=-/here\n",
			"[Service] WorkingDirectory=: the prefix - is not put in force: the directory must exist",
		},
		{"[Service]\nWorkingDirectory=/%i\n", `[Service] WorkingDirectory=: specifiers are not replaced, in "/%i"`},
		{"[Service]\nEnvironment==x\n", `[Service] Environment=: "=x" is not NAME=value`},
		{"[Service]\nEnvironment=A=\\x41\n", `[Service] Environment=: the escape \x is not put in force`},
		{"[Install]\nAlias=b.service\n", "[Install] Alias=: " + none},
		{"[Install]\nAlso=b.service\n", "[Install] Also=: " + none},
		{"[Install]\nWantedBy=../x\n", `[Install] WantedBy=: "../x" is no name of a unit`},
		{
			"[Install]\nWantedBy=shutdown.target\n", `[Install] WantedBy=: "shutdown.target" ` + only +
				", default.target, graphical.target, multi-user.target",
		},
		{"[Path]\nPathExists=/x\n", "[Path]: this section is not put in force"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			text := "[Service]\nExecStart=/bin/true\n" + tc.text
			const at = "spec.config.systemd.units[0]"
			check(t, nil, unit(t, "a.service", true, text), at+".contents: "+tc.want)
			check(t, unit(t, "a.service", true, text), unit(t, "a.service", true, text))
			check(t, unit(t, "a.service", true, text), unit(t, "a.service", true, "#\n"+text), at+".contents: "+tc.want)
			check(t, nil, unit(t, "a.service", false, text)) // it is only written
		})
	}
	check(t, nil, unit(t, "a.service", true, "ExecStart=/bin/true\n"),
		`spec.config.systemd.units[0].contents: line "ExecStart=/bin/true" is no setting of a section`)
	check(t, nil, unit(t, "a.service", true, "[Service]\nExecStart=/bin/true\n", "[Unit]\n", "[Service]\nUser=chrony\n"),
		`spec.config.systemd.units[0].dropins[1].contents: [Service] User=: "chrony" is not put in force: `+
			"units run as root of their machine")
}

func TestCommandsThatAreNotPutInForce(t *testing.T) {
	for value, want := range map[string]string{
		"web":                  `"web" does not begin with an absolute path`,
		"/bin/x 'a":            `a quote is not closed in "/bin/x 'a"`,
		"/bin/x %Z":            "specifier %Z is not known",
		"@/bin/x x":            "the prefix @ is not put in force",
		":/bin/x":              "the prefix : is not put in force",
		"-/bin/x":              "the prefix - is put in force for oneshot units only",
		"/bin/x ; /bin/y":      "several commands in one line are not put in force",
		`/bin/x \x41`:          `the escape \x is not put in force`,
		"/bin/x $OPTIONS":      "$OPTIONS is not replaced by the words of a variable: write ${NAME} for its value",
		"/bin/sh -c 'kill $$'": `$$ is not replaced, in "kill $$"`,
		"/bin/x ${A} ${NONE}":  "the variable ${NONE} is not set by Environment=",
		"":                     "must be given",
	} {
		check(t, nil, unit(t, "a.service", true, "[Service]\nEnvironment=A=1\nExecStart="+value+"\n"),
			"spec.config.systemd.units[0].contents: [Service] ExecStart=: "+want)
	}
	check(t, nil, unit(t, "a.service", true, "[Service]\nExecStart=/bin/a\nExecStart=/bin/b\n"),
		"spec.config.systemd.units[0].contents: [Service] ExecStart=: only a oneshot unit may have several")
	check(t, nil, unit(t, "a.service", true, "[Service]\nExecStartPre=/bin/a $B\nExecStart=/bin/b\n"),
		"spec.config.systemd.units[0].contents: [Service] ExecStartPre=: "+
			"$B is not replaced by the words of a variable: write ${NAME} for its value")
	check(t, nil, unit(t, "a.service", true, "[Service]\nExecStart=/bin/a ${MAINPID}\n"),
		"spec.config.systemd.units[0].contents: [Service] ExecStart=: the variable ${MAINPID} is not set by Environment=")
	check(t, nil, unit(t, "a.service", true, "[Service]\nType=oneshot\nExecStart=/bin/a\nExecReload=/bin/b\n"),
		"spec.config.systemd.units[0].contents: [Service] ExecReload=: a oneshot unit has no process that could reload")
}

func TestWhatReloadsAUnitKnowsItsProcess(t *testing.T) {
	for _, arg := range []string{"$MAINPID", "${MAINPID}"} {
		c := unit(t, "a.service", true, "[Service]\nExecStart=/bin/a\nExecReload=-/bin/kill -HUP "+arg+"\n")
		is, bad := Read(nil, c)
		want := []Command{{Args: []string{"/bin/kill", "-HUP", "${MAINPID}"}, Lenient: true}}
		if len(bad) > 0 || len(is.Units) != 1 || !reflect.DeepEqual(is.Units[0].Reload, want) {
			t.Errorf("%s: %+v, %v", arg, is.Units, bad)
		}
	}
}

func TestUnitsThatWouldNeverRun(t *testing.T) {
	const at = "spec.config.systemd.units[0].enabled: unit "
	const service = "[Service]\nExecStart=/bin/true\n"
	for _, tc := range []struct{ name, contents, want string }{
		{"a.timer", "[Timer]\nOnCalendar=daily\n[Install]\nWantedBy=timers.target\n", "only units of the type service do"},
		{"a.socket", "[Socket]\nListenStream=80\n", "only units of the type service do"},
		{"a.path", "[Path]\nPathExists=/x\n", "only units of the type service do"},
		{"var-lib.mount", "[Mount]\nWhat=/dev/a\n", "only units of the type service do"},
		{"a.target", "[Unit]\nDescription=a\n", "only units of the type service do"},
		{"a@.service", service, "it is a template without an instance"},
	} {
		want := fmt.Sprintf("%s%q never runs: %s", at, tc.name, tc.want)
		check(t, nil, unit(t, tc.name, true, tc.contents), want)
		check(t, unit(t, tc.name, true, tc.contents), unit(t, tc.name, true, tc.contents))
		check(t, nil, unit(t, tc.name, false, tc.contents))
	}
	const image = at + `"chronyd.service" has no contents, and units of the image are not run`
	check(t, nil, unit(t, "chronyd.service", true, ""), image)
	check(t, nil, unit(t, "chronyd.service", true, "", service), image)
	check(t, nil, unit(t, "chronyd.service", false, "", service))
}

func TestWhatChangesNothingIsAccepted(t *testing.T) {
	check(t, nil, unit(t, "a.service", true, `
[Unit]
Description=A
Documentation=man:a(8)
Wants=network-online.target
After=network-online.target network.target
X-Note=for people
[X-Tool]
Setting=1
[Service]
Type=oneshot
User=root
Group=0
RemainAfterExit=yes
SyslogIdentifier=a
ExecStart=-/bin/true
ExecStart=+/bin/true
ExecStart=!!/bin/sh -c 'echo $HOME ${A}'
Environment=A=1
[Install]
WantedBy=multi-user.target
`))
}

func TestAUnitIsLinkedForAllThatWantIt(t *testing.T) {
	links := func(install string) []string {
		got, bad := Read(nil, unit(t, "a.service", true, "[Service]\nExecStart=/bin/true\n[Install]\n"+install))
		if len(bad) > 0 {
			t.Errorf("%q: %v", install, bad)
		}
		var out []string
		for _, e := range got.Entries {
			if e.Kind == Link {
				out = append(out, e.Path+" -> "+e.Target)
			}
		}
		return out
	}
	const below, target = "etc/systemd/system/", "/a.service -> /etc/systemd/system/a.service"
	for install, want := range map[string][]string{
		"": {below + "multi-user.target.wants" + target},
		"WantedBy=multi-user.target graphical.target\nWantedBy=basic.target\nRequiredBy=network-online.target\n": {
			below + "basic.target.wants" + target, below + "graphical.target.wants" + target,
			below + "multi-user.target.wants" + target, below + "network-online.target.requires" + target,
		},
		"WantedBy=multi-user.target\nWantedBy=\nRequiredBy=basic.target\n": {below + "basic.target.requires" + target},
	} {
		if diff := cmp.Diff(want, links(install)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", install, diff)
		}
	}
}

// A machine may have a unit from a version that ignored what is refused now: it runs as it did.
func TestAUnitThatDoesNotChangeIsReadAsItRuns(t *testing.T) {
	c := unit(t, "a.service", true, "[Unit]\nAfter=b.service\n[Service]\nUser=chrony\nExecStart=@/bin/a b\n")
	got, bad := Read(c, c)
	want := []Command{{Args: []string{"/bin/a", "b"}}}
	if len(bad) > 0 || len(got.Units) != 1 || !cmp.Equal(got.Units[0].Start, want) {
		t.Errorf("%v, %v", got, bad)
	}
}

func TestUnitsAreRead(t *testing.T) {
	got, bad := Read(nil, unit(t, "web@1.service", true, `
# a comment
[Unit]
Description=Web
[Service]
Type=exec
Environment="GREETING=hello world" PORT=80
Environment=MODE=x
WorkingDirectory=/var/lib/web
ExecStartPre=-/bin/true
ExecStart=/usr/bin/web --name %n --instance=%i \
   --text "a b" 'c d' 100%%
Restart=on-failure
TimeoutStartSec=2min
[Install]
WantedBy=graphical.target
`))
	if len(bad) > 0 || len(got.Units) != 1 {
		t.Fatal(got, bad)
	}
	want := Unit{
		Name: "web@1.service", Text: got.Units[0].Text, Type: TypeExec,
		Pre: []Command{{Args: []string{"/bin/true"}, Lenient: true}},
		Start: []Command{{Args: []string{
			"/usr/bin/web", "--name", "web@1.service", "--instance=1", "--text", "a b", "c d", "100%",
		}}},
		Env: []string{"GREETING=hello world", "PORT=80", "MODE=x"}, Dir: "/var/lib/web", Restart: RestartOnFailure,
		Limit: 2 * time.Minute,
	}
	if diff := cmp.Diff(want, got.Units[0]); diff != "" {
		t.Errorf("unit (-want +got):\n%s", diff)
	}
}

// Source: systemd.service(5) and systemd.time(7).
func TestHowLongAUnitMayTakeToStart(t *testing.T) {
	const day = 24 * time.Hour
	for value, want := range map[string]time.Duration{
		"5": 5 * time.Second, "1.5": 1500 * time.Millisecond, "2min 20s": 140 * time.Second, "1h": time.Hour,
		"0": day, "0s": day, "0min": day, "infinity": day,
		"-1": 0, "-5s": 0, "inf": 0, "nan": 0, "soon": 0, "": startLimit, "1e300": 0,
	} {
		u, bad := parseUnit("x.service", []part{{"contents", "[Service]\nExecStart=/x\nTimeoutStartSec=" + value + "\n"}})
		if (len(bad) == 0) != (want != 0) || len(bad) == 0 && u.Limit != want {
			t.Errorf("TimeoutStartSec=%s: %v, %v, want %v", value, u.Limit, bad, want)
		}
		if len(bad) > 0 && !strings.HasPrefix(bad[0].String(), "contents: [Service] TimeoutStartSec=: ") {
			t.Errorf("TimeoutStartSec=%s: %v", value, bad)
		}
	}
}
