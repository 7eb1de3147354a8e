package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/process"
)

// localVolume returns a volume that is a directory of a node.
func localVolume(t *testing.T, uid, node string) *schedulingv1.PersistentVolume {
	t.Helper()
	csi, err := structpb.NewStruct(map[string]any{
		"driver": placement.LocalDriver, "volumeAttributes": map[string]any{"node": node},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &schedulingv1.PersistentVolume{
		Metadata: &metav1.ObjectMeta{Name: "pvc-" + uid, Uid: uid, Finalizers: []string{placement.LocalDirectory}},
		Spec:     &schedulingv1.PersistentVolumeSpec{Csi: csi, PersistentVolumeReclaimPolicy: placement.ReclaimDelete},
	}
}

// claimer returns a pod that runs a script with the claim "data" as its volume.
func claimer(name, script string) *schedulingv1.Pod {
	p := sh(name, script)
	p.Spec.Volumes = []*schedulingv1.Volume{{
		Name: "data", PersistentVolumeClaim: &schedulingv1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}
	p.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return p
}

func (c *cluster) bindTo(v *schedulingv1.PersistentVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.volumes["data"] = v
}

func waitsWith(text string) func(*schedulingv1.PodStatus) bool {
	return func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && strings.Contains(cs[0].GetState().GetWaiting().GetMessage(), text)
	}
}

// The next pod finds what the last one wrote, though it has another user, also in what that closed to all others, and
// may change it. When the volume is deleted, the directory goes.
func TestAVolumeOutlivesPodsUntilItIsDeleted(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	v := localVolume(t, "uid-v", "m-0")
	c.bindTo(v)
	c.add(claimer("a", `cd "$WINDLASS_VOLUME_DATA" && mkdir d && echo one >d/f && chmod 600 d/f && chmod 700 d; `+forever))
	c.await("a", "is ready", ready)
	eventually(t, "it has written", func() bool {
		return strings.Contains(c.log("a", &schedulingv1.GetPodLogRequest{}),
			"up")
	})
	c.remove("a", 5)
	c.awaitGone("a")
	c.add(claimer("b", `cd "$WINDLASS_VOLUME_DATA" && echo two >>d/f && cat d/f; `+forever))
	eventually(t, "the next pod reads and writes", func() bool {
		return strings.HasPrefix(c.log("b", &schedulingv1.GetPodLogRequest{}), "one\ntwo\n")
	})

	gone := proto.CloneOf(v)
	gone.Metadata.DeletionTimestamp = timestamppb.Now()
	kept := proto.CloneOf(gone)
	kept.Metadata.Finalizers = append(kept.Metadata.Finalizers, placement.VolumeProtection)
	c.leaving <- kept
	c.leaving <- gone
	dir := m.path("pods/.volumes/uid-v")
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the directory went under a pod: %v", err)
	}
	c.remove("b", 5)
	c.awaitGone("b")
	eventually(t, "the directory is gone, and that is reported", func() bool {
		_, err := os.Stat(dir)
		c.mu.Lock()
		defer c.mu.Unlock()
		return errors.Is(err, fs.ErrNotExist) && slices.Contains(c.removed, "uid-v")
	})
}

func TestAClaimThatIsNotBoundHereStartsNothing(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	c.add(claimer("a", forever))
	c.await("a", "waits", waitsWith("it is not bound to a volume yet"))
	c.bindTo(localVolume(t, "uid-v", "elsewhere"))
	c.add(claimer("b", forever))
	c.await("b", "is refused", waitsWith("which this node cannot mount"))
	c.bindTo(localVolume(t, "../../x", "m-0"))
	c.add(claimer("d", forever))
	c.await("d", "is refused", waitsWith("which this node cannot mount"))
}

// A container without a root directory of its own gets no mounts, and could write to what its pod only reads.
func TestAClaimThatIsOnlyReadIsNotGivenForWriting(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	c.bindTo(localVolume(t, "uid-v", "m-0"))
	p := claimer("a", forever)
	p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = new(true)
	c.add(p)
	c.await("a", "waits", waitsWith("persistentVolumeClaim.readOnly: the container could write"))
}

// Two pods with users of their own never have a volume at once.
func TestAVolumeHasOneUserAtATime(t *testing.T) {
	if users().Count == 0 {
		t.Skip("pods have no users of their own")
	}
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.bindTo(localVolume(t, "uid-v", "m-0"))
	c.add(claimer("a", forever))
	c.await("a", "is ready", ready)
	c.add(claimer("b", forever))
	c.await("b", "waits for the other pod", waitsWith("in use by pod default/a"))

	// A link to a file of the host does not give it away with the volume.
	secret := m.path("secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := m.path("pods/.volumes/uid-v/data")
	if err := errors.Join(os.Link(secret, data+"/hard"), os.Symlink(secret, data+"/soft")); err != nil {
		t.Fatal(err)
	}
	c.remove("a", 5)
	c.awaitGone("a")
	c.add(claimer("d", `cat "$WINDLASS_VOLUME_DATA/hard" "$WINDLASS_VOLUME_DATA/soft"; echo tried; `+forever))
	eventually(t, "one of the others has it", func() bool { return ready(c.status("b")) || ready(c.status("d")) })
	info, err := os.Stat(secret)
	if err != nil || fileOwner(info) != uint32(os.Geteuid()) {
		t.Errorf("the file of the host belongs to another user: %v, %v", info, err)
	}
}

// A container starts again while the cluster does not answer.
func TestAVolumeIsResolvedOnce(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	c.bindTo(localVolume(t, "uid-v", "m-0"))
	c.add(claimer("a", `cd "$WINDLASS_VOLUME_DATA"; [ -e f ] || { touch f; exit 1; }; `+forever))
	c.await("a", "was started twice", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() > 0
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resolved != 1 {
		t.Errorf("its volumes were asked for %d times", c.resolved)
	}
}

// The number of a former pod's user is given to another pod some time. That one neither reaches the volume nor keeps
// others from it.
func TestAVolumeIsClosedToTheNextPodWithItsUser(t *testing.T) {
	needUsers(t)
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.bindTo(localVolume(t, "uid-v", "m-0"))
	c.add(claimer("a", `cd "$WINDLASS_VOLUME_DATA" && echo secret >f && chmod 777 . f; `+forever))
	c.await("a", "is ready", ready)
	data := m.path("pods/.volumes/uid-v/data")
	eventually(t, "it has written", func() bool { _, err := os.Stat(data + "/f"); return err == nil })
	user, _ := ownerOf(t, data)
	end := func(name string) {
		c.remove(name, 1)
		c.awaitGone(name)
		eventually(t, "its directory is gone",
			func() bool { _, err := os.Stat(m.path("pods/uid-" + name)); return os.IsNotExist(err) })
	}
	end("a")
	name := ""
	for n := range int(users().Count) {
		if name != "" {
			end(name)
		}
		name = fmt.Sprint("p", n)
		c.add(sh(name, "cat "+data+"/f; echo tried; "+forever))
		c.await(name, "is ready", ready)
	}
	if got, _ := ownerOf(t, m.path("pods/uid-"+name+"/containers/main/work")); got != user {
		t.Fatalf("the last pod has user %d, and not %d again", got, user)
	}
	eventually(t, "it has tried", func() bool {
		return strings.Contains(c.log(name, &schedulingv1.GetPodLogRequest{}), "tried")
	})
	if got := c.log(name, &schedulingv1.GetPodLogRequest{}); strings.Contains(got, "secret") {
		t.Errorf("a pod without the volume read it: %q", got)
	}
	c.add(claimer("b", `cat "$WINDLASS_VOLUME_DATA/f"; `+forever))
	c.await("b", "is ready beside it", ready)
	eventually(t, "it has the data", func() bool {
		return strings.Contains(c.log("b", &schedulingv1.GetPodLogRequest{}), "secret")
	})
}

// Directories keep their modes when they get another user. A volume that is too deep to be handed over says so.
func TestWhatIsHandedOver(t *testing.T) {
	needUsers(t)
	m := newMachine(t, newCluster(t))
	s, _ := m.run()
	first, second := &process.User{UID: users().First, GID: users().First}, &process.User{
		UID: users().First + 1, GID: users().First + 1,
	}
	dir := m.path("pods/.volumes/uid-v")
	if err := s.makeDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.handOver(&pod{}, "uid-v", first); err != nil {
		t.Fatal(err)
	}
	private := dir + "/data/private"
	if err := errors.Join(os.Mkdir(private, 0o700), os.Chown(private, int(first.UID), -1)); err != nil {
		t.Fatal(err)
	}
	if err := s.handOver(&pod{}, "uid-v", second); err != nil {
		t.Fatal(err)
	}
	if uid, mode := ownerOf(t, private); uid != second.UID || mode != 0o700 {
		t.Errorf("a directory is user %d's with the mode %v", uid, mode)
	}
	// It ended before the last step.
	if err := closeVolume(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.handOver(&pod{}, "uid-v", second); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != podDir || fileGroup(info) != second.GID {
		t.Errorf("the volume of the user that has it is not open: %v, %v", info, err)
	}
	r, err := os.OpenRoot(dir) // the path is longer than the host takes
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.MkdirAll("data"+strings.Repeat("/d", deepestDir), 0o700), r.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.handOver(&pod{}, "uid-v", first); err != nil {
		t.Errorf("the deepest is not handed over: %v", err)
	}
	if r, err = os.OpenRoot(dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Mkdir("data"+strings.Repeat("/d", deepestDir+1), 0o700), r.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.handOver(&pod{}, "uid-v", second); err == nil || !strings.Contains(err.Error(), "levels deep") {
		t.Errorf("of a deep volume it says %v", err)
	}
}

// A pod that has ended and is kept, such as a job's, does not keep a volume that is deleted.
func TestAPodThatHasEndedKeepsNoVolume(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	v := localVolume(t, "uid-v", "m-0")
	c.bindTo(v)
	p := claimer("a", `echo x >"$WINDLASS_VOLUME_DATA/f"`)
	p.Spec.RestartPolicy = "Never"
	c.add(p)
	c.await("a", "has ended", phase("Succeeded"))
	gone := proto.CloneOf(v)
	gone.Metadata.DeletionTimestamp = timestamppb.Now()
	c.leaving <- gone
	eventually(t, "the directory is gone, and that is reported", func() bool {
		_, err := os.Stat(m.path("pods/.volumes/uid-v"))
		c.mu.Lock()
		defer c.mu.Unlock()
		return errors.Is(err, fs.ErrNotExist) && slices.Contains(c.removed, "uid-v")
	})
}

// The cluster learns in which directory the volumes are, so that it notices that this is another one.
func TestTheDirectoryOfVolumesHasAnID(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.bindTo(localVolume(t, "uid-v", "m-0"))
	var ids []string
	start := func(name string) {
		c.add(claimer(name, forever))
		eventually(t, "its volumes are asked for", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.stores[name] != ""
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		ids = append(ids, c.stores[name])
	}
	start("a")
	stop()
	_, stop = m.run()
	start("b")
	c.remove("a", 1)
	c.awaitGone("a")
	c.remove("b", 1)
	c.awaitGone("b")
	stop()
	if err := os.RemoveAll(m.path("pods")); err != nil {
		t.Fatal(err)
	}
	m.run()
	start("d")
	if ids[0] != ids[1] || ids[1] == ids[2] {
		t.Errorf("the ids are %q", ids)
	}
}
