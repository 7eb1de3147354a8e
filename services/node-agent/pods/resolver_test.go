package pods

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// A container and the commands in it see the resolv.conf of their pod, also after a restart of the agent; the host's
// stays as it is.
func TestAPodResolvesNamesByItsOwnFile(t *testing.T) {
	if err := CanResolve(); err != nil {
		t.Skip("pods have no resolv.conf of their own here: ", err)
	}
	before, err := os.ReadFile(hostResolver)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t)
	m := newMachine(t, c)
	m.dns = netip.MustParseAddr("127.255.32.10")
	_, stop := m.run()
	const first = "nameserver 127.255.32.10\n"
	c.add(sh("a", "cat /etc/resolv.conf; exec sleep 1000"))
	c.await("a", "is ready", ready)
	eventually(t, "the container sees it", func() bool {
		got := c.log("a", &schedulingv1.GetPodLogRequest{})
		return strings.HasPrefix(got, first) &&
			strings.Contains(got, "search default.svc.cluster.local svc.cluster.local ") &&
			strings.Contains(got, "options ndots:5\n")
	})
	stop()
	m.run()
	c.await("a", "is ready", ready)
	out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"cat", "/etc/resolv.conf"},
	}})
	if got, _, last := whole(t, out); !strings.HasPrefix(got, first) || last.GetError() != "" {
		t.Errorf("a command sees %q, %v", got, last)
	}
	if after, err := os.ReadFile(hostResolver); err != nil || string(after) != string(before) {
		t.Errorf("the host's file is now %q, %v", after, err)
	}
}

// Without a server of names, a pod resolves them as its host does; one that asks for the cluster's waits and says why.
func TestWithoutAServerOfNamesAPodResolvesAsItsHost(t *testing.T) {
	before, err := os.ReadFile(hostResolver)
	if err != nil {
		t.Skip("the host has no file: ", err)
	}
	c := newCluster(t)
	newMachine(t, c).run()
	c.add(sh("a", "cat /etc/resolv.conf; exec sleep 1000"))
	asks := sh("asks", "exec sleep 1000")
	asks.Spec.DnsPolicy = "ClusterFirstWithHostNet"
	c.add(asks)
	c.await("a", "is ready", ready)
	eventually(t, "it sees the host's", func() bool {
		return c.log("a", &schedulingv1.GetPodLogRequest{}) == string(before)
	})
	c.await("asks", "says why it waits", func(st *schedulingv1.PodStatus) bool {
		w := st.GetContainerStatuses()
		return len(w) == 1 && w[0].GetState().GetWaiting().GetReason() == "CreateContainerConfigError" &&
			strings.Contains(w[0].GetState().GetWaiting().GetMessage(), "no server for the names of services")
	})
}
