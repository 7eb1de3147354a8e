package service

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// writes returns a pod that writes its address of the service web, or "none", to a file.
func writes(file string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p", Namespace: "default", Uid: "uid-p"},
		Spec: &schedulingv1.PodSpec{RestartPolicy: "Never", Containers: []*schedulingv1.Container{{
			Name: "main", Command: []string{"/bin/sh", "-c", "printf ${WEB_PORT:-none} > " + file},
		}}},
	}
}

func awaitText(t *testing.T, file, want string) {
	t.Helper()
	servetest.Await(t, func() string {
		if got, err := os.ReadFile(file); string(got) != want {
			return fmt.Sprintf("%q, %v, want %q", got, err, want)
		}
		return ""
	})
}

func TestPodsReachServices(t *testing.T) {
	behind, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	free, err := net.Listen("tcp", "127.255.49.11:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	c := newCluster(t, "gateway")
	c.services = []*schedulingv1.ServiceEndpoints{{
		Namespace: "default", Name: "web", ClusterIp: "127.255.49.11",
		Ports: []*schedulingv1.ServiceEndpointsPort{{Protocol: "TCP", Port: portOf(free)}},
		Endpoints: []*schedulingv1.ServiceEndpoint{{
			Pod: "a", Uid: "a", Address: "127.0.0.1", Ports: []int32{portOf(behind)}, Serving: true,
		}},
	}}
	b := newBox(t, c, "worker")
	c.pod = writes(b.path("seen"))
	b.run("--host-dir", b.path("host"))
	awaitText(t, b.path("seen"), "tcp://"+address)
	servetest.Await(t, func() string {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err.Error()
		}
		_ = conn.Close()
		return ""
	})
	if conn, err := behind.Accept(); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	if !b.has("host/services.lock") {
		t.Error("the agents of the host do not elect one")
	}
}

func portOf(l net.Listener) int32 { return int32(l.Addr().(*net.TCPAddr).Port) }

func TestAPodStartsWithoutServicesIfTheClusterHasNone(t *testing.T) {
	c := newCluster(t, "gateway")
	b := newBox(t, c, "worker")
	c.pod = writes(b.path("seen"))
	b.run()
	awaitText(t, b.path("seen"), "none")
	if !strings.Contains(b.log.String(), "without the variables of services") {
		t.Error("it is not logged")
	}
}
