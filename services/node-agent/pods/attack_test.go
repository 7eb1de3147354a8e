package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/servetest"
)

// TestHostilePods are pods whose author wants more than a pod gets.
func TestHostilePods(t *testing.T) {
	onDrivers(t, map[string]func(*testing.T, bench){
		"a hostPath to another pod's volume":                  hostPathOfAnotherPod,
		"a hostPath through a link of the pod":                hostPathThroughOwnLink,
		"groups of an image":                                  groupsOfImage,
		"a mount point in a directory of the host":            mountPointOnHost,
		"a termination message in a directory of the host":    messageOnHost,
		"the path of the termination message":                 messagePaths,
		"a fork bomb":                                         forkBomb,
		"two directories of the host and a link of the image": linkOfImage,
		"commands have no privileges":                         commandsHaveNoPrivileges,
	})
}

// settled waits until a container of a pod runs or says why it does not.
func (b bench) settled(name string) *schedulingv1.PodStatus {
	b.t.Helper()
	return b.cluster.await(name, "runs or is refused", func(st *schedulingv1.PodStatus) bool {
		if st.GetPhase() == "Failed" || ready(st) {
			return true
		}
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && (cs[0].GetState().GetTerminated() != nil || cs[0].GetLastState().GetTerminated() != nil ||
			strings.Contains(cs[0].GetState().GetWaiting().GetReason(), "Error"))
	})
}

// mounting has a pod mount a volume of the host.
func mounting(p *schedulingv1.Pod, from, to string) *schedulingv1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, &schedulingv1.Volume{
		Name: "host", HostPath: &schedulingv1.HostPathVolumeSource{Path: from},
	})
	main := p.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, &schedulingv1.VolumeMount{Name: "host", MountPath: to})
	return p
}

func withEmptyDir(p *schedulingv1.Pod, to string) *schedulingv1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, &schedulingv1.Volume{
		Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{},
	})
	main := p.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, &schedulingv1.VolumeMount{Name: "v", MountPath: to})
	return p
}

func hostPathOfAnotherPod(t *testing.T, b bench) {
	b.machine.run()
	b.cluster.add(withEmptyDir(b.pod("victim", "echo secret >/v/secret; echo up; exec sleep 1000"), "/v"))
	b.says("victim", "up\n")
	thief := b.pod("thief", "cat /stolen; echo over; exec sleep 1000")
	b.cluster.add(mounting(thief, b.machine.path("pods/uid-victim/volumes/v/secret"), "/stolen"))
	st := b.settled("thief")
	t.Log(st.GetContainerStatuses())
	if ready(st) {
		t.Error("the pod has another pod's volume")
	}
}

func hostPathThroughOwnLink(t *testing.T, b bench) {
	closed := b.machine.path("closed")
	if err := errors.Join(os.Mkdir(closed, 0o700),
		os.WriteFile(filepath.Join(closed, "file"), []byte("of root\n"), 0o666)); err != nil {
		t.Fatal(err)
	}
	b.machine.run()
	p := mounting(withEmptyDir(b.pod("a", "cat /stolen; echo over; exec sleep 1000"), "/v"),
		b.machine.path("pods/uid-a/volumes/v/link"), "/stolen")
	p.Spec.InitContainers = []*schedulingv1.Container{{
		Name: "first", Image: b.image, Command: []string{"/ln", "-s", filepath.Join(closed, "file"), "/v/link"},
		VolumeMounts: []*schedulingv1.VolumeMount{{Name: "v", MountPath: "/v"}},
	}}
	// without ln in the image, the link is made as the pod could make it
	p.Spec.InitContainers[0].Command = []string{"sh", "-c", "while ! test -L /v/link; do sleep 0.05; done"}
	b.cluster.add(p)
	volume := b.machine.path("pods/uid-a/volumes/v")
	eventually(t, "the volume is there", func() bool { _, err := os.Stat(volume); return err == nil })
	if err := os.Symlink(filepath.Join(closed, "file"), filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	st := b.settled("a")
	t.Log(st.GetContainerStatuses())
	if ready(st) {
		t.Error("the pod has a file of the host that its user cannot reach")
	}
}

func withFiles(t *testing.T, img v1.Image, files ...file) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(img, static.NewLayer(archive(t, files...), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func groupsOfImage(t *testing.T, b bench) {
	var passwd strings.Builder
	for i := range users().Count {
		fmt.Fprintf(&passwd, "u%d:x:%d:%d::/:/bin/sh\n", i, users().First+i, users().First+i)
	}
	group := "root:x:0:"
	for i := range users().Count {
		group += fmt.Sprintf("u%d,", i)
	}
	group = strings.TrimSuffix(group, ",") + "\n"
	b.hub.push("groups:v1", withFiles(t, distribution(t, ""), file{name: "etc/passwd", content: passwd.String()},
		file{name: "etc/group", content: group}))
	secret := b.machine.path("secret")
	if err := errors.Join(os.WriteFile(secret, []byte("of the group root\n"), 0o640)); err != nil {
		t.Fatal(err)
	}
	b.machine.run()
	p := mounting(b.pod("a", `while read name value; do case $name in Groups:) echo "$name $value";; esac; done </proc/self/status
cat /secret 2>/dev/null; echo over; exec sleep 1000`), secret, "/secret")
	p.Spec.Containers[0].Image = b.hub.host + "/groups:v1"
	b.cluster.add(p)
	st := b.settled("a")
	t.Log(st.GetContainerStatuses())
	if ready(st) {
		servetest.Await(t, func() string {
			got := b.cluster.log("a", &schedulingv1.GetPodLogRequest{})
			if !strings.Contains(got, "over\n") {
				return got
			}
			t.Logf("%q", got)
			if strings.Contains(got, "of the group root") {
				t.Errorf("an image has given its pod groups of the host: %q", got)
			}
			return ""
		})
	}
}

func mountPointOnHost(t *testing.T, b bench) {
	shared := b.machine.path("shared")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o755)); err != nil {
		t.Fatal(err)
	}
	b.machine.run()
	p := withEmptyDir(mounting(b.pod("a", "echo up; exec sleep 1000"), shared, "/host"), "/host/made")
	b.cluster.add(p)
	st := b.settled("a")
	t.Log(st.GetContainerStatuses())
	if _, err := os.Lstat(filepath.Join(shared, "made")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made on the host where the pod's user cannot write: %v", err)
	}
}

func messageOnHost(t *testing.T, b bench) {
	shared := b.machine.path("shared")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o755)); err != nil {
		t.Fatal(err)
	}
	b.machine.run()
	p := mounting(b.pod("a", "echo up; exec sleep 1000"), shared, "/host")
	p.Spec.Containers[0].TerminationMessagePath = "/host/nologin"
	b.cluster.add(p)
	st := b.settled("a")
	t.Log(st.GetContainerStatuses())
	if _, err := os.Lstat(filepath.Join(shared, "nologin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made on the host where the pod's user cannot write: %v", err)
	}
}

func messagePaths(t *testing.T, b bench) {
	b.machine.run()
	for i, path := range []string{"tmp/log", "/proc/self/x", "/proc/sys/kernel/core_pattern", "/", "/../m"} {
		name := fmt.Sprintf("a%d", i)
		p := b.pod(name, "exec sleep 1000")
		p.Spec.Containers[0].TerminationMessagePath = path
		b.cluster.add(p)
		st := b.settled(name)
		t.Logf("%s: ready %v %v", path, ready(st), st.GetContainerStatuses())
		b.cluster.remove(name, 0)
		b.cluster.awaitGone(name)
	}
}

func commandsHaveNoPrivileges(t *testing.T, b bench) {
	b.machine.run()
	p := b.pod("a", "exec sleep 1000")
	p.Spec.Containers[0].SecurityContext = asking(map[string]any{
		"seccompProfile": map[string]any{"type": "RuntimeDefault"},
	})
	b.cluster.add(p)
	b.cluster.await("a", "is ready", ready)
	out, err := b.cluster.exec("a", "sh", "-c", `while read name value; do case $name in
Cap*|NoNewPrivs:|Seccomp:|Groups:|Uid:|Gid:) echo "$name $value";; esac; done </proc/self/status
echo x >/proc/sysrq-trigger; echo x >/proc/sys/kernel/hostname; read a </proc/kcore && echo kcore; ls /sys/firmware /proc/scsi`)
	t.Log(out, err)
	if !strings.Contains(out, "CapEff: 0000000000000000") || !strings.Contains(out, "CapBnd: 0000000000000000") && b.cri ||
		!strings.Contains(out, "NoNewPrivs: 1") || !strings.Contains(out, "Seccomp: 2") {
		t.Errorf("a command has %s", out)
	}
}

func forkBomb(t *testing.T, b bench) {
	b.machine.processLimit = 20
	a := b.machine.start()
	if !b.cri {
		<-a.pods.cfg.Supervisor.Active()
		if err := a.pods.cfg.Supervisor.CanLimit(); err != nil {
			t.Skip(err)
		}
	}
	b.cluster.add(
		b.pod("a", `i=0; while test $i -lt 60; do sleep 1000 & i=$((i+1)); done; echo "$i started"; exec sleep 1000`))
	var most int
	b.cluster.await("a", "runs or has ended", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		if !ready(st) && (len(cs) != 1 || cs[0].GetLastState().GetTerminated() == nil) {
			return false
		}
		for range 20 {
			used, err := a.pods.driver().Uses(t.Context(), []string{processPrefix + "uid-a"})
			if err == nil {
				most = max(most, used[processPrefix+"uid-a"].Processes)
			}
		}
		return most > 20 || strings.Contains(b.cluster.log("a", &schedulingv1.GetPodLogRequest{}), "started") ||
			len(cs) == 1 && cs[0].GetLastState().GetTerminated() != nil
	})
	if text := b.cluster.log("a", &schedulingv1.GetPodLogRequest{}); strings.Contains(text, "60 started") || most > 20 {
		t.Errorf("with a limit of 20 processes: %q, %d processes", text, most)
	}
}

func linkOfImage(t *testing.T, b bench) {
	shared := b.machine.path("shared")
	other := b.machine.path("other")
	for _, dir := range []string{shared, other} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	b.hub.push("link:v1", withFiles(t, distribution(t, ""), file{name: "a", link: "/host"}))
	b.machine.run()
	p := mounting(b.pod("a", "echo up; exec sleep 1000"), shared, "/host")
	p.Spec.Containers[0].Image = b.hub.host + "/link:v1"
	p.Spec.Volumes = append(p.Spec.Volumes, &schedulingv1.Volume{
		Name: "other", HostPath: &schedulingv1.HostPathVolumeSource{Path: other},
	})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, &schedulingv1.VolumeMount{
		Name: "other", MountPath: "/a/made",
	})
	p.Spec.Containers[0].TerminationMessagePath = "/a/message"
	b.cluster.add(p)
	st := b.settled("a")
	t.Log(st.GetContainerStatuses())
	for _, name := range []string{"made", "message"} {
		if _, err := os.Lstat(filepath.Join(shared, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made on the host where the pod's user cannot write: %v", name, err)
		}
	}
}
