package pods

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// tools are the programs of an image like one of a distribution.
var tools = []string{"sh", "cat", "id", "ls", "touch", "hostname", "sleep", "mkdir", "env"}

// distribution returns an image that has programs of this host, which are linked dynamically, with their libraries.
func distribution(t *testing.T, user string) v1.Image {
	t.Helper()
	files := map[string]file{
		"etc/passwd": {content: "root:x:0:0::/root:/bin/sh\nweb:x:101:102::/srv:/bin/sh\n"},
		"etc/group":  {content: "root:x:0:\nweb:x:102:\nstaff:x:50:\n"},
		"release":    {content: "the image's"},
	}
	library := regexp.MustCompile(`/\S+\.so\S*`)
	for _, name := range tools {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip("a program of an image is missing on this host: ", err)
		}
		linked, err := exec.Command("ldd", path).Output()
		if err != nil {
			t.Skip("ldd: ", err)
		}
		for _, from := range append(library.FindAllString(string(linked), -1), path) {
			content, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			at := strings.TrimPrefix(from, "/")
			if from == path {
				at = "bin/" + name
			}
			files[at] = file{content: string(content), mode: 0o755}
		}
	}
	var list []file
	for at, f := range files {
		f.name = at
		list = append(list, f)
	}
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(archive(t, list...), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Cmd, config.Config.User = []string{"sh"}, user
	config.Config.Env = []string{"PATH=/bin"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// scripted returns a pod that runs a script with the shell of an image.
func scripted(name, ref, script string) *schedulingv1.Pod {
	p := of(name, ref)
	p.Spec.Containers[0].Command = []string{"sh", "-c", script + "\nexec sleep 1000"}
	return p
}

func asking(fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return s
}

func needRoots(t *testing.T) {
	t.Helper()
	if err := process.CanMount(); err != nil {
		t.Skip("containers have no root directories of their own here: ", err)
	}
}

func (c *cluster) exec(name string, command ...string) (stdout string, err string) {
	c.t.Helper()
	out, _ := c.request(&schedulingv1.AttendResponse{Name: name, Exec: &schedulingv1.ExecPodStart{Command: command}})
	stdout, _, last := whole(c.t, out)
	return stdout, last.GetError()
}

// A container with an image sees the image's files, its volumes and what every program needs, and nothing else of the
// host; so do commands in it, also after a restart of the agent.
func TestAContainerHasTheRootOfItsImage(t *testing.T) {
	needRoots(t)
	c := newCluster(t)
	m := newMachine(t, c)
	h := newHub(t, &hub{})
	h.push("distribution:v1", distribution(t, ""))
	_, stop := m.run()
	secret := m.path("secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := scripted("a", h.host+"/distribution:v1", `
cd /; echo *; cat release; echo; hostname
cat `+secret+` /proc/$PPID/root`+secret+` 2>/dev/null || echo "no secret"
echo "$WINDLASS_VOLUME_V $WINDLASS_VOLUME_FIXED $HOME"
echo mine >/data/file; cat /data/inner/file; touch /data/inner/x 2>/dev/null || echo "read-only"
echo x >/dev/null && cat /etc/hosts; ls /dev/shm /etc/resolv.conf`)
	p.Spec.Hostname = "web-0"
	p.Spec.HostAliases = []*structpb.Struct{asking(map[string]any{"ip": "10.0.0.1", "hostnames": []any{"db"}})}
	p.Spec.Volumes = []*schedulingv1.Volume{
		{Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}, {Name: "fixed"},
	}
	p.Spec.InitContainers = []*schedulingv1.Container{{
		Name: "first", Image: h.host + "/distribution:v1", Command: []string{"sh", "-c", "echo inner >/fill/file"},
		Env:          []*schedulingv1.EnvVar{{Name: "PART", Value: new("part")}},
		VolumeMounts: []*schedulingv1.VolumeMount{{Name: "fixed", MountPath: "/fill", SubPathExpr: "$(PART)"}},
	}}
	p.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{
		{Name: "fixed", MountPath: "/data/inner", SubPath: "part", ReadOnly: new(true)}, {Name: "v", MountPath: "/data"},
	}
	c.add(p)
	c.await("a", "is ready", ready)
	home := "/"
	if !ownUsers() {
		home = "/root" // the agent's user
	}
	want := "bin data dev etc lib lib64 proc release sys\nthe image's\nweb-0\nno secret\n/data /data/inner " + home +
		"\ninner\nread-only\n"
	var got string
	eventually(t, "everything was tried", func() bool {
		got = c.log("a", &schedulingv1.GetPodLogRequest{})
		return strings.HasSuffix(got, "/etc/resolv.conf\n\n/dev/shm:\n")
	})
	if !strings.HasPrefix(got, want) || !strings.Contains(got, "127.0.0.1\tweb-0\n10.0.0.1\tdb\n") {
		t.Errorf("the container says\n%s\nwant\n%s", got, want)
	}
	if text, err := os.ReadFile(m.path("pods/uid-a/volumes/v/file")); string(text) != "mine\n" {
		t.Errorf("on the host its volume has %q, %v", text, err)
	}
	stop()
	m.run()
	for _, try := range []struct{ command, want, err string }{
		{"cat release; cat /data/inner/file; hostname", "the image'sinner\nweb-0\n", ""},
		{"cat " + secret + " || echo none", "none\n", ""},
	} {
		if got, err := c.exec("a", "sh", "-c", try.command); got != try.want || err != try.err {
			t.Errorf("%s: %q, %q", try.command, got, err)
		}
	}
	if got, err := c.exec("a", "grep", "x"); !strings.Contains(err, `no program "grep" in the image`) {
		t.Errorf("a tool of the host: %q, %q", got, err)
	}
}

// A program may be in a volume.
func TestAProgramOfAVolume(t *testing.T) {
	needRoots(t)
	c := newCluster(t)
	m := newMachine(t, c)
	h := newHub(t, &hub{})
	h.push("distribution:v1", distribution(t, ""))
	m.run()
	p := of("a", h.host+"/distribution:v1")
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "tools"}}
	mount := []*schedulingv1.VolumeMount{{Name: "tools", MountPath: "/tools"}}
	p.Spec.InitContainers = []*schedulingv1.Container{{
		Name: "first", Image: h.host + "/distribution:v1", VolumeMounts: mount,
		Command: []string{"sh", "-c", "mkdir /tools/bin; cat /bin/cat >/tools/bin/my-cat"},
	}}
	p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].Command = mount, []string{"my-cat", "/release"}
	p.Spec.Containers[0].Env = []*schedulingv1.EnvVar{{Name: "PATH", Value: new("/bin:/tools/bin")}}
	p.Spec.RestartPolicy = "Never"
	c.add(p)
	c.await("a", "it is not executable", saysWaiting(`no program "my-cat" in the image`))
	at := m.path("pods/uid-a/volumes/tools/bin/my-cat")
	if err := os.Chmod(at, 0o755); err != nil {
		t.Fatal(err)
	}
	c.await("a", "succeeded", phase("Succeeded"))
	c.logs("a", "the image's")
}

func TestUsersOfContainers(t *testing.T) {
	needUsers(t)
	needRoots(t)
	if err := process.CanMap(); err != nil {
		t.Skip("no user namespaces here: ", err)
	}
	c := newCluster(t)
	m := newMachine(t, c)
	h := newHub(t, &hub{})
	h.push("distribution:root", distribution(t, ""))
	h.push("distribution:web", distribution(t, "web:staff"))
	m.run()
	const who = `echo "$(id -u) $(id -g) $(id -G) $HOME"; echo x >/v/file; ls -n /v; touch /file 2>/dev/null || echo "read-only"; while read -r name value; do
		[ "$name" != Seccomp: ] || echo "$name $value"; done </proc/self/status; echo said`
	n := func(v int) float64 { return float64(v) }
	for name, try := range map[string]struct {
		image          string
		pod, container map[string]any
		want           string // of who
		waiting        string
	}{
		"own":          {image: "root", want: "own own own /"},
		"own-named":    {image: "web", pod: map[string]any{"runAsNonRoot": true}, want: "own own own /"},
		"as-asked":     {image: "web", pod: map[string]any{"runAsUser": n(1000), "runAsGroup": n(7)}, want: "1000 7 7 /"},
		"as-image":     {image: "web", pod: map[string]any{"runAsUser": n(101)}, want: "101 102 102 /srv"},
		"as-container": {"web", map[string]any{"runAsUser": n(5)}, map[string]any{"runAsUser": n(0)}, "0 0 0 /root", ""},
		"not-root": {
			image: "root", container: map[string]any{"runAsNonRoot": true, "runAsUser": n(0)},
			waiting: "container has runAsNonRoot and would run as root",
		},
		"nonroot": {
			image: "root", pod: map[string]any{"runAsNonRoot": true, "runAsUser": n(65534), "fsGroup": n(5)},
			container: map[string]any{"capabilities": map[string]any{"drop": []any{"ALL"}}}, want: "65534 0 0 /",
		},
		"unconfined": {
			image: "root", pod: map[string]any{"seccompProfile": map[string]any{"type": "Unconfined"}}, want: "own own own /",
		},
		"read-only": {
			image: "root", container: map[string]any{"readOnlyRootFilesystem": true}, want: "own own own /",
		},
	} {
		p := scripted(name, h.host+"/distribution:"+try.image, who)
		p.Spec.SecurityContext, p.Spec.Containers[0].SecurityContext = asking(try.pod), asking(try.container)
		p.Spec.Volumes = []*schedulingv1.Volume{{Name: "v"}}
		p.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "v", MountPath: "/v"}}
		c.add(p)
		if try.waiting != "" {
			c.await(name, "says why it waits", saysWaiting(try.waiting))
			c.remove(name, 0)
			c.awaitGone(name)
			continue
		}
		c.await(name, "is ready", ready)
		var lines []string
		eventually(t, "it says who it is: "+name, func() bool {
			lines = strings.Split(c.log(name, &schedulingv1.GetPodLogRequest{}), "\n")
			return slices.Contains(lines, "said")
		})
		uid, _ := ownerOf(t, m.path("pods/uid-"+name+"/volumes/v/file"))
		try.want = strings.ReplaceAll(try.want, "own", fmt.Sprint(uid))
		ids := strings.Fields(try.want)
		if lines[0] != try.want || !strings.Contains(lines[2], " "+ids[0]+" "+ids[1]+" ") {
			t.Errorf("%s: %q, want %s, also as owner", name, lines, try.want)
		}
		if open := slices.Contains(lines, "Seccomp: 0"); open != (name == "unconfined") {
			t.Errorf("%s: it may make any system call: %t", name, open)
		}
		if only := lines[3] == "read-only"; only != (name == "read-only") {
			t.Errorf("%s: its root is read-only: %t", name, only)
		}
		if uid < users().First {
			t.Errorf("%s: for the host its file is one of %d", name, uid)
		}
		if strings.HasPrefix(name, "own") {
			if got, err := c.exec(name, "id", "-un"); got != ids[0]+"\n" || err != "" {
				t.Errorf("%s: its name is %q, %q", name, got, err)
			}
			if got, err := c.exec(name, "sh", "-c", "cat /proc/[0-9]*/cmdline"); !strings.Contains(got, "sleep\x001000") {
				t.Errorf("%s: a command sees the processes %q, %q", name, got, err)
			}
		}
		if got, err := c.exec(name, "id", "-u"); got != ids[0]+"\n" || err != "" {
			t.Errorf("%s: a command is %q, %q", name, got, err)
		}
		c.remove(name, 0)
		c.awaitGone(name)
	}

	// Without an image it is the host's root, and the pod's user has another number for it.
	p := sh("command", `id -u; id -g; cat `+filepath.Join(m.dir, "agent.key")+
		` 2>/dev/null; kill -0 1 2>/dev/null || echo no; `+
		forever)
	p.Spec.SecurityContext = asking(map[string]any{"runAsUser": n(1000)})
	c.add(p)
	c.await("command", "is ready", ready)
	c.logs("command", "1000\n0\nno\nup\n")
	p = sh("fixed", forever)
	p.Spec.Containers[0].SecurityContext = asking(map[string]any{"readOnlyRootFilesystem": true})
	c.add(p)
	c.await("fixed", "says why it waits", saysWaiting("has the root directory of its host"))
}

// What a node cannot enforce is refused there.
func TestAPodWithoutItsSecurityContextIsRefused(t *testing.T) {
	if ownUsers() {
		t.Skip("the other pass is without users")
	}
	c := newCluster(t)
	newMachine(t, c).run()
	p := sh("a", forever)
	p.Spec.Containers[0].SecurityContext = asking(map[string]any{"runAsUser": float64(5)})
	c.add(p)
	st := c.await("a", "is refused", phase("Failed"))
	if st.GetReason() != plan.SecurityContextNotEnforceable || !strings.Contains(st.GetMessage(),
		"runAsUser of spec.containers[0]") {
		t.Errorf("status %v", st)
	}
}

func TestTerminationMessages(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	h := newHub(t, &hub{})
	h.push("distribution:v1", distribution(t, ""))
	m.run()
	message := func(name string) string {
		st := c.await(name, "has ended", func(st *schedulingv1.PodStatus) bool {
			return st.GetPhase() == "Failed" || st.GetPhase() == "Succeeded"
		})
		return st.GetContainerStatuses()[0].GetState().GetTerminated().GetMessage()
	}
	// Without an image only the log can say why.
	for name, try := range map[string]struct{ policy, script, want string }{
		"failed":  {"FallbackToLogsOnError", "echo one; printf two >&2; exit 3", "one\ntwo"},
		"well":    {"FallbackToLogsOnError", "echo one; exit 0", ""},
		"default": {"", "echo one; exit 3", ""},
		"long":    {"FallbackToLogsOnError", "seq 100000; exit 3", ""},
	} {
		p := sh(name, try.script)
		p.Spec.RestartPolicy, p.Spec.Containers[0].TerminationMessagePolicy = "Never", try.policy
		c.add(p)
		got := message(name)
		if name == "long" {
			if len(got) > 2<<10 || !strings.HasSuffix(got, "99999\n100000\n") || strings.Count(got, "\n") != 80 {
				t.Errorf("%s: %d bytes, %q", name, len(got), got)
			}
		} else if got != try.want {
			t.Errorf("%s: %q, want %q", name, got, try.want)
		}
		c.remove(name, 0)
		c.awaitGone(name)
	}
	if process.CanMount() != nil {
		return
	}
	for name, try := range map[string]struct{ path, script, want string }{
		"written":   {"", "echo because >/dev/termination-log; echo no; exit 3", "because\n"},
		"elsewhere": {"/run/why", "echo fine >/run/why", "fine\n"},
		"nothing":   {"", "echo log; exit 3", "log\n"},
	} {
		p := scripted(name, h.host+"/distribution:v1", "")
		p.Spec.Containers[0].Command = []string{"sh", "-c", try.script}
		p.Spec.RestartPolicy, p.Spec.Containers[0].TerminationMessagePolicy = "Never", "FallbackToLogsOnError"
		p.Spec.Containers[0].TerminationMessagePath = try.path
		c.add(p)
		if got := message(name); got != try.want {
			t.Errorf("%s: %q, want %q", name, got, try.want)
		}
		c.remove(name, 0)
		c.awaitGone(name)
	}
}

// An emptyDir in memory is shared by the containers of its pod, survives their restarts and those of the agent, and
// goes with the pod.
func TestAVolumeInMemory(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	p := sh("a",
		`cat "$WINDLASS_VOLUME_V/file"; head -c 2000000 /dev/zero >"$WINDLASS_VOLUME_V/big" 2>/dev/null || echo full; `+
			forever)
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{
		Medium: "Memory", SizeLimit: structpb.NewStringValue("1Mi"),
	}}}
	mount := []*schedulingv1.VolumeMount{{Name: "v", MountPath: "/v"}}
	p.Spec.InitContainers = []*schedulingv1.Container{{
		Name: "first", Command: []string{"sh", "-c", `echo kept >"$WINDLASS_VOLUME_V/file"`}, VolumeMounts: mount,
	}}
	p.Spec.Containers[0].VolumeMounts = mount
	_, stop := m.run()
	c.add(p)
	if err := process.CanMount(); err != nil {
		c.await("a", "says why it waits", func(st *schedulingv1.PodStatus) bool {
			return strings.Contains(st.GetInitContainerStatuses()[0].GetState().GetWaiting().GetMessage(), "in memory")
		})
		return
	}
	c.await("a", "is ready", ready)
	c.logs("a", "kept\nfull\nup\n")
	mounts := func() int {
		table, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(table), " "+m.path("pods/uid-a/volumes/v")+" ")
	}
	stop()
	m.run()
	if err := syscall.Kill(-m.processes()["a.main"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.await("a", "restarted", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() == 1
	})
	c.logs("a", "kept\nfull\nup\n")
	if n := mounts(); n != 1 {
		t.Errorf("mounted %d times", n)
	}
	c.remove("a", 0)
	c.awaitGone("a")
	eventually(t, "its directory is gone", func() bool {
		_, err := os.Stat(m.path("pods/uid-a"))
		return os.IsNotExist(err) && mounts() == 0
	})
}
