package pods

import (
	"context"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

func TestContainersGetTheVariablesOfServices(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	known := true
	var asked int
	m.services = func(context.Context) ([]*schedulingv1.ServiceEndpoints, bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		asked++
		if !known {
			return nil, false
		}
		return []*schedulingv1.ServiceEndpoints{
			{Namespace: "default", Name: "web", ClusterIp: "127.224.0.11", Ports: []*schedulingv1.ServiceEndpointsPort{
				{Port: 80},
			}},
			{Namespace: "default", Name: "windlass-volume", ClusterIp: "127.224.0.12"},
		}, true
	}
	m.run()
	script := `echo "$WEB_SERVICE_HOST:$WEB_SERVICE_PORT $WINDLASS_VOLUME_SERVICE_HOST"; sleep 1000`
	c.add(sh("with", script))
	// A variable of the agent counts more than one of a service.
	own := sh("own", script)
	own.Spec.Volumes = []*schedulingv1.Volume{{Name: "service-host"}}
	own.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "service-host", MountPath: "/v"}}
	c.add(own)
	logged(t, c, "with", "127.224.0.11:80 127.224.0.12\n")
	eventually(t, "the pod has its volume", func() bool {
		return strings.HasSuffix(c.log("own", &schedulingv1.GetPodLogRequest{}), "/volumes/service-host\n")
	})
	m.mu.Lock()
	if known = false; asked != 2 {
		t.Errorf("asked %d times", asked)
	}
	m.mu.Unlock()
	c.add(sh("away", script))
	logged(t, c, "away", ": \n")
	off := sh("off", script)
	off.Spec.EnableServiceLinks = new(false)
	c.add(off)
	logged(t, c, "off", ": \n")
	m.mu.Lock()
	defer m.mu.Unlock()
	if asked != 3 {
		t.Errorf("asked %d times, also for a pod without service links", asked)
	}
}

// logged waits until a pod has written a text.
func logged(t *testing.T, c *cluster, name, want string) {
	t.Helper()
	eventually(t, name+" writes "+want, func() bool {
		return c.log(name, &schedulingv1.GetPodLogRequest{}) == want
	})
}
