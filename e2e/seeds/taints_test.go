package seeds

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pool is a machine set of the test's own.
const pool = `apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata:
  name: special
spec:
  replicas: 1
  selector:
    matchLabels: {machine.openshift.io/cluster-api-machineset: special}
  template:
    metadata:
      labels:
        machine.openshift.io/cluster-api-machine-role: special
        machine.openshift.io/cluster-api-machine-type: special
        machine.openshift.io/cluster-api-machineset: special
    spec:
      metadata:
        labels: {node-role.kubernetes.io/special: ""}
      providerSpec:
        value: {apiVersion: windlass.dev/v1, kind: LocalMachineProviderSpec}
`

func TestTaints(t *testing.T) {
	through(t, "003", func(w *walk) {
		w.controlPlaneNodes()
		w.severalTaints()
		w.oneTaint()
		w.tolerationsOfARunningPod()
		w.taintsOfAMachineSet()
		w.dedicatedNodes()
		w.taintsFromYAML()
	})
}

// controlPlaneNodes are as the document shows one.
func (w *walk) controlPlaneNodes() {
	for _, m := range w.c.MustMachines("master") {
		w.names["master"] = m.GetMetadata().GetName()
		w.shows(w.admin("get node {master} -o yaml"), `^ machine.openshift.io/machine: openshift-machine-api/{master}$`,
			`^ machineconfiguration.openshift.io/currentConfig: rendered-master-[0-9a-f]+$`,
			`^ - effect: NoSchedule\n key: node-role.kubernetes.io/master$`)
	}
}

// severalTaints is the example of a pod that tolerates two taints of three.
func (w *walk) severalTaints() {
	w.file("tolerant.yaml", "003-05-PodSpec.yaml")
	w.file("later.yaml", "003-05-PodSpec.yaml")
	w.file("intolerant.yaml", "004-73-Pod.yaml")
	for _, f := range []string{"tolerant.yaml", "later.yaml", "intolerant.yaml"} {
		w.pinned(f)
	}
	w.admin("create -f tolerant.yaml -f intolerant.yaml")
	w.later("delete pod --now --ignore-not-found tolerant later s1")
	w.await("pod tolerant", "condition=Ready")
	w.await("pod s1", "condition=Ready")

	w.shows(w.run("003:153"), `^node/{worker} tainted$`)
	w.run("003:154")
	w.shows(w.run("003:155"), `^node/{worker} tainted$`)
	w.shows(w.taints(), `key1=value1:NoSchedule`, `key1=value1:NoExecute`, `key2=value2:NoSchedule`)
	w.await("pod s1", "delete")
	w.admin("create -f later.yaml")
	w.await("pod later", "condition=PodScheduled=false")
	w.shows(w.admin("describe pod later"),
		`Warning FailedScheduling .*1 node\(s\) had taint {key2: value2}, that the pod didn't tolerate`)
	w.shows(w.admin("get pod tolerant"), `^tolerant 1/1 Running 0 `)

	w.gone("tolerant later")
	w.admin("adm taint nodes {worker} key1- key2-")
}

// taints is what the worker has.
func (w *walk) taints() string {
	w.Helper()
	shown := w.admin("describe node {worker}")
	_, shown, _ = strings.Cut(shown, "Taints:")
	shown, _, _ = strings.Cut(shown, "Unschedulable:")
	return shown
}

// oneTaint adds one with the general form of the command and with the example.
func (w *walk) oneTaint() {
	w.run("003:283")
	w.shows(w.taints(), `key3=value3:PreferNoSchedule`)
	w.run("003:287")
	w.shows(w.taints(), `key1=value1:NoExecute`)
	w.admin("adm taint nodes {worker} key1- key3-")
}

// tolerationsOfARunningPod adds one before the taint, as the document advises, and removes another one later.
func (w *walk) tolerationsOfARunningPod() {
	w.file("keeper.yaml", "003-18-PodSpec.yaml") // it tolerates key2
	w.file("intolerant.yaml", "004-73-Pod.yaml")
	w.pinned("keeper.yaml")
	w.pinned("intolerant.yaml")
	w.admin("create -f keeper.yaml -f intolerant.yaml")
	w.later("delete pod --now --ignore-not-found keeper s1")
	w.await("pod keeper", "condition=Ready")
	w.await("pod s1", "condition=Ready")
	w.admin("patch pod keeper --type=json -p",
		`[{"op":"add","path":"/spec/tolerations/-","value":{"key":"key1","operator":"Exists","effect":"NoExecute"}}]`)
	w.admin("adm taint nodes {worker} key1=value1:NoExecute")
	w.await("pod s1", "delete")
	w.admin("adm taint nodes {worker} key2=value2:NoExecute")
	w.shows(w.admin("plan evictions {worker}"),
		`keeper {worker} Wait .* it tolerates the taint key2=value2:NoExecute for 3600 s`)
	w.shows(w.admin("get pod keeper"), `^keeper 1/1 Running 0 `)
	w.admin("patch pod keeper --type=json -p", `[{"op":"remove","path":"/spec/tolerations/0"}]`)
	w.await("pod keeper", "delete")
	w.admin("adm taint nodes {worker} key1- key2-")
}

// taintsFromYAML applies the documents in which a node has its taints.
func (w *walk) taintsFromYAML() {
	for _, d := range []struct{ example, taint string }{
		{"003-15-Node.yaml", "dedicated=groupName:NoSchedule"}, {"003-17-Node.yaml", "disktype=ssd:PreferNoSchedule"},
	} {
		w.filled("node.yaml", d.example, "<node_name>", w.names["worker"])
		w.shows(w.admin("apply -f node.yaml"), `^node/{worker} configured$`)
		w.shows(w.taints(), d.taint)
	}
	w.admin("adm taint nodes {worker} disktype-") // the second document no longer has the taint of the first
	w.shows(w.taints(), `<none>`)
}

// editor has `edit` run a script over what it edits.
func (w *walk) editor(script string) {
	w.Helper()
	path := filepath.Join(w.dir, "editor.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		w.Fatal(err)
	}
	w.Setenv("KUBE_EDITOR", path)
}

// taintsOfAMachineSet puts the document's taint into the template of a set: the machines that are made then have it.
func (w *walk) taintsOfAMachineSet() {
	w.names["machineset"] = "special"
	if err := os.WriteFile(filepath.Join(w.dir, "special.yaml"), []byte(pool), 0o600); err != nil {
		w.Fatal(err)
	}
	w.admin("create -f special.yaml")
	w.Cleanup(func() { w.c.Settle(30 * time.Second) })
	w.later("delete machineset special --ignore-not-found --timeout=25s")
	w.await("machineset special", "jsonpath={.status.readyReplicas}=1")

	w.editor(
		`sed -i '/^    spec:$/a\      taints:\n      - effect: NoExecute\n        key: key1\n        value: value1' "$1"`)
	w.shows(w.run("003:350"), `^machineset.machine.openshift.io/special edited$`)
	w.shows(w.run("003:370"), `^machineset.machine.openshift.io/special scaled$`)
	w.await("machines -l machine.openshift.io/cluster-api-machineset=special", "delete")
	w.shows(w.run("003:387"), `^machineset.machine.openshift.io/special scaled$`)
	w.await("machineset special", "jsonpath={.status.readyReplicas}=2")
	w.taintedNodes(2)
	w.editor(`sed -i 's/^  replicas: 2$/  replicas: 1/' "$1"`)
	w.shows(w.run("003:391"), `^machineset.machine.openshift.io/special edited$`)
	w.await("machineset special", "jsonpath={.status.replicas}=1")
	w.taintedNodes(1)
	w.filled("zero.yaml", "003-14-MachineSet.yaml", "<machineset>", "special")
	w.shows(w.admin("apply -f zero.yaml"), `^machineset.machine.openshift.io/special configured$`)
	w.await("machines -l machine.openshift.io/cluster-api-machineset=special", "delete")
	w.admin("delete machineset special --timeout=25s")
}

// taintedNodes waits until the set has n nodes, each with the taint of the document and no other: a machine that is on
// its way out no longer counts for its set while its node is still being drained.
func (w *walk) taintedNodes(n int) {
	w.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	wrong := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
		if wrong = w.wrongTaints(n); wrong == "" {
			return
		}
	}
	w.Error(wrong)
}

func (w *walk) wrongTaints(n int) string {
	w.Helper()
	var list struct {
		Items []struct {
			Spec struct{ Taints json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(w.admin("get nodes -l node-role.kubernetes.io/special -o json")), &list); err != nil {
		w.Fatal(err)
	}
	if len(list.Items) != n {
		return fmt.Sprintf("%d nodes, want %d", len(list.Items), n)
	}
	for _, node := range list.Items {
		var taints []struct{ Effect, Key, Value string }
		if err := json.Unmarshal(node.Spec.Taints, &taints); err != nil || len(taints) != 1 ||
			taints[0].Effect != "NoExecute" || taints[0].Key != "key1" || taints[0].Value != "value1" {
			return fmt.Sprintf("taints %s %v", node.Spec.Taints, err)
		}
	}
	return ""
}

// dedicatedNodes is the rest of the document: nodes for some users, nodes with special hardware, and taints that go.
func (w *walk) dedicatedNodes() {
	w.run("003:409")
	w.shows(w.taints(), `dedicated=groupName:NoSchedule`)
	w.run("003:450")
	w.run("003:454")
	w.shows(w.taints(), `disktype=ssd:NoSchedule`, `disktype=ssd:PreferNoSchedule`)
	w.shows(w.run("003:481"), `^node/{worker} untainted$`)
	w.admin("adm taint nodes {worker} key1=value1:NoSchedule")
	w.shows(w.run("003:485"), `^node/{worker} untainted$`)
	w.admin("adm taint nodes {worker} dedicated-")
	w.shows(w.taints(), `<none>`)
}
