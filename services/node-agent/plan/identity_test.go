package plan_test

import (
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/security"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

func TestIdentity(t *testing.T) {
	in := plan.Accounts{
		Users: "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:101:102:Web server:/srv/web:/bin/false\n" +
			"odd:x:minus:1::/:\n200:x:300:300::/home/named-200:/bin/sh\n",
		Groups: "root:x:0:\nweb:x:102:\nstaff:x:50:web\n",
	}
	id := func(n uint32) *uint32 { return &n }
	for what, c := range map[string]struct {
		asked security.Context
		image string
		want  plan.Identity
		fault string
	}{
		"nothing is said":        {want: plan.Identity{Home: "/root"}},
		"the image names a user": {image: "web", want: plan.Identity{UID: 101, GID: 102, Home: "/srv/web"}},
		"the image names a user and a group": {
			image: "web:staff", want: plan.Identity{UID: 101, GID: 50, Home: "/srv/web"},
		},
		"the image has numbers":              {image: "7:8", want: plan.Identity{UID: 7, GID: 8, Home: "/"}},
		"the image has the number of a user": {image: "101", want: plan.Identity{UID: 101, GID: 102, Home: "/srv/web"}},
		"a name that is a number": {
			image: "200", want: plan.Identity{UID: 300, GID: 300, Home: "/home/named-200"},
		},
		"the image has no such user":  {image: "missing", fault: `the image has no "missing"`},
		"the image has no such group": {image: "web:missing", fault: `the image has no "missing"`},
		"a user without a number":     {image: "odd", fault: `the image has no "odd"`},
		"a number that is too large":  {image: "4294967295", fault: "is larger than"},
		"the container asks for a user": {
			security.Context{User: id(101)},
			"web:staff",
			plan.Identity{UID: 101, GID: 102, Home: "/srv/web"},
			"",
		},
		"the container asks for an unknown user": {
			security.Context{User: id(5)},
			"web",
			plan.Identity{UID: 5, Home: "/"},
			"",
		},
		"the container asks for user and group": {
			security.Context{User: id(5), Group: id(6)},
			"",
			plan.Identity{UID: 5, GID: 6, Home: "/"},
			"",
		},
		"the container asks for a group": {
			security.Context{Group: id(6)},
			"web",
			plan.Identity{UID: 101, GID: 6, Home: "/srv/web"},
			"",
		},
		"not root, and it is not": {
			security.Context{NonRoot: true},
			"101",
			plan.Identity{UID: 101, GID: 102, Home: "/srv/web"},
			"",
		},
		"not root, but the image says nothing": {
			security.Context{NonRoot: true},
			"",
			plan.Identity{},
			"would run as root",
		},
		"not root, but the image says 0": {
			security.Context{NonRoot: true},
			"0",
			plan.Identity{},
			"would run as root",
		},
		"not root, but the container says 0": {
			security.Context{NonRoot: true, User: id(0)},
			"101",
			plan.Identity{},
			"would run as root",
		},
		"not root, and the image says a name": {
			security.Context{NonRoot: true},
			"web",
			plan.Identity{},
			"non-numeric user (web)",
		},
		"not root, and a number instead of a name": {
			security.Context{NonRoot: true, User: id(5)}, "web", plan.Identity{UID: 5, Home: "/"}, "",
		},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := plan.IdentityOf(c.asked, c.image, in)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Errorf("%v, %v; want an error with %q", got, err, c.fault)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
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
