package pods

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/services/node-agent/hellopod"
)

// withAddresses gives pods addresses of their own, in a range that no cluster has.
func withAddresses(m *machine) {
	m.addresses = loopback.Addresses{
		Dir: filepath.Join(m.dir, "host"), Range: netip.MustParsePrefix("127.255.16.0/20"),
	}
}

func hello(name string, port int) *schedulingv1.Pod {
	p := sh(name, "")
	p.Spec.Containers[0] = &schedulingv1.Container{Name: "hello", Image: "docker.io/ocpqe/hello-pod:latest"}
	if port > 0 {
		p.Spec.Containers[0].Ports = []*schedulingv1.ContainerPort{{ContainerPort: int32(port)}}
	}
	return p
}

func greets(address string, port int) bool {
	client := http.Client{Timeout: 5 * time.Second}
	r, err := client.Get("http://" + net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<10))
	return string(body) == hellopod.Greeting
}

func podIP(st *schedulingv1.PodStatus) string { return st.GetPodIp() }

func TestPodsWithEqualPortsListenEachOnAnAddressOfItsOwn(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	withAddresses(m)
	m.run()
	port := freePort(t)
	var addresses []string
	for _, name := range []string{"a", "b"} {
		c.add(hello(name, port))
		p := c.await(name, "is ready", ready)
		if ip, err := netip.ParseAddr(podIP(p)); err != nil || !m.addresses.Range.Contains(ip) ||
			p.GetPodIps()[0].GetIp() != podIP(p) || p.GetHostIp() != "127.0.0.1" {
			t.Errorf("pod %s has the addresses %v", name, p)
		}
		addresses = append(addresses, podIP(p))
		eventually(t, name+" greets", func() bool { return greets(podIP(p), port) })
	}
	if addresses[0] == addresses[1] {
		t.Errorf("both have the address %s", addresses[0])
	}
	began := time.Now()
	c.remove("a", 30)
	c.awaitGone("a")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v to end", took)
	}
}

func TestTheAddressOfAPodIsKeptUntilThePodIsGoneAndNotSoonAnothers(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	withAddresses(m)
	_, stop := m.run()
	p := sh("a", `echo "$IP $HOST"; `+forever)
	for name, path := range map[string]string{"IP": "status.podIP", "HOST": "status.hostIP"} {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, &schedulingv1.EnvVar{
			Name: name,
			ValueFrom: &schedulingv1.EnvVarSource{
				FieldRef: &schedulingv1.ObjectFieldSelector{FieldPath: path},
			},
		})
	}
	c.add(p)
	had := podIP(c.await("a", "is ready", ready))
	eventually(t, "the container knows its address", func() bool {
		return strings.Contains(c.log("a", &schedulingv1.GetPodLogRequest{}), had+" 127.0.0.1")
	})
	stop()
	_, stop = m.run()
	c.add(sh("b", forever))
	other := podIP(c.await("b", "is ready", ready))
	if now := podIP(c.await("a", "is ready", ready)); now != had || other == had {
		t.Errorf("after a restart of the agent the address is %s, not %s, and that of another pod %s", now, had, other)
	}
	claim := filepath.Join(m.addresses.Dir, had)
	if _, err := os.Stat(claim); err != nil {
		t.Error(err)
	}
	c.remove("a", 0)
	c.awaitGone("a")
	eventually(t, "the address is given back", func() bool {
		_, err := os.Stat(claim)
		return os.IsNotExist(err)
	})
	c.add(sh("d", forever))
	if now := podIP(c.await("d", "is ready", ready)); now == had {
		t.Errorf("the next pod has the address %s again", had)
	}
	stop()
}

func TestAnAddressThatAKilledAgentClaimedForNoRecordIsGivenBack(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	withAddresses(m)
	lost, err := m.addresses.Take("m-0", "uid-of-a-pod-without-a-record")
	if err != nil {
		t.Fatal(err)
	}
	of, err := m.addresses.Take("m-1", "uid")
	if err != nil {
		t.Fatal(err)
	}
	m.run()
	if _, err := os.Stat(filepath.Join(m.addresses.Dir, lost.String())); !os.IsNotExist(err) {
		t.Errorf("the claim is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(m.addresses.Dir, of.String())); err != nil {
		t.Errorf("the claim of another machine: %v", err)
	}
}

func TestAPodThatRanBeforePodsHadAddressesKeepsThatOfTheMachine(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(sh("a", forever))
	c.await("a", "is ready", ready)
	stop()
	files, err := filepath.Glob(filepath.Join(m.dir, "pods", "*", recordFile))
	if err != nil || len(files) != 1 {
		t.Fatalf("records %v, %v", files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	older := strings.Replace(string(raw), `"address":"127.0.0.1",`, "", 1)
	if older == string(raw) {
		t.Fatal("the record has no address")
	}
	if err := os.WriteFile(files[0], []byte(older), 0o600); err != nil {
		t.Fatal(err)
	}
	withAddresses(m)
	m.run()
	c.add(sh("b", forever))
	if ip := podIP(c.await("b", "is ready", ready)); ip == "127.0.0.1" {
		t.Error("a new pod has the machine's address")
	}
	if st := c.await("a", "is ready", ready); podIP(st) != "127.0.0.1" {
		t.Errorf("address %q", podIP(st))
	}
}

func TestAPodInTheNetworkOfItsHostHasTheAddressOfTheMachine(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	withAddresses(m)
	m.run()
	p := sh("a", forever)
	p.Spec.HostNetwork = proto.Bool(true)
	c.add(p)
	if got := podIP(c.await("a", "is ready", ready)); got != "127.0.0.1" {
		t.Errorf("address %s", got)
	}
}

func TestHelloPodFailsWhereItsPortIsTaken(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	withAddresses(m)
	m.run()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := hello("a", l.Addr().(*net.TCPAddr).Port)
	p.Spec.RestartPolicy = "Never"
	c.add(p)
	c.await("a", "has failed", func(p *schedulingv1.PodStatus) bool { return p.GetPhase() == "Failed" })
	if log := c.log("a", &schedulingv1.GetPodLogRequest{}); !strings.Contains(log, "address already in use") {
		t.Errorf("its log says %q", log)
	}
}

func TestOnTheAddressOfTheMachineContainerPortsMustNotClash(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.node.Metadata.Labels["windlass.dev/pod-address"] = "node"
	m.run()
	port := freePort(t)
	c.add(hello("a", port))
	c.await("a", "is ready", ready)
	eventually(t, "it greets", func() bool { return greets("127.0.0.1", port) })
	c.add(hello("b", port))
	p := c.await("b", "is refused", func(p *schedulingv1.PodStatus) bool { return p.GetPhase() == "Failed" })
	if p.GetReason() != "HostPort" {
		t.Errorf("status %v", p)
	}
	// Two without a declared port share none: one of them listens on a free port.
	for _, name := range []string{"d", "e"} {
		c.add(hello(name, 0))
		c.await(name, "is ready", ready)
		eventually(t, name+" serves", func() bool {
			return strings.Contains(c.log(name, &schedulingv1.GetPodLogRequest{}), "serving on ")
		})
	}
}

// A host port leads to the pod that has it, also after a restart of the agent, and to none once the pod is gone. If
// another program has the port, an event says so.
func TestAHostPortLeadsToItsPod(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	withAddresses(m)
	_, stop := m.run()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	p := hello("a", freePort(t))
	p.Spec.Containers[0].Ports[0].HostPort = int32(port)
	c.add(p)
	c.await("a", "is ready", ready)
	eventually(t, "an event says that the port is taken", func() bool {
		return c.said("a", hostPortNotOpened, "address already in use")
	})
	l.Close()
	eventually(t, "it greets", func() bool { return greets("127.0.0.1", port) })
	eventually(t, "an event says that the port is open",
		func() bool { return c.said("a", hostPortOpened, strconv.Itoa(port)) })
	stop()
	if greets("127.0.0.1", port) {
		t.Error("a port is open without its agent")
	}
	m.run()
	eventually(t, "it greets again", func() bool { return greets("127.0.0.1", port) })
	other := hello("b", freePort(t))
	other.Spec.Containers[0].Ports[0].HostPort = int32(freePort(t))
	other.Spec.Containers[0].Ports[0].HostIp = "127.0.0.9"
	other.Spec.Containers[0].Ports = append(other.Spec.Containers[0].Ports, &schedulingv1.ContainerPort{
		ContainerPort: 2379, HostPort: 2379,
	})
	c.add(other)
	eventually(t, "an event says that the port is etcd's", func() bool { return c.said("b", hostPortNotOpened, "etcd") })
	eventually(t, "an event says that the address is another one", func() bool {
		return c.said("b", hostPortNotOpened, "127.0.0.9")
	})
	c.remove("a", 0)
	c.awaitGone("a")
	if greets("127.0.0.1", port) {
		t.Error("a port leads to a pod that is gone")
	}
}
