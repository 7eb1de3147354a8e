package faults

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	containerPool = "containers"               // the pool of the container alone
	manyFiles     = 20                         // so that writing them takes a while
	endingBoot    = "windlass.dev/config-boot" // annotation with the boot that is to end
	readerConf    = "reader.conf"
	readerLog     = "unit-reader.service.log"
)

// containerDocuments are a set with one machine that is a container, its pool, and what a change of its files requires:
// of those that the service reads a restart of the service, and of all others a reboot.
const containerDocuments = `
apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata: {name: cluster}
spec:
  nodeDisruptionPolicy:
    files:
    - {path: /etc/reader.conf, actions: [{type: Restart, restart: {serviceName: reader.service}}]}
    - {path: /etc/reader.d, actions: [{type: Restart, restart: {serviceName: reader.service}}]}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: containers}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: containers}}
  nodeSelector: {matchLabels: {node-role.kubernetes.io/containers: ""}}
---
apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata: {name: containers, namespace: openshift-machine-api}
spec:
  replicas: 1
  selector: {matchLabels: {machine.openshift.io/cluster-api-machineset: containers}}
  template:
    metadata:
      labels:
        machine.openshift.io/cluster-api-machine-role: worker
        machine.openshift.io/cluster-api-machine-type: worker
        machine.openshift.io/cluster-api-machineset: containers
    spec:
      metadata: {labels: {node-role.kubernetes.io/worker: "", node-role.kubernetes.io/containers: ""}}
      providerSpec:
        value:
          apiVersion: windlass.dev/v1
          kind: DockerMachineProviderSpec
          network: host
          capacity: {cpu: "1", memory: 1Gi, pods: "20"}
`

// contents are the texts of a container's files. What reboots is another one than what the service reads.
type contents struct{ reboots, restarts string }

// files returns the files of a configuration, by their paths below /etc.
func (c contents) files() map[string]string {
	out := map[string]string{readerConf: c.restarts + "\n"}
	for i := range manyFiles {
		out[fmt.Sprintf("reader.d/%02d", i)] = c.restarts
		out[fmt.Sprintf("faults.d/%02d", i)] = c.reboots
	}
	return out
}

// document is the MachineConfig with the contents. The unit differs with what reboots. Its start can be held: the files
// of a change are on disk then, and the change is not recorded.
func (c contents) document(reader []byte) string {
	files := c.files()
	var b strings.Builder
	b.WriteString(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 50-containers
  labels: {machineconfiguration.openshift.io/role: containers}
spec:
  config:
    ignition: {version: 3.4.0}
    systemd:
      units:
      - name: reader.service
        enabled: true
        contents: |
          [Unit]
          Description=` + c.reboots + `
          [Service]
          ExecStartPre=/usr/bin/reader waits
          ExecStart=/usr/bin/reader
          Restart=always
          [Install]
          WantedBy=multi-user.target
    storage:
      files:
`)
	file := func(path string, mode int, contents string, content []byte) {
		fmt.Fprintf(&b, "      - {path: %s, mode: %d, overwrite: true, contents: {%ssource: \"data:;base64,%s\"}}\n", path,
			mode, contents, base64.StdEncoding.EncodeToString(content))
	}
	file("/usr/bin/reader", 0o755, "compression: gzip, ", reader)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file("/etc/"+name, 0o644, "", []byte(files[name]))
	}
	return b.String()
}

// readerProgram is the program of the service: a container has none but ours. Without an argument it prints
// etc/reader.conf once and then does nothing until it is ended; with one it ends once etc/hold cannot be executed.
const readerProgram = `package main

import (
	"os"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		for held() {
			time.Sleep(20 * time.Millisecond)
		}
		return
	}
	text, err := os.ReadFile("etc/reader.conf")
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(text)
	for {
		time.Sleep(time.Hour)
	}
}

func held() bool {
	info, err := os.Stat("etc/hold")
	return err == nil && info.Mode()&0o111 != 0
}
`

// containerCourse is a change of the container's configuration.
type containerCourse struct {
	name    string
	next    func(contents, string) contents
	moments []string // at which the container is killed
}

var containerCourses = []containerCourse{
	{
		"reboot", func(c contents, text string) contents { return contents{text, c.restarts} },
		[]string{
			"ordered", "cordoned", "emptied", "journal", "written", "started", "recorded", "rebooting", "booted", "applied",
			"uncordoned",
		},
	},
	{
		"restart", func(c contents, text string) contents { return contents{c.reboots, text} },
		[]string{"ordered", "journal", "written", "started", "recorded", "applied"},
	},
}

// TestFaultsAContainerIsKilledDuringAConfiguration kills the container of a machine, and so all of the machine at once,
// at each step of a configuration, and starts it again.
func TestFaultsAContainerIsKilledDuringAConfiguration(t *testing.T) {
	engine, name := harness.Docker(t)
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	p := c.Provide("provider-docker", "--cluster", name)
	c.Up("--set", "machine-api.peer=provider-docker="+p.Address())
	program, err := os.ReadFile(harness.BuildProgram(t, readerProgram))
	if err != nil {
		t.Fatal(err)
	}
	reader := packed(t, program)
	m := &containerMachine{t: t, c: c, engine: engine, reader: reader, has: contents{"first", "first"}}
	apply(t, c, m.has.document(reader))
	apply(t, c, containerDocuments)
	c.Wait(patience, "the container's node", func(ctx context.Context) (bool, string, error) {
		nodes, err := c.Nodes(ctx)
		for _, n := range nodes {
			if strings.HasPrefix(n.GetSpec().GetProviderId(), "docker://"+name+"/") {
				m.node = n.GetMetadata().GetName()
			}
		}
		return m.node != "", fmt.Sprint(len(nodes)), err
	})
	c.Wait(patience, "the container", func(ctx context.Context) (bool, string, error) {
		machine, err := c.Machine(ctx, m.node)
		m.id = machine.GetStatus().GetProviderStatus().GetFields()["containerId"].GetStringValue()
		return m.id != "", machine.GetStatus().GetPhase(), err
	})
	t.Cleanup(func() {
		if t.Failed() {
			m.printLog()
		}
	})
	m.settle("")
	for _, k := range containerCourses {
		if os.Getenv("WINDLASS_FAULTS") != "all" {
			at := map[string][]string{"reboot": {"journal", "rebooting"}, "restart": {"written"}}[k.name]
			t.Run(k.name, func(t *testing.T) { m.on(t).take(k, at...) })
			continue
		}
		for _, at := range k.moments {
			t.Run(k.name+", "+at, func(t *testing.T) { m.on(t).take(k, at) })
		}
		t.Run(k.name+", at each", func(t *testing.T) { m.on(t).take(k, k.moments...) })
	}
}

// packed compresses a file: an object may have 1.5 MiB.
func packed(t *testing.T, file []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(file); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// containerMachine is the machine that is a container.
type containerMachine struct {
	t        *testing.T
	c        *harness.Cluster
	engine   *client.Client
	reader   []byte // the program of the service, compressed
	node, id string
	has      contents
	had      contents
	changes  int
	before   string // the configuration before the change
}

func (m *containerMachine) on(t *testing.T) *containerMachine {
	m.t = t
	return m
}

// take changes the configuration, kills the container at moments of that, and checks what that leaves.
func (m *containerMachine) take(k containerCourse, at ...string) {
	m.t.Helper()
	record := m.c.Record()
	start := m.look()
	m.before = start.GetMetadata().GetAnnotations()[currentConfig]
	m.changes++
	m.had, m.has = m.has, k.next(m.has, fmt.Sprintf("change %d", m.changes))
	began := time.Now()
	at = slices.DeleteFunc(slices.Clone(k.moments), func(moment string) bool { return !slices.Contains(at, moment) })
	for i, moment := range at {
		if moment == "journal" || moment == "written" {
			m.hold(true)
		}
		if i == 0 {
			apply(m.t, m.c, m.has.document(m.reader))
		}
		if moment == "booted" { // after the change, or the change would be held
			m.await("rebooting")
			m.hold(true)
		}
		over := m.await(moment)
		m.kill(moment, over)
	}
	m.settle(m.before)
	m.t.Logf("the %s took %s", k.name, time.Since(began).Round(100*time.Millisecond))
	m.others(record.Steps())
}

// await returns when a moment of the change is reached, and whether the node is Done by then.
func (m *containerMachine) await(moment string) (applied bool) {
	m.t.Helper()
	m.c.Wait(patience, moment, func(ctx context.Context) (bool, string, error) {
		n, err := m.get(ctx)
		if err != nil {
			return false, "", err
		}
		marks := n.GetMetadata().GetAnnotations()
		target, state := marks[desiredConfig], marks[stateOfConfig]
		ordered := target != m.before
		applied = ordered && marks[currentConfig] == target && state == "Done"
		saw := fmt.Sprintf("%s, unschedulable %t, %v", state, n.GetSpec().GetUnschedulable(), marks)
		switch moment {
		case "ordered":
			return ordered, saw, nil
		case "cordoned":
			return applied || ordered && n.GetSpec().GetUnschedulable(), saw, nil
		case "emptied":
			d, err := nodev1.NewDrainServiceClient(m.c.Conn()).GetDrain(ctx, &nodev1.GetDrainRequest{
				Name: "machine-config-" + m.node,
			})
			if isGone(err) {
				err = nil
			}
			return applied || d.GetStatus().GetPhase() == "Succeeded", saw, err
		case "rebooting":
			return applied || state == "Rebooting", saw, nil
		case "booted":
			return applied || state == "Rebooting" && n.GetStatus().GetNodeInfo().GetBootId() != marks[endingBoot], saw, nil
		case "applied":
			return applied, saw, nil
		case "uncordoned":
			return applied && !n.GetSpec().GetUnschedulable(), saw, nil
		}
		d, err := m.disk(ctx)
		if err != nil || !ordered {
			return false, saw, err
		}
		recorded := d.current.Name == target
		switch moment {
		case "journal":
			return recorded || d.journal != nil, saw, nil
		case "written":
			return recorded || d.journal != nil && d.is(m.has), saw, nil
		case "started":
			return recorded || d.journal != nil && d.is(m.has) && d.read == m.has.restarts && d.starts > 0, saw, nil
		}
		return recorded, saw, nil // "recorded"
	})
	return applied
}

// kill kills the container, checks what that leaves, and starts the container again: the engine leaves that to its user
// (docs/provider.md).
func (m *containerMachine) kill(moment string, over bool) {
	m.t.Helper()
	boot := m.look().GetStatus().GetNodeInfo().GetBootId()
	if _, err := m.engine.ContainerKill(m.t.Context(), m.id, client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil {
		if !errdefs.IsConflict(err) { // it restarts at this moment: it is not running
			m.t.Fatal(err)
		}
	}
	m.c.Wait(patience, "the container to be killed, and its instance to be Stopped",
		func(ctx context.Context) (bool, string, error) {
			now, err := m.engine.ContainerInspect(ctx, m.id, client.ContainerInspectOptions{})
			if err != nil {
				return false, "", err
			}
			if now.Container.State.Status == container.StateRunning {
				_, err := m.engine.ContainerKill(ctx, m.id, client.ContainerKillOptions{Signal: "SIGKILL"})
				return false, "it runs again", err // the engine had restarted it for its reboot
			}
			machine, err := m.c.Machine(ctx, m.node)
			state := machine.GetStatus().GetProviderStatus().GetFields()["containerState"].GetStringValue()
			return state == string(container.StateExited) && now.Container.State.Status == container.StateExited, state, err
		})
	d, err := m.disk(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, fault := range d.faults(m.before, m.had, m.has) {
		m.t.Errorf("killed at %s: %s", moment, fault)
	}
	left := d.left(m.has)
	switch journal := d.journal != nil; {
	case (moment == "journal" || moment == "written") && !journal && !over:
		m.t.Errorf("killed at %s: there is no journal, so the kill was too late: %s", moment, left)
	case moment == "booted" && !over && m.done(m.look()):
		m.t.Errorf("killed at %s: the node is Done, and its service is not started", moment)
	}
	m.t.Logf("%s: docker kill at %s, Done before: %t: %s", time.Now().Format("15:04:05.000"), moment, over, left)
	if n := m.look(); m.done(n) && !d.whole(n.GetMetadata().GetAnnotations()[currentConfig], m.has) {
		m.t.Errorf("killed at %s: the node is said to be Done with the new configuration, and has %s", moment, left)
	}
	if pool, err := m.c.Pool(m.t.Context(), containerPool); err == nil {
		if is, _ := harness.Condition(pool.GetStatus().GetConditions(), "Updated"); is == "True" &&
			pool.GetStatus().GetConfiguration().GetName() != m.before && !d.whole(d.current.Name, m.has) {
			m.t.Errorf("killed at %s: the pool is said to be Updated, and the disk has %s", moment, left)
		}
	}
	m.hold(true)
	if _, err := m.engine.ContainerStart(m.t.Context(), m.id, client.ContainerStartOptions{}); err != nil {
		m.t.Fatal(err)
	}
	// While the start of the service is held, the half-made change is taken back, and no other one begins.
	m.c.Wait(patience, "an agent without a journal", func(ctx context.Context) (bool, string, error) {
		run, err := m.files(ctx, "/machine/run")
		if err == nil {
			d, err = m.disk(ctx)
		}
		return run["boot.id"] != "" && !strings.Contains(run["boot.id"], boot) && d.journal == nil,
			fmt.Sprint(run["boot.id"], d.left(m.has)), err
	})
	for _, fault := range d.faults(m.before, m.had, m.has) {
		m.t.Errorf("killed at %s, and started: %s", moment, fault)
	}
	m.hold(false)
	m.c.Wait(patience, "another boot than "+boot, func(ctx context.Context) (bool, string, error) {
		n, err := m.get(ctx)
		now := n.GetStatus().GetNodeInfo().GetBootId()
		return now != "" && now != boot && harness.Ready(n), fmt.Sprintf("boot %s, %v", now, n.GetStatus().GetConditions()),
			err
	})
}

// hold has each start of the service wait, or go on.
func (m *containerMachine) hold(wait bool) {
	m.t.Helper()
	mode := fs.FileMode(0o644)
	if wait {
		mode = 0o755
	}
	m.c.Wait(patience, "the start of the service to be held, or not", func(ctx context.Context) (bool, string, error) {
		err := m.tryHold(ctx, mode) // the container may end for a reboot at this moment
		return err == nil, "", err
	})
}

func (m *containerMachine) tryHold(ctx context.Context, mode fs.FileMode) error {
	root, err := m.root(ctx)
	if err != nil {
		return err
	}
	if root != "" {
		file := root + "/machine/root/etc/hold"
		return errors.Join(os.WriteFile(file, nil, mode), os.Chmod(file, mode))
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	h := &tar.Header{Name: "hold", Typeflag: tar.TypeReg, Mode: int64(mode)}
	if err := errors.Join(w.WriteHeader(h), w.Close()); err != nil {
		return err
	}
	_, err = m.engine.CopyToContainer(ctx, m.id, client.CopyToContainerOptions{
		DestinationPath: "/machine/root/etc", Content: &archive,
	})
	return err
}

// done reports whether a node is said to have the new configuration.
func (m *containerMachine) done(n *nodev1.Node) bool {
	marks := n.GetMetadata().GetAnnotations()
	return marks[currentConfig] != m.before && marks[currentConfig] != "" &&
		marks[currentConfig] == marks[desiredConfig] && marks[stateOfConfig] == "Done"
}

// settle waits until the node has another configuration than before and serves, and checks that its disk says so as
// soon as the node is said to be Done.
func (m *containerMachine) settle(before string) {
	m.t.Helper()
	m.before = before
	var n *nodev1.Node
	m.c.Wait(patience, "the new configuration", func(ctx context.Context) (done bool, _ string, err error) {
		n, err = m.get(ctx)
		return m.done(n), fmt.Sprint(n.GetMetadata().GetAnnotations()), err
	})
	d, err := m.disk(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	if name := n.GetMetadata().GetAnnotations()[currentConfig]; !d.whole(name, m.has) {
		m.t.Errorf("the node is Done with %s, and has %s", name, d.left(m.has))
	}
	m.c.Wait(patience, "the service to have read its file", func(ctx context.Context) (bool, string, error) {
		d, err := m.disk(ctx) // it is started before the node is Done, and reads a moment later
		return d.read == m.has.restarts, d.read, err
	})
	m.c.Wait(patience, "the node to serve and its pool to be Updated", func(ctx context.Context) (bool, string, error) {
		n, err := m.get(ctx)
		if err != nil {
			return false, "", err
		}
		pool, err := m.c.Pool(ctx, containerPool)
		if err != nil {
			return false, "", err
		}
		drains, err := nodev1.NewDrainServiceClient(m.c.Conn()).ListDrains(ctx, &nodev1.ListDrainsRequest{})
		is, text := harness.Condition(pool.GetStatus().GetConditions(), "Updated")
		return is == "True" && m.done(n) && harness.Ready(n) && !n.GetSpec().GetUnschedulable() &&
			len(drains.GetItems()) == 0, fmt.Sprint(text, drains.GetItems()), err
	})
}

// others checks that no other node was disturbed.
func (m *containerMachine) others(steps []harness.Step) {
	m.t.Helper()
	first := map[string]*nodev1.Node{}
	for _, s := range steps {
		n, ok := s.Object.(*nodev1.Node)
		name := s.Object.GetMetadata().GetName()
		if !ok || name == m.node {
			continue
		}
		if first[name] == nil {
			first[name] = n
		}
		was := first[name]
		marks, had := n.GetMetadata().GetAnnotations(), was.GetMetadata().GetAnnotations()
		if s.Deleted || !harness.Ready(n) || n.GetSpec().GetUnschedulable() || marks[desiredConfig] != had[desiredConfig] ||
			marks[stateOfConfig] != had[stateOfConfig] ||
			n.GetStatus().GetNodeInfo().GetBootId() != was.GetStatus().GetNodeInfo().GetBootId() {
			m.t.Errorf("node %s was disturbed: %v", name, n)
		}
	}
}

func (m *containerMachine) get(ctx context.Context) (*nodev1.Node, error) {
	return nodev1.NewNodeServiceClient(m.c.Conn()).GetNode(ctx, &nodev1.GetNodeRequest{Name: m.node})
}

func (m *containerMachine) look() (n *nodev1.Node) {
	m.t.Helper()
	m.c.Wait(patience, "node "+m.node, func(ctx context.Context) (_ bool, _ string, err error) {
		n, err = m.get(ctx)
		return err == nil, "", err
	})
	return n
}

func (m *containerMachine) printLog() {
	r, err := m.engine.ContainerLogs(context.Background(), m.id, client.ContainerLogsOptions{
		ShowStderr: true, ShowStdout: true, Timestamps: true, Tail: "200",
	})
	if err != nil {
		m.t.Log(err)
		return
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	m.t.Logf("the container's log: %s %v", text, err)
}

// containerDisk is what the disk of the container has.
type containerDisk struct {
	current struct{ Name, Change, EndingBoot string }
	journal *struct{ Change, Config string } // nil if there is none
	files   map[string]string                // below /etc
	read    string                           // by the service that was started last
	starts  int
}

// disk reads the disk, whether or not the container runs.
func (m *containerMachine) disk(ctx context.Context) (containerDisk, error) {
	var d containerDisk
	config, err := m.files(ctx, "/machine/config")
	if err != nil {
		return d, err
	}
	if d.files, err = m.files(ctx, "/machine/root/etc"); err != nil {
		return d, err
	}
	logs, err := m.files(ctx, "/machine/log/units")
	if err != nil && !errdefs.IsNotFound(err) && !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if lines := strings.Fields(strings.ReplaceAll(logs[readerLog], " ", "_")); len(lines) > 0 {
		d.starts, d.read = len(lines), strings.ReplaceAll(lines[len(lines)-1], "_", " ")
	}
	if text, ok := config["journal.json"]; ok {
		if err := json.Unmarshal([]byte(text), &d.journal); err != nil {
			return d, fmt.Errorf("journal.json: %w", err)
		}
	}
	if err := json.Unmarshal([]byte(config["current.json"]), &d.current); err != nil {
		return d, fmt.Errorf("current.json: %w", err)
	}
	if d.journal != nil && d.journal.Change == d.current.Change {
		d.journal = nil // what led here means nothing any more
	}
	return d, nil
}

// root returns where the files of the container are on this host: reading them there takes a moment, and the engine
// takes a second to copy them. It is empty if the container does not run, or not on this host.
func (m *containerMachine) root(ctx context.Context) (string, error) {
	c, err := m.engine.ContainerInspect(ctx, m.id, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	pid := c.Container.State.Pid
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if pid == 0 || err != nil || !strings.Contains(string(line), m.id) {
		return "", ignoreGone(err)
	}
	return fmt.Sprintf("/proc/%d/root", pid), nil
}

// files returns the contents of the files below a directory of the container, by their paths there.
func (m *containerMachine) files(ctx context.Context, dir string) (map[string]string, error) {
	root, err := m.root(ctx)
	if err != nil {
		return nil, err
	}
	if root == "" {
		return m.copied(ctx, dir)
	}
	if root += dir; !isThere(root) {
		return nil, fs.ErrNotExist
	}
	out := map[string]string{}
	return out, filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(file)
		if err == nil {
			out[strings.TrimPrefix(file, root+"/")] = string(text)
		}
		return ignoreGone(err)
	})
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// copied returns the files below a directory as the engine copies them.
func (m *containerMachine) copied(ctx context.Context, dir string) (map[string]string, error) {
	r, err := m.engine.CopyFromContainer(ctx, m.id, client.CopyFromContainerOptions{SourcePath: dir})
	if err != nil {
		return nil, err
	}
	defer r.Content.Close()
	out := map[string]string{}
	for archive := tar.NewReader(r.Content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		out[strings.TrimPrefix(h.Name, path.Base(dir)+"/")] = string(text)
	}
}

// is reports whether the files are those of a configuration.
func (d containerDisk) is(c contents) bool {
	for name, text := range c.files() {
		if d.files[name] != text {
			return false
		}
	}
	return true
}

// whole reports whether the disk has a configuration, by its record and by its files, and nothing of another.
func (d containerDisk) whole(name string, c contents) bool {
	return d.current.Name == name && d.journal == nil && d.is(c)
}

// faults says what is wrong on a disk in the midst of a change: each file is the old or the new one, and without a
// journal all are those of the configuration that is recorded.
func (d containerDisk) faults(before string, old, fresh contents) (out []string) {
	was, is := old.files(), fresh.files()
	for name, text := range is {
		if have := d.files[name]; have != text && have != was[name] {
			out = append(out, fmt.Sprintf("/etc/%s is %q, neither the old nor the new one", name, have))
		}
	}
	if d.current.Name == "" {
		out = append(out, "no configuration is recorded")
	}
	if recorded := d.current.Name == before; d.journal == nil && (recorded && !d.is(old) || !recorded && !d.is(fresh)) {
		out = append(out, fmt.Sprintf("without a journal and with the record of %s the disk has %s", d.current.Name,
			d.left(fresh)))
	}
	return out
}

// left describes the disk.
func (d containerDisk) left(c contents) string {
	fresh := 0
	all := c.files()
	for name, text := range all {
		if d.files[name] == text {
			fresh++
		}
	}
	return fmt.Sprintf("the record of %s, %d of %d files of the new configuration, a journal: %t", d.current.Name, fresh,
		len(all), d.journal != nil)
}
