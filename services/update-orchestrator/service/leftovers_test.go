package service

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// deployed returns the deployment of beacon: the environment of its container, and its labels.
func (c *cluster) deployed() (env, labels map[string]string) {
	c.t.Helper()
	d, err := c.deployments.Get(c.t.Context(), "beacon", "beacon")
	if err != nil {
		c.t.Fatal(err)
	}
	env = map[string]string{}
	for _, e := range d.GetSpec().GetTemplate().GetSpec().GetContainers()[0].GetEnv() {
		env[e.GetName()] = e.GetValue()
	}
	return env, d.GetMetadata().GetLabels()
}

// gone reports whether what a Get answered is that there is no such object.
func gone(_ any, err error) bool { return status.Code(err) == codes.NotFound }

func TestWhatAReleaseDropsGoesAndARollbackRollsBack(t *testing.T) {
	c, _ := installed(t)
	ctx := t.Context()
	// People's own fields, where the release says nothing.
	if _, err := c.deployments.Modify(ctx, object.Key{Namespace: "beacon", Name: "beacon"},
		func(d *schedulingv1.Deployment) error {
			d.Metadata.Labels = map[string]string{"mine": "yes"}
			d.Spec.Template.Spec.Containers[0].Env = append(d.Spec.Template.Spec.Containers[0].Env,
				&schedulingv1.EnvVar{Name: "MINE", Value: proto.String("yes")})
			return nil
		}); err != nil {
		t.Fatal(err)
	}

	files := example("1.0.1")
	deployment := "0000_50_beacon_00_deployment.yaml"
	files[deployment] = strings.Replace(files[deployment], `        - {name: RELEASE, value: "1.0.1"}`,
		`        - {name: EXTRA, value: "1.0.1"}`, 1)
	config := "0000_80_machine-config_00_worker.yaml"
	files[config] = strings.Replace(files[config], "/etc/windlass-release", "/etc/sudoers.d/more", 1)
	delete(files, "0000_10_beacon_00_service.yaml")
	delete(files, "0000_25_beacon_00_settings.yaml")
	files["0000_60_more_00_service.yaml"] = service("more")
	files["0000_60_more_01_kept.yaml"] = strings.Replace(service("kept"), "  annotations:\n",
		"  annotations:\n    "+plan.KeepAnnotation+": \"true\"\n", 1)
	files["0000_60_more_02_namespace.yaml"] = manifest("Namespace", "v1", "more", "")
	next := c.image("1.0.1", files, "1.0.0")
	c.sign(next, c.key)
	c.sign(c.cfg.initial, c.key)
	c.ready(operators...)
	c.desire("", next)
	c.version(completed("1.0.1"))
	env, labels := c.deployed()
	if want := map[string]string{"EXTRA": "1.0.1", "MINE": "yes"}; !maps.Equal(env, want) || labels["mine"] != "yes" {
		t.Errorf("the environment is %v, the labels are %v", env, labels)
	}
	if mc, err := c.configs.Get(ctx, "", "50-worker-release"); err != nil ||
		strings.Contains(mc.GetSpec().String(), "windlass-release") {
		t.Errorf("a file that the release dropped is still there: %v, %v", mc, err)
	}
	if !gone(c.services.Get(ctx, "beacon", "beacon")) || c.holds("beacon", "1.0.0") {
		t.Error("what the release dropped is still there")
	}

	c.desire("", c.cfg.initial)
	c.version(completed("1.0.0"))
	env, labels = c.deployed()
	if want := map[string]string{"RELEASE": "1.0.0", "MINE": "yes"}; !maps.Equal(env, want) || labels["mine"] != "yes" {
		t.Errorf("after the way back the environment is %v, the labels are %v", env, labels)
	}
	if mc, err := c.configs.Get(ctx, "", "50-worker-release"); err != nil ||
		strings.Contains(mc.GetSpec().String(), "sudoers") {
		t.Errorf("a file that the release brought is still there: %v, %v", mc, err)
	}
	if _, err := c.services.Get(ctx, "beacon", "beacon"); err != nil || !c.holds("beacon", "1.0.0") {
		t.Error("what the release had dropped is not back")
	}
	if !gone(c.services.Get(ctx, "more", "more")) {
		t.Error("what the release had brought is still there")
	}
	// What stays is said.
	if _, err := c.services.Get(ctx, "kept", "kept"); err != nil {
		t.Error(err)
	}
	list, err := updatev1.NewReleaseServiceClient(c.admin).ListReleases(ctx, &updatev1.ListReleasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]string{}
	for _, r := range list.GetItems() {
		if r.GetStatus().GetVersion() == "1.0.0" {
			for _, l := range r.GetStatus().GetLeftovers() {
				left[l.GetObject().GetKind()+"/"+l.GetObject().GetName()] = l.GetReason()
			}
		}
	}
	if len(left) != 2 || !strings.Contains(left["Service/kept"], plan.KeepAnnotation) ||
		!strings.Contains(left["Namespace/more"], "everything in it") {
		t.Errorf("left behind: %v", left)
	}
}

// An update is begun, and taken back before it is complete: what it had brought by then goes.
func TestTheWayBackFromHalfAnUpdateLeavesNothing(t *testing.T) {
	c, _ := installed(t)
	files := example("1.0.1")
	files["0000_10_more_00_service.yaml"] = service("more")
	next := c.image("1.0.1", files, "1.0.0")
	c.sign(next, c.key)
	c.sign(c.cfg.initial, c.key)
	c.desire("", next)
	c.version(waitsFor("archive", "ledger"))
	if _, err := c.services.Get(t.Context(), "more", "more"); err != nil {
		t.Fatal(err)
	}
	c.stop() // what the release before brought is known by what is stored alone
	c.run()
	c.desire("", c.cfg.initial)
	c.ready(operators...)
	c.version(completed("1.0.0"))
	if !gone(c.services.Get(t.Context(), "more", "more")) {
		t.Error("what the update had brought is still there")
	}
}

// What is being removed may take its time: the update is not complete before, however often it is killed.
func TestAnUpdateIsNotCompleteWhileWhatItRemovesIsThere(t *testing.T) {
	c, _ := installed(t)
	key := object.Key{Namespace: "beacon", Name: "beacon"}
	if _, err := c.services.Modify(t.Context(), key, func(s *schedulingv1.Service) error {
		s.Metadata.Finalizers = []string{"example.com/hold"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	files := example("1.0.1")
	delete(files, "0000_10_beacon_00_service.yaml")
	next := c.image("1.0.1", files, "1.0.0")
	c.sign(next, c.key)
	c.ready(operators...)
	c.desire("", next)
	leaves := func(cv *updatev1.ClusterVersion) string {
		w := cv.GetStatus().GetProgress().GetWaits()
		if len(w) != 1 || !strings.Contains(w[0].GetObserved(), "example.com/hold") {
			return "does not wait for the removal"
		}
		return ""
	}
	c.version(leaves)
	c.stop()
	c.run()
	c.version(leaves)
	if h := c.version(leaves).GetStatus().GetHistory(); h[0].GetState() != "Partial" {
		t.Errorf("history is %v", h)
	}
	if _, err := c.services.Modify(t.Context(), key, func(s *schedulingv1.Service) error {
		s.Metadata.Finalizers = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.version(completed("1.0.1"))
	if !gone(c.services.Get(t.Context(), "beacon", "beacon")) {
		t.Error("the service is still there")
	}
}

// pool makes a pool of the control plane, and returns what has its nodes follow.
func (c *cluster) pool() (follow func(message string)) {
	c.t.Helper()
	selector := func(label string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{label: ""}}
	}
	if _, err := c.pools.Create(c.t.Context(), &configv1.MachineConfigPool{
		Metadata: &metav1.ObjectMeta{Name: "master"},
		Spec: &configv1.MachineConfigPoolSpec{
			MachineConfigSelector: selector("master"), NodeSelector: selector("master"),
		},
	}); err != nil {
		c.t.Fatal(err)
	}
	return func(message string) {
		c.t.Helper()
		r, err := renderer{c: c}.RenderMachineConfig(c.t.Context(), nil)
		if err != nil {
			c.t.Fatal(err)
		}
		name := r.GetMachineConfig().GetMetadata().GetName()
		if _, err := c.pools.Modify(c.t.Context(), object.Key{Name: "master"}, func(p *configv1.MachineConfigPool) error {
			is := map[bool]string{true: "True", false: "False"}[message == ""]
			p.Spec.Configuration = &configv1.MachineConfigPoolConfiguration{Name: name}
			p.Status = &configv1.MachineConfigPoolStatus{
				Configuration: &configv1.MachineConfigPoolConfiguration{Name: name},
				Conditions:    []*metav1.Condition{{Type: "Updated", Status: is, Message: &message}},
			}
			return nil
		}); err != nil {
			c.t.Fatal(err)
		}
		// The change of the spec is a generation; the status speaks of it.
		if _, err := c.pools.Modify(c.t.Context(), object.Key{Name: "master"}, func(p *configv1.MachineConfigPool) error {
			p.Status.ObservedGeneration = proto.Int32(p.GetMetadata().GetGeneration())
			return nil
		}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func TestAnUpdateIsCompleteOnceTheControlPlaneIs(t *testing.T) {
	c, _ := installed(t)
	if _, err := updatev1.NewClusterOperatorServiceClient(c.admin).CreateClusterOperator(t.Context(),
		&updatev1.CreateClusterOperatorRequest{ClusterOperator: &updatev1.ClusterOperator{
			Metadata: &metav1.ObjectMeta{Name: plan.NodeOperator},
		}}); err != nil {
		t.Fatal(err)
	}
	c.report(plan.NodeOperator, "1.0.0", false)
	follow := c.pool()
	follow("")
	c.ready(operators...)
	c.desire("1.1.0", "")
	waits := func(text string) func(*updatev1.ClusterVersion) string {
		return func(cv *updatev1.ClusterVersion) string {
			w := cv.GetStatus().GetProgress().GetWaits()
			if len(w) != 1 || w[0].GetObject().GetName() != plan.NodeOperator || !strings.Contains(w[0].GetObserved(), text) {
				return "does not wait for the nodes, with " + text
			}
			if h := cv.GetStatus().GetHistory()[0]; h.GetState() != "Partial" {
				return "the update is " + h.GetState()
			}
			return ""
		}
	}
	c.version(waits("has not taken up the configuration"))
	follow("1 of 3 nodes are updated")
	c.version(waits("1 of 3 nodes are updated"))
	c.stop()
	c.run()
	c.version(waits("1 of 3 nodes are updated"))
	follow("")
	// The nodes are there; now their operator has to say so, which reads the mark on the pool.
	servetest.Await(t, func() string {
		p, err := c.pools.Get(t.Context(), "", "master")
		if err != nil || p.GetMetadata().GetAnnotations()["release.windlass.dev/version"] != "1.1.0" {
			return "the pool is not marked"
		}
		return ""
	})
	c.version(waits("operator is at 1.0.0"))
	c.report(plan.NodeOperator, "1.1.0", false)
	c.version(completed("1.1.0"))
}
