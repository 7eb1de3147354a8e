package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// The document configures PodNodeSelector by a file.
func TestAPluginIsConfiguredByAFile(t *testing.T) {
	c := start(t)
	c.stop()
	c.files = t.TempDir()
	c.startScheduler()
	file := filepath.Join(c.files, "selectors.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := func(location string) *schedulingv1.AdmissionConfig {
		return &schedulingv1.AdmissionConfig{AdmissionConfig: &schedulingv1.AdmissionPlugins{
			PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{"PodNodeSelector": {Location: location}},
		}}
	}
	ctx := t.Context()
	configs := schedulingv1.NewAdmissionConfigServiceClient(c.admin())
	create := func(location string) (*schedulingv1.AdmissionConfig, error) {
		return configs.CreateAdmissionConfig(ctx, &schedulingv1.CreateAdmissionConfigRequest{
			AdmissionConfig: config(location),
		})
	}
	for _, location := range []string{"selectors.yaml", "/etc/passwd", "../x"} {
		if _, err := create(location); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "admissionConfig.pluginConfig['PodNodeSelector'].location") {
			t.Errorf("%s: %v", location, err)
		}
	}
	write("podNodeSelectorPluginConfig:\n  clusterDefaultNodeSelector: k3=v3\n")
	stored, err := create(file)
	if err != nil || !object.IsTrue(stored.GetStatus().GetConditions(), "InForce") ||
		len(stored.GetStatus().GetFiles()) != 1 || len(stored.GetStatus().GetFiles()[0].GetSha256()) != 64 {
		t.Fatalf("%v, %v", stored, err)
	}
	pods := c.pods()
	selects := func(name, key, value string) {
		t.Helper()
		if pod := c.create(pods, newPod(name, "1m")); pod.GetSpec().GetNodeSelector()[key] != value {
			t.Errorf("%s selects %v, want %s=%s", name, pod.GetSpec().GetNodeSelector(), key, value)
		}
	}
	selects("one", "k3", "v3")

	// A process begins with what the file says then, and one without the file with what it said.
	write("podNodeSelectorPluginConfig:\n  clusterDefaultNodeSelector: k4=v4\n")
	c.stop()
	c.startScheduler()
	configs, pods = schedulingv1.NewAdmissionConfigServiceClient(c.admin()), c.pods()
	await := func(what string, is func(*schedulingv1.AdmissionPluginFile) bool) {
		t.Helper()
		servetest.Await(t, func() string {
			now, err := configs.GetAdmissionConfig(ctx, &schedulingv1.GetAdmissionConfigRequest{Name: "cluster"})
			if err != nil {
				return err.Error()
			}
			if f := now.GetStatus().GetFiles(); len(f) != 1 || !is(f[0]) {
				return fmt.Sprintf("%s: %v", what, f)
			}
			if !object.IsTrue(now.GetStatus().GetConditions(), "InForce") {
				return "it says that it is not in force"
			}
			return ""
		})
	}
	first := stored.GetStatus().GetFiles()[0].GetSha256()
	await("the new content", func(f *schedulingv1.AdmissionPluginFile) bool { return f.GetSha256() != first })
	selects("two", "k4", "v4")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.stop()
	c.startScheduler()
	configs, pods = schedulingv1.NewAdmissionConfigServiceClient(c.admin()), c.pods()
	await("the file is gone", func(f *schedulingv1.AdmissionPluginFile) bool {
		return strings.Contains(f.GetMessage(), "no such file")
	})
	selects("three", "k4", "v4")
}

func TestAClassOfTheSystemNeedsARight(t *testing.T) {
	c := start(t)
	grant := `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-critical}
rules: [{apiGroups: [scheduling.k8s.io], resources: [priorityclasses], resourceNames: [system-cluster-critical], verbs: [use]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-critical}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-critical}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: carol}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-maker}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [create, plan]}
  - {apiGroups: [apps], resources: [deployments, daemonsets], verbs: [create, get, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-maker}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-maker}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: carol}
`
	policy, err := os.ReadFile(c.policy)
	if err != nil {
		t.Fatal(err)
	}
	c.stop()
	if err := os.WriteFile(c.policy, append(policy, grant...), 0o600); err != nil {
		t.Fatal(err)
	}
	c.startScheduler()
	ctx := t.Context()
	for user, classes := range map[string]map[string]bool{
		"bob":   {"system-cluster-critical": false, "system-node-critical": false},
		"carol": {"system-cluster-critical": true, "system-node-critical": false},
	} {
		conn := c.as(servetest.User(user))
		for class, may := range classes {
			critical := func() *schedulingv1.Pod {
				pod := newPod(user+"-"+class, "1m")
				pod.Spec.PriorityClassName = class
				return pod
			}
			template := &schedulingv1.PodTemplateSpec{Metadata: critical().GetMetadata(), Spec: critical().GetSpec()}
			template.Metadata.Name, template.Metadata.Namespace = "", ""
			selector := &metav1.LabelSelector{MatchLabels: template.GetMetadata().GetLabels()}
			deployment := &schedulingv1.Deployment{
				Metadata: newPod(user+"-"+class, "1m").GetMetadata(), Spec: &schedulingv1.DeploymentSpec{
					Replicas: proto.Int32(0), Selector: selector, Template: template,
				},
			}
			set := &schedulingv1.DaemonSet{
				Metadata: newPod(user+"-"+class, "1m").GetMetadata(), Spec: &schedulingv1.DaemonSetSpec{
					Selector: selector, Template: template,
				},
			}
			pods := schedulingv1.NewPodServiceClient(conn)
			admitted, err := pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Pod: critical()})
			if err != nil || admitted.GetAllowed() != may {
				t.Errorf("%s, %s: pods:admit says %v, %v", user, class, admitted, err)
			}
			_, ofPod := pods.CreatePod(ctx, &schedulingv1.CreatePodRequest{Pod: critical()})
			_, ofDeployment := schedulingv1.NewDeploymentServiceClient(conn).CreateDeployment(ctx,
				&schedulingv1.CreateDeploymentRequest{Deployment: deployment})
			_, ofSet := schedulingv1.NewDaemonSetServiceClient(conn).CreateDaemonSet(ctx,
				&schedulingv1.CreateDaemonSetRequest{DaemonSet: set})
			for what, err := range map[string]error{"pod": ofPod, "deployment": ofDeployment, "daemon set": ofSet} {
				if may && err != nil {
					t.Errorf("%s, %s, a %s: %v", user, class, what, err)
				}
				if !may && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "priorityClassName")) {
					t.Errorf("%s, %s, a %s: %v", user, class, what, err)
				}
			}
		}
	}
}

func TestAdmissionOfALivePodsChangeAndDeletionIsRehearsed(t *testing.T) {
	c := start(t)
	ctx, pods := t.Context(), c.pods()
	c.create(pods, newPod("web", "1m"))
	change := newPod("web", "1m")
	change.Spec.Containers[0].Name = "other"
	if a, err := pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Operation: "UPDATE", Pod: change}); err != nil ||
		a.GetAllowed() || a.GetReason() == "" {
		t.Errorf("a change that is refused: %v, %v", a, err)
	}
	stored, err := pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: "default", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	change = proto.CloneOf(stored)
	change.Metadata.ResourceVersion = "" // the scheduler writes the pod's condition
	change.Spec.Containers[0].Image = "other"
	a, err := pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Operation: "UPDATE", Pod: change})
	if err != nil || !a.GetAllowed() || a.GetPod().GetSpec().GetContainers()[0].GetImage() != "other" {
		t.Errorf("a change of an image: %v, %v", a, err)
	}
	a, err = pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Operation: "DELETE", Pod: newPod("web", "1m")})
	if err != nil || !a.GetAllowed() {
		t.Errorf("a deletion: %v, %v", a, err)
	}
	for _, operation := range []string{"UPDATE", "DELETE"} {
		a, err = pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Operation: operation, Pod: newPod("absent", "1m")})
		if err != nil || a.GetAllowed() {
			t.Errorf("%s of a pod that does not exist: %v, %v", operation, a, err)
		}
	}
	now, err := pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: "default", Name: "web"})
	if err != nil || now.GetMetadata().GetGeneration() != stored.GetMetadata().GetGeneration() || object.Deleting(now) {
		t.Errorf("asking changed the pod: %v, %v", now, err)
	}
}
