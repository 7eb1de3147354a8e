package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
)

// needUsers skips a test of the pass in which pods do not run as users of their own. The test binary makes a second
// pass, as root, in which they do.
func needUsers(t *testing.T) {
	t.Helper()
	if !ownUsers() {
		t.Skip("this pass is without users; as root another one follows")
	}
}

func ownerOf(t *testing.T, path string) (uid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid, info.Mode().Perm()
}

// TestAPodReachesNothingButItsOwn has a pod try what is in the machine's and another pod's directories. It prints what
// it could do.
func TestAPodReachesNothingButItsOwn(t *testing.T) {
	needUsers(t)
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	secret := m.path("agent.key")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := sh("other", `echo mine >own; mkdir open; chmod 777 . open; `+forever)
	other.Spec.Volumes = []*schedulingv1.Volume{{Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}}
	other.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "v", MountPath: "/v"}}
	c.add(other)
	c.await("other", "is ready", ready)
	victim := strconv.Itoa(m.processes()["other.main"])
	if victim == "0" {
		t.Fatalf("processes %v", m.processes())
	}
	theirs := m.path("pods/uid-other")
	script := `
try() { what=$1; shift; if "$@" >/dev/null 2>&1; then echo "COULD $what"; fi; }
id -u; id -G; grep NoNewPrivs /proc/self/status
try "read its own file" sh -c 'echo x >own && cat own'
try "write to its own log by name" sh -c 'echo by name >>/dev/stdout'
try "read a key of the agent" cat ` + secret + `
try "list the machine" ls ` + m.dir + `
try "list the pods" ls ` + m.path("pods") + `
try "list another pod" ls ` + theirs + `
try "read the other pod's record" cat ` + theirs + `/pod.json
try "read the other pod's file" cat ` + theirs + `/containers/main/work/own
try "write to a directory that the other pod opened to all" touch ` + theirs + `/containers/main/work/open/x
try "read the other pod's log" cat ` + theirs + `/containers/main/log
try "list the other pod's volume" ls ` + theirs + `/volumes/v
try "read its own record" cat ../../../pod.json
try "replace its log by a link" ln -sf ` + secret + ` ../log
try "move its log away" mv ../log ../away
try "list its container" ls ..
try "end the other pod" kill -9 ` + victim + `
try "read the other pod's environment" cat /proc/` + victim + `/environ
try "read the other pod's memory" head -c 1 /proc/` + victim + `/mem
try "look through the other pod's root" ls /proc/` + victim + `/root
try "end the agent" kill -9 ` + strconv.Itoa(os.Getpid()) + `
try "read the agent's environment" cat /proc/` + strconv.Itoa(os.Getpid()) + `/environ
try "list the agent's files" ls /proc/` + strconv.Itoa(os.Getpid()) + `/fd
try "become root" sh -c 'su -c true || setpriv --reuid 0 true || chroot / true'
try "mount" mount -t tmpfs none .
echo tried
` + forever
	c.add(sh("a", script))
	eventually(t, "everything was tried", func() bool {
		return strings.Contains(c.log("a", &schedulingv1.GetPodLogRequest{}), "tried\n")
	})
	lines := strings.Split(c.log("a", &schedulingv1.GetPodLogRequest{}), "\n")
	uid := lines[0]
	if uid == "0" || lines[1] != uid || !strings.HasSuffix(lines[2], "1") {
		t.Errorf("user, groups, no_new_privs: %q", lines[:3])
	}
	var could []string
	for _, l := range lines {
		if what, ok := strings.CutPrefix(l, "COULD "); ok {
			could = append(could, what)
		}
	}
	if want := []string{"read its own file", "write to its own log by name"}; fmt.Sprint(could) != fmt.Sprint(want) {
		t.Errorf("the pod could %q, want %q", could, want)
	}
	// A command in the pod is the pod's user, too.
	out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"sh", "-c", "id -u; id -G; grep NoNewPrivs /proc/self/status; cat " + secret},
	}})
	stdout, stderr, last := whole(t, out)
	if stdout != uid+"\n"+uid+"\nNoNewPrivs:\t1\n" || !strings.Contains(stderr, "Permission denied") ||
		last.GetExitCode() == 0 {
		t.Errorf("the command said %q and %q, exit code %d", stdout, stderr, last.GetExitCode())
	}
}

// TestUsersOfPodsAreGivenOutInTurn runs more pods, one after another, than there are users.
func TestUsersOfPodsAreGivenOutInTurn(t *testing.T) {
	needUsers(t)
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	all := users()
	var got []uint32
	for n := range int(all.Count) + 2 {
		name := fmt.Sprintf("p%d", n)
		c.add(sh(name, forever))
		c.await(name, "is ready", ready)
		uid, mode := ownerOf(t, m.path("pods/uid-"+name+"/containers/main/work"))
		if uid < all.First || uid-all.First >= all.Count || mode != ownDir {
			t.Errorf("user %d, mode %v", uid, mode)
		}
		got = append(got, uid)
		if n == 2 { // the next agent goes on behind it
			stop()
			_, stop = m.run()
		}
		c.remove(name, 1)
		c.awaitGone(name)
		eventually(t, "its directory is gone",
			func() bool { _, err := os.Stat(m.path("pods/uid-" + name)); return os.IsNotExist(err) })
	}
	for n := 1; n < len(got); n++ {
		if want := all.First + (got[n-1]-all.First+1)%all.Count; got[n] != want {
			t.Errorf("users %v: not in turn", got)
			break
		}
	}
	stop()
}

// TestAPodThatIsRemovedLeavesNothing has a pod start a process that leaves its session and its environment, and lock
// its directories.
func TestAPodThatIsRemovedLeavesNothing(t *testing.T) {
	needUsers(t)
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(
		sh("a",
			`mkdir -p deep/er; echo x >deep/er/file; env -i setsid sleep 1000 & echo "child $!"; chmod 0 deep/er deep .; `+
				forever))
	c.await("a", "is ready", ready)
	child := 0
	eventually(t, "there is a child", func() bool {
		_, rest, _ := strings.Cut(c.log("a", &schedulingv1.GetPodLogRequest{}), "child ")
		line, _, whole := strings.Cut(rest, "\n")
		child, _ = strconv.Atoi(line)
		return whole && child != 0
	})
	c.remove("a", 1)
	c.awaitGone("a")
	eventually(t, "the child ended", func() bool { return syscall.Kill(child, 0) != nil })
	eventually(t, "its directory is gone",
		func() bool { _, err := os.Stat(m.path("pods/uid-a")); return os.IsNotExist(err) })
}

// TestNothingIsMadeOutsideAPod has volumes and working directories lead out of the pod by links that the pod made, or
// by paths of the host.
func TestNothingIsMadeOutsideAPod(t *testing.T) {
	needUsers(t)
	outside := t.TempDir()
	user := &process.User{UID: users().First, GID: users().First}
	dir := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../../../../../.."+outside, filepath.Join(dir, "relative")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link/new", "relative/new", "link", "../new"} {
		if err := makeOwn(dir, name, user); err == nil {
			t.Errorf("%s: made", name)
		}
		if err := makeOwn(dir, name, nil); err == nil && name != "link" {
			t.Errorf("%s: made without a user", name)
		}
	}
	if uid, _ := ownerOf(t, outside); uid != 0 {
		t.Errorf("the directory outside belongs to %d", uid)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("made outside: %v, %v", left, err)
	}

	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	p := sh("host", forever)
	p.Spec.Volumes = []*schedulingv1.Volume{
		{Name: "h", HostPath: &schedulingv1.HostPathVolumeSource{Path: filepath.Join(outside, "new")}},
	}
	p.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "h", MountPath: "/h"}}
	c.add(p)
	c.await("host", "is refused", func(st *schedulingv1.PodStatus) bool {
		return len(st.GetContainerStatuses()) > 0 &&
			strings.Contains(st.GetContainerStatuses()[0].GetState().GetWaiting().GetMessage(), "hostPath")
	})
	if _, err := os.Stat(filepath.Join(outside, "new")); !os.IsNotExist(err) {
		t.Errorf("made on the host: %v", err)
	}
}
