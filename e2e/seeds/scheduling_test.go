package seeds

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

const defaultToleration = `^Tolerations: node.kubernetes.io/not-ready:NoExecute op=Exists for 300s$`

// zoneLabel is what the affinity of the documents goes by.
const zoneLabel = "failure-domain.beta.kubernetes.io/zone"

func TestScheduling(t *testing.T) {
	through(t, "004", func(w *walk) {
		w.policyInForce()
		w.customScheduler()
		w.bindingDocument()
		w.nodeSelectorOfAProject()
		w.requiredAndPreferredNodes()
		w.matchingAndOtherLabels()
		w.podsBesideOthers()
		w.taintsOfANode()
		w.tolerationsByDefault()
		w.nodeThatIsNotHeardOf()
		w.nodesForSomeOnly()
	})
}

// policyInForce replaces the policy of the scheduler by a sample, which requires the label region of a node, and takes
// that back. The documents restart the cluster for that.
func (w *walk) policyInForce() {
	w.file("policy.yaml", "004-43-Policy.yaml")
	w.file("regional.yaml", "003-09-PodSpec.yaml")
	w.file("anywhere.yaml", "003-09-PodSpec.yaml")
	w.later("label node {worker} region-")
	w.later("delete policy default --ignore-not-found")
	w.later("delete pod --now --ignore-not-found regional anywhere")
	w.shows(w.admin("create -f policy.yaml"), `^policy/default created$`)
	w.admin("create -f regional.yaml")
	w.await("pod regional", "condition=PodScheduled=false")
	w.shows(w.admin("explain pod regional"), ` no \S+ node\(s\) didn't have the requested labels: it lacks region`)
	w.admin("label node {worker} region=r1")
	w.await("pod regional", "condition=Ready")
	w.on("regional", w.names["worker"])
	w.admin("label node {worker} region-") // the rule is of no meaning to a pod that runs
	w.admin("delete policy default")
	w.admin("create -f anywhere.yaml")
	w.await("pod anywhere", "condition=Ready")
	w.gone("regional anywhere")
}

// schedulerRights are those of a scheduler of one's own.
const schedulerRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: my-scheduler}
rules:
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [pods/binding], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: my-scheduler}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: my-scheduler}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: my-scheduler}]
`

// deployScheduler runs the example of a scheduler in Python as the user my-scheduler, for the pods that name
// custom-scheduler.
func (w *walk) deployScheduler() {
	if err := os.WriteFile("rights.yaml", []byte(schedulerRights), 0o600); err != nil {
		w.Fatal(err)
	}
	w.admin("create -f rights.yaml")
	w.later("delete -f rights.yaml --ignore-not-found")
	cmd := w.c.As("my-scheduler").Program(w.Context(), "python3",
		filepath.Join(w.root, "deploy/examples/scheduler/scheduler.py"), "custom-scheduler")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = cmd.Wait() // it was killed at the end of the test's context
		if w.Failed() {
			w.Logf("scheduler.py:\n%s", log.String())
		}
	})
}

// customScheduler has a pod wait for a scheduler of its own, which is then deployed.
func (w *walk) customScheduler() {
	w.file("scheduler.yaml", "004-45-Pod.yaml")
	w.shows(w.run("004:239"), `^pod/custom-scheduler created$`)
	w.later("delete pod custom-scheduler --now --ignore-not-found")
	w.shows(w.run("004:241"), `^kind: Pod$`, `^  name: custom-scheduler$`, `^  schedulerName: custom-scheduler$`)
	w.shows(w.run("004:243"), `^NAME READY STATUS RESTARTS AGE$`, `^custom-scheduler 0/1 Pending 0 \d+s$`)
	w.deployScheduler()
	w.await("pod custom-scheduler", "condition=Ready")
	w.shows(w.run("004:248"), `^NAME READY STATUS RESTARTS AGE$`, `^custom-scheduler 1/1 Running 0 \d+s$`)
	w.shows(w.run("004:252"), `^Scheduler: custom-scheduler$`, `^Events:$`,
		`Normal Scheduled \S+ my-scheduler Successfully assigned custom-scheduler to \S+$`)
	w.gone("custom-scheduler")
}

// bindingDocument binds a pod with Kubernetes' document.
func (w *walk) bindingDocument() {
	for name, text := range map[string]string{
		"pod.yaml": `{apiVersion: v1, kind: Pod, metadata: {name: bound}, spec: {schedulerName: none, containers: [{name: c,
 image: docker.io/ocpqe/hello-pod}]}}`,
		"binding.yaml": "{apiVersion: v1, kind: Binding, metadata: {name: bound}, target: {kind: Node, name: " +
			w.names["worker"] + "}}",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			w.Fatal(err)
		}
	}
	w.admin("create -f pod.yaml")
	w.later("delete pod bound --now --ignore-not-found")
	w.shows(w.admin("apply -f binding.yaml"), `^binding/bound created$`)
	w.shows(w.admin("get pod bound -o wide"), `^bound .* {worker}`)
	if again := w.c.CLI("apply", "-f", "binding.yaml"); again.Code == 0 {
		w.Errorf("the pod is bound twice: %s", again.Stdout)
	}
	w.gone("bound")
}

// nodeSelectorOfAProject merges the selectors of a namespace and of a pod in it.
func (w *walk) nodeSelectorOfAProject() {
	w.file("admission.yaml", "004-52-AdmissionConfig.yaml")
	w.admission()
	w.file("ns1.yaml", "004-55-Namespace.json")
	w.admin("create -f ns1.yaml")
	w.later("delete namespace ns1 --ignore-not-found --timeout=25s")
	w.file("pod.yaml", "004-56-Pod.yaml")
	w.shows(w.run("004:349"), `^pod/hello-pod created$`)
	var pod struct {
		Spec struct{ NodeSelector map[string]string }
	}
	if err := json.Unmarshal([]byte(w.run("004:351")), &pod); err != nil {
		w.Fatal(err)
	}
	if want := (map[string]string{"env": "test", "infra": "fedora", "os": "fedora"}); !maps.Equal(pod.Spec.NodeSelector,
		want) {
		w.Errorf("node selector %v, want %v", pod.Spec.NodeSelector, want)
	}
	w.file("elsewhere.yaml", "004-58-PodNodeSelector.yaml", "spec")
	if r := w.c.CLI("create", "-f", "elsewhere.yaml", "--namespace=ns1"); r.Code == 0 {
		w.Error("a pod whose selector contradicts that of its namespace is accepted")
	} else {
		w.shows(r.Stderr, `env`)
	}
	w.admin("delete namespace ns1 --timeout=25s")
	w.admin("delete admissionconfig cluster")
}

// admission puts the configuration of the admission plugins into force.
func (w *walk) admission() {
	w.Helper()
	w.admin("create -f admission.yaml")
	w.later("delete admissionconfig cluster --ignore-not-found")
	w.await("admissionconfig cluster", "condition=InForce")
}

// requiredAndPreferredNodes runs one pod that needs a label of a node and one that prefers one.
func (w *walk) requiredAndPreferredNodes() {
	w.later("label node {worker} seen- e2e-az-name-")
	w.later("delete pod --now --ignore-not-found e2e-az2 e2e-az3")
	w.shows(w.run("004:422"), `^node/{worker} labeled$`)
	w.shows(w.run("004:423"), `^node/{worker} labeled$`)
	w.file("e2e-az2.yaml", "004-61-PodSpec.yaml")
	w.shows(w.run("004:443"), `^pod/e2e-az2 created$`)
	w.await("pod e2e-az2", "condition=Ready")
	w.on("e2e-az2", w.names["worker"])
	w.run("004:448")
	w.shows(w.run("004:449"), `^node/{worker} labeled$`)
	w.shows(w.admin("get pod e2e-az2"), `^e2e-az2 1/1 Running 0 `) // the rule is of no meaning to a pod that runs
	w.file("e2e-az3.yaml", "004-62-NodeAffinity.yaml", "spec", "affinity", "nodeAffinity")
	w.shows(w.run("004:468"), `^pod/e2e-az3 created$`)
	w.await("pod e2e-az3", "condition=Ready")
	w.gone("e2e-az2 e2e-az3")
}

// on fails the test unless a pod is on a node.
func (w *walk) on(pod, node string) {
	w.Helper()
	if got := w.nodeOf(pod); got != node {
		w.Errorf("pod %s is on %q, want %q", pod, got, node)
	}
}

// matchingAndOtherLabels runs a pod on the node with its label, and keeps it waiting where there is none.
func (w *walk) matchingAndOtherLabels() {
	w.later("label node {worker} zone-")
	w.later("delete pod --now --ignore-not-found pod-s1")
	w.file("pod-s1.yaml", "004-63-Pod.yaml")
	w.shows(w.run("004:475"), `^node/{worker} labeled$`)
	w.shows(w.run("004:481"), `^pod/pod-s1 created$`)
	w.await("pod pod-s1", "condition=Ready")
	w.shows(w.run("004:483"), `^NAME READY STATUS RESTARTS AGE IP NODE$`, `^pod-s1 1/1 Running 0 \d+s [0-9.]+ {worker}$`)

	w.gone("pod-s1")
	w.shows(w.run("004:488"), `^node/{worker} labeled$`)
	w.file("pod-s1.yaml", "004-64-Pod.yaml")
	w.admin("create -f pod-s1.yaml")
	w.await("pod pod-s1", "condition=PodScheduled=false")
	w.shows(w.run("004:494"), `^Events:$`,
		`Warning FailedScheduling .*No nodes are available that match all of the following predicates: MatchNodeSelector \(\d+\)\.$`)
	w.shows(w.admin("get pod pod-s1 -o wide"), `^pod-s1 0/1 Pending 0 \d+s <none> <none>$`)
	w.gone("pod-s1")
	w.admin("label node {worker} zone-") // the default policy's priority Zone reads it
}

// podsBesideOthers runs one pod in the zone of another, and one away from the node of another.
func (w *walk) podsBesideOthers() {
	w.file("security-s1.yaml", "004-67-Pod.yaml")
	w.file("security-s2.yaml", "004-69-Pod.yaml")
	w.file("with-pod-affinity.yaml", "004-65-Pod.yaml")
	w.file("with-pod-antiaffinity.yaml", "004-66-Pod.yaml")
	w.later("delete pod --now --ignore-not-found security-s1 security-s2 with-pod-affinity with-pod-antiaffinity")
	if w.zone("{worker}") == "" { // clouds set it
		w.admin("label nodes --all " + zoneLabel + "=rack-a")
		w.later("label nodes --all " + zoneLabel + "-")
	}
	w.admin("create -f security-s1.yaml -f security-s2.yaml")
	w.await("pod security-s1", "condition=Ready")
	w.await("pod security-s2", "condition=Ready")
	w.shows(w.run("004:558"), `^pod/with-pod-affinity created$`)
	w.await("pod with-pod-affinity", "condition=Ready")
	w.shows(w.run("004:584"), `^pod/with-pod-antiaffinity created$`)
	w.await("pod with-pod-antiaffinity", "condition=Ready")
	if a, b := w.zone(w.nodeOf("security-s1")), w.zone(w.nodeOf("with-pod-affinity")); a == "" || a != b {
		w.Errorf("with-pod-affinity is in zone %q, security-s1 in %q", b, a)
	}
	if node := w.nodeOf("security-s2"); node == w.nodeOf("with-pod-antiaffinity") {
		w.Errorf("with-pod-antiaffinity is on %s, where security-s2 is", node)
	}
	w.gone("security-s1 security-s2 with-pod-affinity with-pod-antiaffinity")
}

// zone returns the zone of a node.
func (w *walk) zone(node string) string {
	w.Helper()
	var labels map[string]string
	if err := json.Unmarshal([]byte(w.admin("get node "+node+" -o jsonpath={.metadata.labels}")), &labels); err != nil {
		w.Fatal(err)
	}
	return labels[zoneLabel]
}

// taintsOfANode sets three taints, and one in each form of the command.
func (w *walk) taintsOfANode() {
	for range 3 {
		w.shows(w.run("004:720"), `^node/{worker} tainted$`)
	}
	w.shows(w.run("004:725"), `^node/{worker} untainted$`)
	w.shows(w.run("004:727"), `^node/{worker} tainted$`)
	w.shows(w.run("004:729"), `^node/{worker} tainted$`)
	w.shows(w.taints(), `key1=value1:NoSchedule`, `key3=value3:NoSchedule`)
	w.shows(w.run("004:749"), `^node/{worker} untainted$`)
}

// tolerationsByDefault are those that a pod gets which names none.
func (w *walk) tolerationsByDefault() {
	w.file("admission.yaml", "004-84-AdmissionConfig.yaml")
	w.admission()
	w.later("delete pod --now --ignore-not-found security-s1 hello-pod")
	w.file("hello-pod.yaml", "004-56-Pod.yaml")
	w.shows(w.run("004:773"), `^pod/security-s1 created$`)
	w.shows(w.run("004:775"), `^pod/hello-pod created$`)
	w.shows(w.run("004:777"), defaultToleration)
	w.shows(w.run("004:779"), defaultToleration)
	w.gone("security-s1 hello-pod")
	w.admin("delete admissionconfig cluster")
}

// nodeThatIsNotHeardOf has the taint that keeps pods away and makes them leave.
func (w *walk) nodeThatIsNotHeardOf() {
	w.names["unheard"] = "unheard"
	w.write("node.yaml", map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "unheard"}})
	w.admin("create -f node.yaml")
	w.later("delete node unheard --ignore-not-found")
	w.await("node unheard", "jsonpath={.spec.taints[?(@.effect==\"NoExecute\")].key}=node.kubernetes.io/unreachable")
	w.shows(w.run("004:796"), `^Taints: node.kubernetes.io/unreachable:NoExecute$`)
	w.admin("delete node unheard")
}

// nodesForSomeOnly are taints of nodes that only some users, and only some pods, may use.
func (w *walk) nodesForSomeOnly() {
	w.run("004:817")
	w.shows(w.run("004:825"), `^node/{worker} modified$`)
	w.run("004:838")
	w.run("004:838")
	w.shows(w.taints(), `dedicated=groupName:NoSchedule`, `disktype=ssd:NoSchedule`, `disktype=ssd:PreferNoSchedule`)
	w.admin("adm taint nodes {worker} dedicated- disktype-")
}
