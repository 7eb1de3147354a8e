package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/security"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

func TestIdentity(t *testing.T) {
	const users = "root:x:0:0:root:/root:/bin/sh\nbroken\nodd:x:5:minus:::/bin/sh\nweb:x:101:102:Web server:/srv/web:/bin/false\n"
	id := func(n uint32) *uint32 { return &n }
	own := plan.Identity{UID: 70000, GID: 70001}
	for what, c := range map[string]struct {
		asked security.Context
		want  plan.Identity
		fails bool
	}{
		"nothing is asked for": {want: plan.Identity{UID: 70000, GID: 70001, Home: "/"}},
		"it must not be root": {asked: security.Context{NonRoot: true}, want: plan.Identity{
			UID: 70000, GID: 70001,
			Home: "/",
		}},
		"a user of the image": {asked: security.Context{User: id(101)}, want: plan.Identity{
			UID: 101, GID: 102, Home: "/srv/web",
		}},
		"a user that is not there":  {asked: security.Context{User: id(7)}, want: plan.Identity{UID: 7, Home: "/"}},
		"a user with a broken line": {asked: security.Context{User: id(5)}, want: plan.Identity{UID: 5, Home: "/"}},
		"a user and a group": {asked: security.Context{User: id(101), Group: id(6)}, want: plan.Identity{
			UID: 101, GID: 6, Home: "/srv/web",
		}},
		"a group": {asked: security.Context{Group: id(6)}, want: plan.Identity{
			UID: 70000, GID: 6, Home: "/",
		}},
		"root":                       {asked: security.Context{User: id(0)}, want: plan.Identity{Home: "/root"}},
		"root, which it must not be": {asked: security.Context{User: id(0), NonRoot: true}, fails: true},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := plan.IdentityOf(c.asked, own, users)
			if (err != nil) != c.fails || err == nil && got != c.want {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
	if _, err := plan.IdentityOf(security.Context{NonRoot: true}, plan.Identity{}, ""); !errors.Is(err, plan.ErrRoot) {
		t.Errorf("of an agent that is root, without users for pods: %v", err)
	}
}

func TestHosts(t *testing.T) {
	pod := decodePod(t, `{"hostname": "web-0", "subdomain": "web", "hostAliases":
		[{"ip": "10.0.0.1", "hostnames": ["a.example", "b"]}, {"ip": "::2", "hostnames": ["c"]}]}`)
	pod.Metadata.Namespace, pod.Metadata.Name = "default", "p"
	want := "127.240.0.5\tweb-0.web.default.svc.cluster.local\tweb-0\n10.0.0.1\ta.example\tb\n::2\tc\n"
	if got := plan.Hosts(pod, "127.240.0.5", "cluster.local", "10.1.1.1 host\n"); !strings.HasSuffix(got, "ip6-loopback\n"+
		want) {
		t.Errorf("the file is\n%s", got)
	}
	pod = decodePod(t, `{"hostNetwork": true, "hostAliases": [{"ip": "::2", "hostnames": ["c"]}]}`)
	if got, want := plan.Hosts(pod, "10.1.1.1", "cluster.local", "10.1.1.1 host\n"),
		"10.1.1.1 host\n::2\tc\n"; got != want {
		t.Errorf("in the host's network the file is %q, want %q", got, want)
	}
	pod = decodePod(t, `{}`)
	pod.Metadata.Name = strings.Repeat("a", 62) + "-b"
	if got, want := plan.Hostname(pod), strings.Repeat("a", 62); got != want {
		t.Errorf("the host is %q, want %q", got, want)
	}
}

func TestWhatANodeCannotEnforceIsRefused(t *testing.T) {
	roots, users, confinement := errors.New("no roots"), errors.New("no users"), errors.New("no filters")
	for what, c := range map[string]struct{ spec, want string }{
		"nothing is asked for": {`{"containers": [{"name": "a"}]}`, ""},
		"what needs nothing":   {`{"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "Unconfined"}}}`, ""},
		"a user of the pod":    {`{"securityContext": {"runAsUser": 5}}`, "runAsUser of spec.containers[0]: no users"},
		"a group of an init container": {
			`{"initContainers": [{"name": "i", "securityContext": {"runAsGroup": 5}}]}`,
			"runAsGroup of spec.initContainers[0]: no users",
		},
		"a root that is read-only": {
			`{"containers": [{"name": "a"}, {"name": "b", "securityContext": {"readOnlyRootFilesystem": true}}]}`,
			"readOnlyRootFilesystem of spec.containers[1]: no roots",
		},
		"a profile": {
			`{"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}`,
			"seccompProfile of spec.containers[0]: no filters",
		},
	} {
		spec := decodePod(t, c.spec).GetSpec()
		if len(spec.GetContainers()) == 0 {
			spec.Containers = []*schedulingv1.Container{{Name: "main"}}
		}
		got := plan.Lacks{Roots: roots, Users: users, Confinement: confinement}.Refuse(spec)
		if (got.Reason == plan.SecurityContextNotEnforceable) != (c.want != "") || !strings.HasSuffix(got.Message, c.want) {
			t.Errorf("%s: %v, want %q", what, got, c.want)
		}
		if got := (plan.Lacks{}).Refuse(spec); got != (plan.Verdict{}) {
			t.Errorf("%s: %v where all can be enforced", what, got)
		}
	}
}

func TestHostPortsOfAPod(t *testing.T) {
	for what, c := range map[string]struct {
		spec, machine string
		led, refused  []string
	}{
		"those of containers and sidecars": {
			`{"initContainers": [{"name": "i", "ports": [{"containerPort": 1, "hostPort": 1}]},
				{"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 2, "hostPort": 20}]}],
				"containers": [{"name": "a", "ports": [{"containerPort": 3, "hostPort": 30, "protocol": "UDP"},
				{"containerPort": 4}]}]}`, "10.0.0.1",
			[]string{"TCP 10.0.0.1:20 127.240.0.5:2", "UDP 10.0.0.1:30 127.240.0.5:3"},
			nil,
		},
		"addresses": {
			`{"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 1, "hostIP": "0.0.0.0"},
				{"containerPort": 2, "hostPort": 2, "hostIP": "10.0.0.1"}, {"containerPort": 3, "hostPort": 3, "hostIP": "10.0.0.2"},
				{"containerPort": 4, "hostPort": 2379}]}]}`, "10.0.0.1",
			[]string{"TCP 10.0.0.1:1 127.240.0.5:1", "TCP 10.0.0.1:2 127.240.0.5:2"},
			[]string{"port 3 of 10.0.0.2: its machine has the address 10.0.0.1", "port 2379: it is one of etcd's"},
		},
		"the network of the host": {
			`{"hostNetwork": true, "containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 1}]}]}`, "10.0.0.1",
			nil, nil,
		},
		"the address of the machine": {
			`{"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 1}]}]}`, "127.240.0.5", nil, nil,
		},
	} {
		ports, refused := plan.HostPortsOf(decodePod(t, c.spec).GetSpec(), c.machine, "127.240.0.5")
		var led []string
		for _, p := range ports {
			led = append(led, fmt.Sprint(p.Protocol, " ", p.Machine, " ", p.Pod))
		}
		if !slices.Equal(led, c.led) || !slices.Equal(refused, c.refused) {
			t.Errorf("%s: %q and %q, want %q and %q", what, led, refused, c.led, c.refused)
		}
	}
}
