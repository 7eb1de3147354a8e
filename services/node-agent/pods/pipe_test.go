package pods

import (
	"os"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"
)

// A named pipe where a container's program is looked for does not stop the agent.
func TestANamedPipeIsNotWaitedFor(t *testing.T) {
	needUsers(t)
	needRoots(t)
	c := newCluster(t)
	m := newMachine(t, c)
	h := newHub(t, &hub{})
	h.push("distribution:v1", distribution(t, ""))
	m.run()
	pipe := m.path("pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(pipe, 0o666); err != nil {
		t.Fatal(err)
	}
	p := of("a", h.host+"/distribution:v1")
	p.Spec.Containers[0].Command = []string{"/data/program"}
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "v", HostPath: &schedulingv1.HostPathVolumeSource{Path: pipe}}}
	p.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "v", MountPath: "/data"}}
	c.add(p)
	c.await("a", "says why it waits", saysWaiting(`no program "/data/program"`))
	c.remove("a", 0)
	c.awaitGone("a")
}
