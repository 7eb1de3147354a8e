package plan_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

func TestServiceVariables(t *testing.T) {
	web := &schedulingv1.ServiceEndpoints{
		Namespace: "default", Name: "my-web", ClusterIp: "127.224.0.11",
		Ports: []*schedulingv1.ServiceEndpointsPort{
			{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns-udp", Protocol: "UDP", Port: 53},
		},
	}
	ofWeb := []string{ // as FromServices gives
		"MY_WEB_PORT=tcp://127.224.0.11:80",
		"MY_WEB_PORT_53_UDP=udp://127.224.0.11:53",
		"MY_WEB_PORT_53_UDP_ADDR=127.224.0.11",
		"MY_WEB_PORT_53_UDP_PORT=53",
		"MY_WEB_PORT_53_UDP_PROTO=udp",
		"MY_WEB_PORT_80_TCP=tcp://127.224.0.11:80",
		"MY_WEB_PORT_80_TCP_ADDR=127.224.0.11",
		"MY_WEB_PORT_80_TCP_PORT=80",
		"MY_WEB_PORT_80_TCP_PROTO=tcp",
		"MY_WEB_SERVICE_HOST=127.224.0.11",
		"MY_WEB_SERVICE_PORT=80",
		"MY_WEB_SERVICE_PORT_DNS_UDP=53",
		"MY_WEB_SERVICE_PORT_HTTP=80",
	}
	db := &schedulingv1.ServiceEndpoints{
		Namespace: "default", Name: "db", ClusterIp: "127.224.0.16", Ports: []*schedulingv1.ServiceEndpointsPort{
			{Port: 5432},
		},
	}
	ofDB := []string{
		"DB_PORT=tcp://127.224.0.16:5432",
		"DB_PORT_5432_TCP=tcp://127.224.0.16:5432",
		"DB_PORT_5432_TCP_ADDR=127.224.0.16",
		"DB_PORT_5432_TCP_PORT=5432",
		"DB_PORT_5432_TCP_PROTO=tcp",
		"DB_SERVICE_HOST=127.224.0.16",
		"DB_SERVICE_PORT=5432",
	}
	type services = []*schedulingv1.ServiceEndpoints
	port := []*schedulingv1.ServiceEndpointsPort{{Port: 1}}
	for what, c := range map[string]struct {
		spec     string
		services services
		want     []string
	}{
		"two ports with names":            {`{}`, services{web}, ofWeb},
		"a port without name or protocol": {`{}`, services{db}, ofDB},
		"all services, sorted":            {`{"enableServiceLinks": true}`, services{web, db}, slices.Concat(ofDB, ofWeb)},
		"no service links":                {`{"enableServiceLinks": false}`, services{web, db}, nil},
		"services of other namespaces, without an address, and without ports": {`{}`, services{
			{Namespace: "other", Name: "a", ClusterIp: "127.224.0.12", Ports: port},
			{Namespace: "default", Name: "b", ClusterIp: "None", Ports: port},
			{Namespace: "default", Name: "c", ExternalName: "example.com", Ports: port},
			{Namespace: "default", Name: "d", ClusterIp: "127.224.0.13"},
		}, []string{"D_SERVICE_HOST=127.224.0.13"}},
		"of two services with the same variable the later name counts": {`{}`, services{
			{Namespace: "default", Name: "e-service", ClusterIp: "127.224.0.14", Ports: port},
			{Namespace: "default", Name: "e", ClusterIp: "127.224.0.15", Ports: []*schedulingv1.ServiceEndpointsPort{
				{Port: 1, Name: "1-tcp"},
			}},
		}, []string{
			"E_PORT=tcp://127.224.0.15:1", "E_PORT_1_TCP=tcp://127.224.0.15:1", "E_PORT_1_TCP_ADDR=127.224.0.15",
			"E_PORT_1_TCP_PORT=1", "E_PORT_1_TCP_PROTO=tcp", "E_SERVICE_HOST=127.224.0.15",
			"E_SERVICE_PORT=tcp://127.224.0.14:1", "E_SERVICE_PORT_1_TCP=tcp://127.224.0.14:1",
			"E_SERVICE_PORT_1_TCP_ADDR=127.224.0.14", "E_SERVICE_PORT_1_TCP_PORT=1", "E_SERVICE_PORT_1_TCP_PROTO=tcp",
			"E_SERVICE_SERVICE_HOST=127.224.0.14", "E_SERVICE_SERVICE_PORT=1",
		}},
	} {
		t.Run(what, func(t *testing.T) {
			pod := decodePod(t, c.spec)
			pod.Metadata.Namespace = "default"
			slices.Reverse(c.services) // the order of the list does not count
			for range 2 {
				if diff := cmp.Diff(c.want, plan.ServiceVariables(pod, c.services)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				slices.Reverse(c.services)
			}
		})
	}
}

func TestTheContainersOwnVariablesReplaceThoseOfServices(t *testing.T) {
	pod := decodePod(t, `{"containers": [{"name": "a", "args": ["$(WEB_SERVICE_HOST)", "$(WEB_SERVICE_PORT)"],
		"env": [{"name": "WEB_SERVICE_HOST", "value": "own:$(WEB_SERVICE_PORT)"}]}]}`)
	links := plan.ServiceVariables(pod, []*schedulingv1.ServiceEndpoints{
		{Name: "web", ClusterIp: "127.224.0.11", Ports: []*schedulingv1.ServiceEndpointsPort{{Port: 80}}},
	})
	c := pod.GetSpec().GetContainers()[0]
	env, err := plan.Environment(pod, c, "", "", links, plan.Objects{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := plan.Command(c, []string{"run"}, nil, env)
	if diff := cmp.Diff([]string{"run", "own:80", "80"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
