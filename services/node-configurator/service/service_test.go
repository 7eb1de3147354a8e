package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

func TestConfigurationsRollOverAPoolOneNodeAtATime(t *testing.T) {
	c := startSettling(t, time.Second) // more than two calls take on a busy machine
	var agents []*agent
	for i := range 3 {
		agents = append(agents, c.join(fmt.Sprintf("worker-%d", i), "worker"))
	}
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 3, "")
	if !strings.HasPrefix(first, "rendered-worker-") || len(first) != len("rendered-worker-")+32 {
		t.Errorf("name %q", first)
	}
	for _, a := range agents {
		if a.restarts() != 0 {
			t.Errorf("node %s was restarted for its first configuration", a.node)
		}
	}
	// Two together make one roll-out.
	c.apply(machineConfig("60-one", "worker", "/etc/one", "1"))
	c.apply(machineConfig("70-two", "worker", "/etc/two", "2"))
	second := c.awaitUpdated("worker", 3, first)
	for _, a := range agents {
		if a.restarts() != 1 {
			t.Errorf("node %s was restarted %d times, want 1", a.node, a.restarts())
		}
	}
	if n := c.most(); n != 1 {
		t.Errorf("%d nodes were unschedulable at once", n)
	}
	p := c.pool("worker")
	var sources []string
	for _, s := range p.GetSpec().GetConfiguration().GetSource() {
		sources = append(sources, s.GetName())
	}
	if !slices.Equal(sources, []string{"50-base", "60-one", "70-two"}) {
		t.Errorf("made from %v", sources)
	}
	if m := object.FindCondition(p.GetStatus().GetConditions(),
		"Updated").GetMessage(); m != "All nodes are updated with MachineConfig "+second {
		t.Errorf("message %q", m)
	}
	for _, want := range []string{
		"Targeted node worker-1 to MachineConfig: " + second, "Pool worker has completed update to MachineConfig " + second,
		second + " made from 50-base, 60-one, 70-two",
	} {
		servetest.Await(t, func() string {
			for _, e := range c.events() {
				if e.GetMessage() == want {
					return ""
				}
			}
			return "no event " + want
		})
	}
}

func TestARolloutGoesOnAfterARestartInEveryState(t *testing.T) {
	c := start(t)
	for i := range 3 {
		c.join(fmt.Sprintf("worker-%d", i), "worker")
	}
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 3, "")
	c.hold("worker-0", true)
	c.apply(machineConfig("60-more", "worker", "/etc/more", "1"))
	servetest.Await(t, func() string {
		if len(c.drains.All()) == 0 {
			return "no drain"
		}
		return ""
	})
	c.restart() // while a node is drained
	c.looked("worker")
	if n := len(c.drains.All()); n != 1 {
		t.Errorf("%d drains after the restart", n)
	}
	c.stop()
	c.hold("worker-0", false) // it is empty while no controller runs
	c.startConfigurator()
	for _, a := range c.agents {
		a.connect()
	}
	servetest.Await(t, func() string {
		if c.mark("worker-1", plan.DesiredConfig) == first {
			return "worker-1 has not begun"
		}
		return ""
	})
	c.restart() // while an agent works, or right after
	c.awaitUpdated("worker", 3, first)
	if n := c.most(); n != 1 {
		t.Errorf("%d nodes were unschedulable at once", n)
	}
}

func TestADegradedNodeStopsThePoolUntilTheConfigurationIsTakenBack(t *testing.T) {
	c := start(t)
	for i := range 3 {
		c.join(fmt.Sprintf("worker-%d", i), "worker")
	}
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 3, "")
	for _, a := range c.agents {
		a.fail("/etc/bad")
	}
	c.apply(machineConfig("60-bad", "worker", "/etc/bad", "1"))
	p := c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return object.IsTrue(p.GetStatus().GetConditions(), "NodeDegraded")
	})
	if m := object.FindCondition(p.GetStatus().GetConditions(),
		"NodeDegraded"); m.GetMessage() != `Node worker-0 is reporting: "cannot write /etc/bad"` ||
		m.GetReason() != "1 nodes are reporting degraded status on sync" {
		t.Errorf("condition %v", m)
	}
	servetest.Await(t, func() string { // it speaks from the service's own cache, which may be a moment behind
		if s := c.operator(t.Context()); !s.Available || !s.Degraded || !s.Progressing || s.Reason != "PoolDegraded" ||
			!strings.HasPrefix(s.Message,
				`pool worker is degraded: Node worker-0 is reporting: "cannot write /etc/bad"; pool worker is updating to `) {
			return fmt.Sprintf("operator %+v", s)
		}
		return ""
	})
	c.looked("worker")
	for _, n := range []string{"worker-1", "worker-2"} {
		if c.mark(n, plan.DesiredConfig) != first {
			t.Errorf("node %s began although another one failed", n)
		}
	}
	if _, err := c.configs().DeleteMachineConfig(t.Context(), &configv1.DeleteMachineConfigRequest{
		Name: "60-bad",
	}); err != nil {
		t.Fatal(err)
	}
	c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return p.GetSpec().GetConfiguration().GetName() == first && object.IsTrue(p.GetStatus().GetConditions(),
			"Updated") &&
			!object.IsTrue(p.GetStatus().GetConditions(), "Degraded") && len(c.drains.All()) == 0
	})
	if r := c.agents["worker-0"].restarts(); r != 0 {
		t.Errorf("the node that failed was restarted %d times", r)
	}
	// Another one reaches the drained node first, without a new drain.
	c.apply(machineConfig("60-bad", "worker", "/etc/bad", "1"))
	c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return object.IsTrue(p.GetStatus().GetConditions(), "Degraded")
	})
	drain, _ := c.drains.Lookup("", plan.DrainName("worker-0"))
	c.apply(machineConfig("60-bad", "worker", "/etc/bad", "2"))
	c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return p.GetSpec().GetConfiguration().GetName() == c.mark("worker-0", plan.DesiredConfig) &&
			object.IsTrue(p.GetStatus().GetConditions(), "Degraded")
	})
	if now,
		_ := c.drains.Lookup("", plan.DrainName("worker-0")); now.GetMetadata().GetUid() != drain.GetMetadata().GetUid() {
		t.Error("the node was drained again")
	}
}

func TestAPausedPoolBeginsWithNoNode(t *testing.T) {
	c := start(t)
	for i := range 2 {
		c.join(fmt.Sprintf("worker-%d", i), "worker")
	}
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 2, "")
	c.hold("worker-0", true)
	c.apply(machineConfig("60-more", "worker", "/etc/more", "1"))
	servetest.Await(t, func() string {
		if len(c.drains.All()) == 0 {
			return "no drain"
		}
		return ""
	})
	paused := poolFor("worker")
	paused.Spec.Paused = proto.Bool(true)
	c.applyPool(paused)
	c.hold("worker-0", false)
	p := c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return p.GetStatus().GetUpdatedMachineCount() == 1 && len(c.drains.All()) == 0 &&
			p.GetStatus().GetReadyMachineCount() == 1
	})
	target := p.GetSpec().GetConfiguration().GetName()
	if m := object.FindCondition(p.GetStatus().GetConditions(), "Updating"); m.GetStatus() != "False" ||
		m.GetMessage() != "Pool is paused; will not update to MachineConfig "+target {
		t.Errorf("condition %v", m)
	}
	if m := object.FindCondition(p.GetStatus().GetConditions(),
		"Updated").GetMessage(); m != "1 of 2 nodes are updated; waiting: worker-1" {
		t.Errorf("message %q", m)
	}
	if c.mark("worker-1", plan.DesiredConfig) != first {
		t.Error("a node began in a paused pool")
	}
	resp, err := c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{Name: "worker"})
	if err != nil || len(resp.GetNext()) != 0 || len(resp.GetHeldBack()) != 1 ||
		!strings.HasPrefix(resp.GetHeldBack()[0].GetReason(), "pool worker is paused by ") ||
		resp.GetHeldBack()[0].GetSinceTime() == nil {
		t.Errorf("plan %v, %v", resp, err)
	}
	if o := c.operator(t.Context()).Objection; o.Reason != "PoolPaused" || !strings.Contains(o.Message, "pool worker") {
		t.Errorf("objection %v", o)
	}
	// A pause with an end, instead: when it ends, the node begins without another event.
	paused.Spec.Paused, paused.Spec.Pause = proto.Bool(false), &configv1.MachineConfigPoolPause{
		Reason: "fair", By: "eve", Until: timestamppb.New(time.Now().Add(time.Hour)),
	}
	c.applyPool(paused)
	p = c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return p.GetSpec().GetPause() != nil && p.GetStatus().GetObservedGeneration() == p.GetMetadata().GetGeneration()
	})
	if m := object.FindCondition(p.GetStatus().GetConditions(), plan.ConditionPaused).GetMessage(); p.GetSpec().
		GetPause().GetBy() == "eve" || !strings.Contains(m, "fair; 1 of 2 nodes wait for "+target) {
		t.Errorf("pause %v, condition %q", p.GetSpec().GetPause(), m)
	}
	paused.Spec.Pause.Until = timestamppb.New(time.Now().Add(2 * time.Second))
	c.applyPool(paused)
	c.awaitUpdated("worker", 2, first)
	if o := c.operator(t.Context()).Objection; o != (clusteroperator.Objection{}) {
		t.Errorf("objection %v", o)
	}
}

func TestThatAPoolIsAtAReleaseIsSaidByUpdateOrchestratorAlone(t *testing.T) {
	c := start(t)
	pool := poolFor("master")
	c.applyPool(pool)
	pool.Metadata.Annotations = map[string]string{clusteroperator.ReleaseAnnotation: "9.9.9"}
	_, err := c.pools().ApplyMachineConfigPool(t.Context(), &configv1.ApplyMachineConfigPoolRequest{
		Name: "master", MachineConfigPool: pool,
	})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), clusteroperator.ReleaseAnnotation) {
		t.Errorf("applied: %v", err)
	}
	if v := c.operator(t.Context()).Version; v != "" {
		t.Errorf("the operator reports %s", v)
	}
}

func TestWhatIsWrongIsRefusedWithItsPath(t *testing.T) {
	c := start(t)
	version := func(v string) *configv1.MachineConfig {
		m := machineConfig("x", "worker", "/x", "1")
		m.Spec.Config.Fields["ignition"].GetStructValue().Fields["version"] = structpb.NewStringValue(v)
		return m
	}
	for _, tc := range []struct {
		name, path string
		config     *configv1.MachineConfig
	}{
		{"an old version", "spec.config.ignition.version", version("2.2.0")},
		{"an unfinished version", "spec.config.ignition.version", version("3.6.0-experimental")},
		{"no version", "spec.config.ignition.version", version("")},
		{"a relative path", "spec.config.storage.files[0].path", machineConfig("x", "worker", "etc/x", "1")},
	} {
		_, err := c.configs().CreateMachineConfig(t.Context(), &configv1.CreateMachineConfigRequest{MachineConfig: tc.config})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tc.path+": ") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	for _, v := range []string{"3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0"} {
		if _, err := c.configs().CreateMachineConfig(t.Context(), &configv1.CreateMachineConfigRequest{
			MachineConfig: version(v), DryRun: "All",
		}); err != nil {
			t.Errorf("version %s: %v", v, err)
		}
	}
	for _, bad := range []*structpb.Value{
		structpb.NewNumberValue(0), structpb.NewStringValue("0%"), structpb.NewStringValue("60"),
		structpb.NewStringValue("40 %"), structpb.NewStringValue("150%"), structpb.NewNumberValue(1.5),
		structpb.NewNumberValue(-1), structpb.NewStringValue("0"), structpb.NewStringValue("-20%"),
	} {
		p := poolFor("worker")
		p.Spec.MaxUnavailable = bad
		_, err := c.pools().CreateMachineConfigPool(t.Context(), &configv1.CreateMachineConfigPoolRequest{
			MachineConfigPool: p,
		})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "spec.maxUnavailable: ") {
			t.Errorf("maxUnavailable %v: %v", bad, err)
		}
	}
	p := poolFor("worker")
	p.Spec.MachineConfigSelector, p.Spec.NodeSelector = &metav1.LabelSelector{}, nil
	_, err := c.pools().CreateMachineConfigPool(t.Context(), &configv1.CreateMachineConfigPoolRequest{
		MachineConfigPool: p,
	})
	for _, path := range []string{"spec.machineConfigSelector: ", "spec.nodeSelector: "} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), path) {
			t.Errorf("empty selectors: %v", err)
		}
	}
	_, err = c.configs().CreateMachineConfig(t.Context(), &configv1.CreateMachineConfigRequest{
		MachineConfig: machineConfig("rendered-worker-x", "worker", "/x", "1"),
	})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a rendered configuration of a user: %v", err)
	}
}

func TestARenderedConfigurationStaysWhileItIsUsed(t *testing.T) {
	c := start(t)
	c.join("worker-0", "worker")
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	name := c.awaitUpdated("worker", 1, "")
	_, err := c.configs().DeleteMachineConfig(t.Context(), &configv1.DeleteMachineConfigRequest{Name: name})
	if status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), `is in use by pool "worker", node "worker-0"`) {
		t.Errorf("delete: %v", err)
	}
	have, err := c.configs().GetMachineConfig(t.Context(), &configv1.GetMachineConfigRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	have.Spec.KernelArguments = []string{"quiet"}
	if _, err := c.configs().UpdateMachineConfig(t.Context(), &configv1.UpdateMachineConfigRequest{
		Name: name, MachineConfig: have,
	}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("change: %v", err)
	}
	render, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		PoolName: "worker", MachineConfigs: &configv1.MachineConfigList{
			Items: []*configv1.MachineConfig{machineConfig("50-base", "worker", "/etc/base", "2")},
		},
	})
	if err != nil || render.GetAction() != "Reboot" || render.GetActionReason() != `file "/etc/base" changed` ||
		!slices.Equal(render.GetDifferences(), []string{`file "/etc/base" changed`}) {
		t.Errorf("render %v, %v", render, err)
	}
}

// TestAnImpossibleConfigurationIsStoppedBeforeAnyNodeIsDisturbed asks for a kernel, which no driver changes.
func TestAnImpossibleConfigurationIsStoppedBeforeAnyNodeIsDisturbed(t *testing.T) {
	c := start(t)
	a := c.join("master-0", "master")
	c.apply(machineConfig("50-base", "master", "/etc/base", "1"))
	c.applyPool(poolFor("master"))
	first := c.awaitUpdated("master", 1, "")
	c.mu.Lock()
	asked := c.asked
	c.mu.Unlock()
	kernel := machineConfig("60-kernel", "master", "/etc/more", "1")
	kernel.Spec.KernelType = "realtime"
	c.apply(kernel)
	const want = `cannot be put in force: machine config "60-kernel": spec.kernelType: cannot be changed: ` +
		"no driver of this release changes the kernel of a machine"
	p := c.awaitPool("master", func(p *configv1.MachineConfigPool) bool {
		return object.IsTrue(p.GetStatus().GetConditions(), plan.ConditionRenderDegraded) ||
			p.GetSpec().GetConfiguration().GetName() != first
	})
	cond := object.FindCondition(p.GetStatus().GetConditions(), plan.ConditionRenderDegraded)
	if cond.GetMessage() != want || p.GetSpec().GetConfiguration().GetName() != first {
		t.Errorf("the pool is %v", p)
	}
	_, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{PoolName: "master"})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), want) {
		t.Errorf("render: %v", err)
	}
	// Once it is corrected the rest is rolled out: until then the node was neither cordoned nor restarted.
	if n := c.most(); n != 0 || len(c.drains.All()) > 0 || c.mark("master-0", plan.DesiredConfig) != first ||
		a.restarts() != 0 {
		t.Errorf("%d nodes were cordoned, %d restarts, drains %v", n, a.restarts(), c.drains.All())
	}
	c.mu.Lock()
	if c.asked != asked {
		t.Errorf("the permit was asked for %d times", c.asked-asked)
	}
	c.mu.Unlock()
	kernel.Spec.KernelType = ""
	c.apply(kernel)
	c.awaitUpdated("master", 1, first)
}

func TestAnAgentSpeaksForItsOwnNodeAlone(t *testing.T) {
	c := start(t)
	c.join("worker-0", "worker")
	other := configv1.NewConfigAgentServiceClient(c.as(servetest.Node("worker-1")))
	_, err := other.ReportConfig(t.Context(), &configv1.ReportConfigRequest{NodeName: "worker-0", State: "Done"})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("report: %v", err)
	}
	stream, err := other.FollowConfig(t.Context(), &configv1.FollowConfigRequest{NodeName: "worker-0"})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("follow: %v", err)
	}
	if _, err := configv1.NewConfigAgentServiceClient(c.admin).ReportConfig(t.Context(), &configv1.ReportConfigRequest{
		NodeName: "worker-0", State: "Done",
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("report of a user: %v", err)
	}
}

func TestTheDrainOfANodeThatIsGoneGoes(t *testing.T) {
	c := start(t)
	c.join("worker-0", "worker")
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	c.awaitUpdated("worker", 1, "")
	c.hold("worker-0", true)
	c.apply(machineConfig("60-more", "worker", "/etc/more", "1"))
	servetest.Await(t, func() string {
		if len(c.drains.All()) == 0 {
			return "no drain"
		}
		return ""
	})
	if _, err := c.nodes.Delete(t.Context(), "", "worker-0", nil); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if len(c.drains.All()) > 0 {
			return "the drain stays"
		}
		return ""
	})
}

func TestAControlPlaneNodeIsRestartedOnlyWhileEveryOtherVoterIsUp(t *testing.T) {
	c := start(t)
	a := c.join("master-0", "master")
	c.apply(machineConfig("50-base", "master", "/etc/base", "1"))
	c.applyPool(poolFor("master"))
	first := c.awaitUpdated("master", 1, "")
	asked := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.asked
	}
	if asked() != 0 {
		t.Error("the permit was asked for though nothing restarts")
	}
	c.mu.Lock()
	c.risk = true
	c.mu.Unlock()
	c.apply(machineConfig("60-more", "master", "/etc/more", "1"))
	servetest.Await(t, func() string {
		if asked() < 2 { // the second comes only after the first was refused
			return "the guardian has not been asked twice"
		}
		return ""
	})
	if d := c.drains.All(); len(d) != 1 || d[0].GetStatus().GetPhase() != "Succeeded" || a.restarts() != 0 {
		t.Errorf("drains %v; %d restarts while a voter is down, want 0", d, a.restarts())
	}
	c.mu.Lock()
	c.risk = false
	c.mu.Unlock()
	c.awaitUpdated("master", 1, first)
	if a.restarts() != 1 {
		t.Errorf("%d restarts, want 1", a.restarts())
	}
}

// The process dies between taking the permit from a drain that ended at that moment and giving it back.
func TestAPermitThatADeadProcessTookIsGivenBackByTheNext(t *testing.T) {
	c := start(t)
	c.join("master-0", "master")
	c.apply(machineConfig("50-base", "master", "/etc/base", "1"))
	c.applyPool(poolFor("master"))
	c.awaitUpdated("master", 1, "")
	c.mu.Lock()
	c.taking = func() {
		c.hold("master-0", true) // the drains that follow do not end
		if _, err := c.drains.Delete(context.Background(), "", plan.DrainName("master-0"), nil); err != nil {
			t.Errorf("delete the drain: %v", err)
		}
		c.awaitDrain("master-0", func(d *nodev1.Drain, there bool) bool { return !there || !plan.Emptied(d) })
		c.mu.Lock()
		defer c.mu.Unlock()
		c.deaf = true // the release does not come through before the end of the process
	}
	c.mu.Unlock()
	c.apply(machineConfig("60-more", "master", "/etc/more", "1"))
	held := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.holder != ""
	}
	servetest.Await(t, func() string {
		if !held() {
			return "the permit is not taken"
		}
		return ""
	})
	c.stop()
	c.mu.Lock()
	c.deaf = false
	c.mu.Unlock()
	c.startConfigurator()
	for _, a := range c.agents {
		a.connect()
	}
	servetest.Await(t, func() string {
		if held() {
			return "the permit is not given back"
		}
		return ""
	})
}

func TestThePermitIsNotTakenFromADrainThatEnded(t *testing.T) {
	c := start(t)
	a := c.join("master-0", "master")
	c.apply(machineConfig("50-base", "master", "/etc/base", "1"))
	c.applyPool(poolFor("master"))
	first := c.awaitUpdated("master", 1, "")
	before := make(chan int, 1) // restarts, when the permit is asked for the second time
	c.mu.Lock()
	// the drain ends and gives the permit back, just before the guardian receives the configurator's request
	c.taking = func() {
		if _, err := c.drains.Delete(context.Background(), "", plan.DrainName("master-0"), nil); err != nil {
			t.Errorf("delete the drain: %v", err)
		}
		c.awaitDrain("master-0", func(_ *nodev1.Drain, there bool) bool { return !there })
		c.mu.Lock()
		defer c.mu.Unlock()
		c.taking = func() { before <- a.restarts() }
	}
	c.mu.Unlock()
	c.apply(machineConfig("60-more", "master", "/etc/more", "1"))
	c.awaitUpdated("master", 1, first)
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case restarts := <-before:
		if restarts != 0 {
			t.Error("the node was ordered to restart although its drain had ended")
		}
	default:
		t.Error("the node was ordered to restart without the permit of a new drain")
	}
	if c.freed != 1 {
		t.Errorf("what was taken after the end of the drain was given back %d times, want 1", c.freed)
	}
}
