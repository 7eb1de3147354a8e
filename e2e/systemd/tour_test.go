package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTourOfHosts goes through what docs/hosts.md describes, from three hosts with nothing but Debian to a cluster,
// through a lost host, an update and the loss of all hosts, and prints each command and its output.
func TestTourOfHosts(t *testing.T) {
	if os.Getenv("WINDLASS_TOUR") == "" {
		t.Skip("the tour is `make tour-hosts`")
	}
	hosts := fleet(t, 4, present, next)
	s := &story{t: t, began: time.Now()}
	s.begins(hosts[:3])
	s.runsPods(hosts[0])
	backup := s.backsUp(hosts[0])
	s.losesAHost(hosts[:3])
	s.updates(hosts[:3])
	s.losesAll(hosts[:3], hosts[3], backup)
	fmt.Printf("\nThe tour took %.0f s.\n", time.Since(s.began).Seconds())
}

// story runs commands on hosts and prints them.
type story struct {
	t     *testing.T
	began time.Time
}

func (s *story) chapter(title string) {
	fmt.Printf("\n== %s (%.0f s)\n\n", title, time.Since(s.began).Seconds())
}

// run runs a command line on a host, prints it with its output, and returns that.
func (s *story) run(h *host, line string) string {
	s.t.Helper()
	fmt.Printf("%s # %s\n", h.name, line)
	out, err := h.try("sh", "-c", line+" 2>&1")
	printOutput(out)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// until runs a command line on a host until its output has all of some texts, and prints it then.
func (s *story) until(h *host, line string, texts ...string) string {
	s.t.Helper()
	var out string
	began := time.Now()
	await(s.t, fmt.Sprintf("%q in the output of %s", texts, line), func() string {
		var err error
		out, err = h.try("sh", "-c", line+" 2>&1")
		for _, text := range texts {
			if err != nil || !strings.Contains(out, text) {
				return fmt.Sprint(out, err)
			}
		}
		return ""
	})
	fmt.Printf("%s # %s    (after %.0f s)\n", h.name, line, time.Since(began).Seconds())
	printOutput(out)
	return out
}

func printOutput(out string) {
	for line := range strings.Lines(out) {
		fmt.Printf("     %s\n", strings.TrimRight(line, "\n"))
	}
	fmt.Println()
}

// file writes a file on a host, and prints it.
func (s *story) file(h *host, name, content string) {
	s.t.Helper()
	fmt.Printf("%s # cat > %s\n", h.name, name)
	printOutput(content)
	h.must("sh", "-c", "cat > "+name+" <<'END'\n"+content+"END")
}

// begins makes three hosts a cluster.
func (s *story) begins(hosts []*host) {
	first := hosts[0]
	s.chapter("Three hosts with Debian and the package")
	s.run(first, "windlass host check --address "+first.address)
	s.run(first, "windlass host init --address "+first.address+" --zone rack-1")
	s.run(first, "systemctl enable --now windlass")
	s.until(first, "windlass quorum", "Voters:    1 of 1 healthy", "Phase:     ")
	for i, h := range hosts[1:] {
		token := first.must("windlass", "host", "token", "--control-plane")
		fmt.Printf("%s # windlass host token --control-plane\n", first.name)
		printOutput(token[:min(len(token), 40)] + "…")
		h.must("sh", "-c", "cat > /root/token <<'END'\n"+token+"\nEND")
		s.run(h, fmt.Sprintf("windlass host join - --address %s --zone rack-%d < /root/token", h.address, i+2))
		s.run(h, "systemctl enable --now windlass")
	}
	s.until(first, "windlass quorum", "Phase:     Stable", "Voters:    3 of 3 healthy")
	s.run(first, "windlass host ls")
	s.until(first, "windlass get nodes", "Ready")
	for _, h := range hosts {
		h.dial()
		h.awaitOperators()
	}
	s.run(first, "windlass status")
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: hello, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      tolerations:
      - {key: node-role.kubernetes.io/master, operator: Exists}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: hello}}}
      containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
`

func (s *story) runsPods(h *host) {
	s.chapter("Pods run on the hosts")
	s.file(h, "hello.yaml", deployment)
	s.run(h, "windlass apply -f hello.yaml")
	s.run(h, "windlass rollout status deployment/hello --timeout=2m")
	s.run(h, "windlass get pods -o wide")
}

const schedule = `apiVersion: windlass.dev/v1
kind: SnapshotSchedule
metadata: {name: often}
spec:
  schedule: "@every 5s"
  retention: {maxNumber: 3}
  keyRecipients: [%s]
`

// backsUp takes snapshots with the keys of the control plane. It returns the directory with the newest snapshot, its
// keys and the recovery key, none of which is on a host.
func (s *story) backsUp(h *host) (dir string) {
	s.chapter("Backups, with the keys of the control plane")
	out := s.run(h, "windlass host recovery-key --output recovery.key")
	_, recipient, _ := strings.Cut(out, "Public key: ")
	s.file(h, "schedule.yaml", fmt.Sprintf(schedule, recipient))
	s.run(h, "windlass apply -f schedule.yaml")
	list := s.until(h, "windlass get snapshots -o wide", "Completed")
	name, _, _ := strings.Cut(strings.Split(list, "\n")[1], " ")
	for line := range strings.Lines(list) {
		if strings.Contains(line, "Completed") {
			name, _, _ = strings.Cut(line, " ")
		}
	}
	s.run(h, "windlass patch snapshotschedule often --type=merge -p '{\"spec\":{\"suspend\":true}}'")
	location := s.run(h, "windlass get snapshot "+name+" -o 'jsonpath={.status.location}'")
	dir = s.t.TempDir()
	for _, at := range []string{location, strings.TrimSuffix(location, ".db") + ".keys.age"} {
		s.copyOff(h.container, at, dir)
	}
	s.copyOff(h.container, "/recovery.key", dir)
	h.must("rm", "/recovery.key")
	return dir
}

// copyOff copies a file of the host whose etcd-guardian leads, or of h, to a directory that is on none.
func (s *story) copyOff(container, path, dir string) {
	s.t.Helper()
	prefix := strings.TrimSuffix(container, "h1")
	var failed []string
	for i := range 3 {
		_, err := docker("cp", fmt.Sprintf("%sh%d:%s", prefix, i+1, path), dir)
		if err == nil {
			return
		}
		failed = append(failed, err.Error())
	}
	s.t.Fatalf("%s is on no host: %q", path, failed)
}

func (s *story) losesAHost(hosts []*host) {
	lost, other := hosts[2], hosts[0]
	s.chapter("A host is lost, and comes back")
	if _, err := docker("update", "--restart=no", lost.container); err != nil {
		s.t.Fatal(err)
	}
	if _, err := docker("kill", lost.container); err != nil {
		s.t.Fatal(err)
	}
	fmt.Printf("(the power of %s is cut)\n\n", lost.name)
	s.until(other, "windlass create configmap written-without-"+lost.name+" --from-literal=a=b", "created")
	s.until(other, "windlass quorum", "Voters:    2 of 3 healthy")
	s.until(other, "windlass host ls", "Lost")
	s.run(other, "windlass describe host "+lost.name+" | tail -12")
	if _, err := docker("start", lost.container); err != nil {
		s.t.Fatal(err)
	}
	fmt.Printf("(the power of %s is back)\n\n", lost.name)
	s.until(other, "windlass quorum", "Phase:     Stable", "Voters:    3 of 3 healthy")
	s.run(other, "windlass host ls")
	for _, h := range hosts {
		h.awaitOperators()
	}
}

func (s *story) updates(hosts []*host) {
	first := hosts[0]
	s.chapter("A release updates all programs, host by host")
	s.run(first, "dpkg-deb --extract /packages/windlass_"+next+"_*.deb /root/next")
	const dir = "/var/lib/windlass/release/"
	out := s.run(first, "windlass adm release new --from-dir "+dir+"source/1.0.0 --version 1.1.0 --previous 1.0.0 "+
		"--executable /root/next/usr/bin/windlass --to "+dir+"images --signing-key "+dir+"signing-key.asc "+
		"--signature-store "+dir+"signatures -o name")
	image := out[strings.LastIndex(out, "\n")+1:]
	s.run(first, "windlass adm upgrade --to-image "+image+" --allow-explicit-upgrade")
	s.until(first, "windlass get programs", "1 of 3 hosts")
	s.until(first, "windlass get clusterversion", "Cluster version is 1.1.0")
	s.run(first, "windlass get programs")
	s.run(first, "windlass adm upgrade history")
}

// losesAll removes all hosts of a cluster, which goes on from a backup on a fresh one.
func (s *story) losesAll(hosts []*host, fresh *host, backup string) {
	s.chapter("All hosts are lost, and a fresh one goes on from the backup")
	for _, h := range hosts {
		if _, err := docker("kill", h.container); err != nil {
			s.t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(backup, "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	snapshot := ""
	for _, file := range files {
		if _, err := docker("cp", file, fresh.container+":/root/"+filepath.Base(file)); err != nil {
			s.t.Fatal(err)
		}
		if strings.HasSuffix(file, ".db") {
			snapshot = "/root/" + filepath.Base(file)
		}
	}
	s.run(fresh, "ls /root")
	s.run(fresh, "windlass quorum drill "+snapshot+" --recovery-key /root/recovery.key")
	s.run(fresh, "windlass host restore "+snapshot+" --recovery-key /root/recovery.key --address "+fresh.address+
		" --zone rack-4")
	s.run(fresh, "systemctl enable --now windlass")
	s.until(fresh, "windlass get deployment hello", "hello")
	s.until(fresh, "windlass host ls", "Available")
	list := s.until(fresh, "windlass host ls", "Lost")
	s.run(fresh, "windlass quorum")
	machine := strings.Fields(list[strings.Index(list, "\nh1 "):])[4]
	s.run(fresh, "windlass delete machine "+machine+" --namespace openshift-machine-api --wait=false")
	s.run(fresh, "windlass host fence h1 --reason 'it burnt'")
	s.until(fresh, "windlass host ls", "h4     InUse")
	s.until(fresh, "windlass quorum", "Voters:    1 of 1 healthy", "voter   healthy   *")
	s.run(fresh, "windlass host remove h1")
}
