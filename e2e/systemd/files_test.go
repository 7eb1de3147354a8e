package systemd

import (
	"fmt"
	"strings"
	"testing"
)

// demo is a configuration of control-plane hosts; it takes whether it overwrites, and a word of the file.
const demo = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-demo
  labels: {machineconfiguration.openshift.io/role: master}
spec:
  config:
    ignition: {version: 3.5.0}
    storage:
      files:
      - path: /etc/demo.conf
        mode: 0640
        overwrite: %v
        contents: {source: "data:,%s"}
    systemd:
      units:
      - name: demo.service
        enabled: true
        contents: |
          [Unit]
          Description=Shows that systemd runs the units of configurations
          [Service]
          ExecStart=/bin/sleep infinity
          Restart=always
          [Install]
          WantedBy=multi-user.target
`

// undisturbed has the files and the unit of demo change without a restart.
const undisturbed = `apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata: {name: cluster}
spec:
  nodeDisruptionPolicy:
    files:
    - path: /etc/demo.conf
      actions: [{type: None}]
    units:
    - name: demo.service
      actions: [{type: None}]
`

// configures has a configuration change the files of hosts, with units that systemd runs and restarts by logind, and
// takes it back.
func configures(t *testing.T, hosts []*host) {
	first := hosts[0]
	boots := map[*host]string{}
	for _, h := range hosts {
		h.must("sh", "-c", "umask 027; printf 'of the host' > /etc/demo.conf")
		boots[h] = h.bootTime()
	}
	if out := first.must("windlass", "get", "nodes", "-L", "windlass.dev/files"); strings.Count(out,
		" host") != len(hosts) {
		t.Errorf("the nodes of hosts are to say that their own files are changed:\n%s", out)
	}
	reasons := []string{
		"windlass", "get", "nodes", "-o",
		`jsonpath={.items[*].metadata.annotations.machineconfiguration\.openshift\.io/reason}`,
	}
	first.awaitUpdated()
	first.apply(fmt.Sprintf(demo, false, "first"))
	first.awaitText("the file of the host is not replaced", `the host has another file at "/etc/demo.conf"`, reasons...)
	if out := first.must("windlass", "get", "drains"); out != "" {
		t.Errorf("nodes are emptied for what cannot be put in force:\n%s", out)
	}
	first.apply(fmt.Sprintf(demo, true, "first"))
	for _, h := range hosts {
		h.awaitText("the file of the cluster on "+h.name, "first", "cat", "/etc/demo.conf")
		h.awaitText("the unit of the cluster on "+h.name, "active", "systemctl", "is-active", "demo.service")
	}
	first.awaitUpdated()
	for _, h := range hosts {
		if now := h.bootTime(); now == boots[h] {
			t.Errorf("%s was not restarted: it has booted at %s", h.name, now)
		}
		if out := h.must("stat", "--format=%a %U", "/etc/demo.conf"); out != "640 root" {
			t.Errorf("/etc/demo.conf of %s has mode and owner %s", h.name, out)
		}
	}
	h := hosts[1]
	h.must("systemctl", "stop", "demo.service")
	first.awaitText("a stopped unit is reported", `unit "demo.service" is inactive: it was stopped`,
		reasons...)
	h.must("systemctl", "start", "demo.service")
	first.awaitUpdated()
	for _, h := range hosts {
		boots[h] = h.bootTime()
	}
	first.apply(undisturbed)
	first.must("windlass", "delete", "machineconfig", "99-demo")
	for _, h := range hosts {
		h.awaitText("the file of the host on "+h.name, "of the host", "cat", "/etc/demo.conf")
		if out := h.must("stat", "--format=%a", "/etc/demo.conf"); out != "640" {
			t.Errorf("/etc/demo.conf of %s has mode %s again", h.name, out)
		}
		if out, err := h.try("systemctl", "show", "--property=LoadState", "--value", "demo.service"); out != "not-found" {
			t.Errorf("the unit of the cluster on %s is %s, %v", h.name, out, err)
		}
	}
	first.awaitUpdated()
	for _, h := range hosts {
		if now := h.bootTime(); now != boots[h] {
			t.Errorf("%s was restarted for a change that needs none", h.name)
		}
	}
}

// bootTime returns when the system of the host was started.
func (h *host) bootTime() string {
	h.t.Helper()
	return h.must("systemctl", "show", "--property=UserspaceTimestampMonotonic")
}

// apply applies objects with the command line of the host.
func (h *host) apply(objects string) {
	h.t.Helper()
	h.must("sh", "-c", "windlass apply -f - <<'EOF'\n"+objects+"EOF")
}

// awaitText waits until a command on the host prints a text.
func (h *host) awaitText(what, want string, command ...string) {
	h.t.Helper()
	await(h.t, what, func() string {
		out, err := h.try(command...)
		if strings.Contains(out, want) {
			return ""
		}
		return fmt.Sprint(out, " ", err)
	})
}

// awaitUpdated waits until all nodes of the pool of the control plane have its configuration.
func (h *host) awaitUpdated() {
	h.t.Helper()
	await(h.t, "the pool to be updated", func() string {
		out, err := h.try("windlass", "get", "machineconfigpool", "master", "-o",
			`jsonpath={.status.machineCount} {.status.updatedMachineCount} {.status.readyMachineCount} {.status.degradedMachineCount} {.status.conditions}`)
		if strings.HasPrefix(out, "3 3 3 0 ") {
			return ""
		}
		return fmt.Sprint(out, " ", err)
	})
}
