package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

func TestThePlanOfALivePoolSaysWhatItsControllerSays(t *testing.T) {
	c := start(t)
	c.join("worker-0", "worker")
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 1, "")
	unreadable := machineConfig("60-more", "worker", "/etc/more", "1")
	unreadable.Spec.Extensions, unreadable.Spec.KernelType = []string{"kernel-devel"}, "realtime"
	c.apply(unreadable)
	p := c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return object.IsTrue(p.GetStatus().GetConditions(), plan.ConditionRenderDegraded)
	})
	resp, err := c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{Name: "worker"})
	if err != nil {
		t.Fatal(err)
	}
	want := object.FindCondition(p.GetStatus().GetConditions(), plan.ConditionRenderDegraded)
	have := object.FindCondition(resp.GetStatus().GetConditions(), plan.ConditionRenderDegraded)
	if have.GetStatus() != "True" || have.GetMessage() != want.GetMessage() ||
		p.GetSpec().GetConfiguration().GetName() != first {
		t.Errorf("the plan says %v, the controller %v", have, want)
	}
}

func TestWhatIsWrongInAPlanIsRefusedWithItsPath(t *testing.T) {
	c := start(t)
	pool := poolFor("worker")
	_, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		Pool: pool, MachineConfigs: &configv1.MachineConfigList{Items: []*configv1.MachineConfig{
			machineConfig("50-base", "worker", "/etc/base", "1"), machineConfig("60-more", "worker", "etc/more", "1"),
		}},
	})
	if status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "machineConfigs.items[1].spec.config.storage.files[0].path: ") {
		t.Errorf("a relative path: %v", err)
	}
	for path, wrong := range map[string]func(*configv1.MachineConfigPool, *metav1.LabelSelector){
		"pool.spec.nodeSelector": func(p *configv1.MachineConfigPool, s *metav1.LabelSelector) {
			p.Spec.NodeSelector = s
		},
		"pool.spec.machineConfigSelector": func(p *configv1.MachineConfigPool, s *metav1.LabelSelector) {
			p.Spec.MachineConfigSelector = s
		},
	} {
		pool := poolFor("worker")
		wrong(pool, &metav1.LabelSelector{MatchLabels: map[string]string{"not a label": "x"}})
		_, err := c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{Pool: pool})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	out, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		Pool: pool, MachineConfigs: &configv1.MachineConfigList{
			Items: []*configv1.MachineConfig{machineConfig("50-base", "worker", "/etc/base", "1")},
		},
	})
	if err != nil || !slices.Equal(out.GetSources(), []string{"50-base"}) {
		t.Errorf("what is right: %v, %v", out, err)
	}
}

func TestWhatAPoolThatIsGoneLeftIsRemovedWhenNobodyUsesItAnyMore(t *testing.T) {
	c := start(t)
	c.join("infra-0", "infra")
	if _, err := c.nodes.Modify(t.Context(), object.Key{Name: "infra-0"}, func(n *nodev1.Node) error {
		n.Metadata.Labels["node-role.kubernetes.io/worker"] = ""
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.apply(machineConfig("50-infra", "infra", "/etc/infra", "1"))
	c.applyPool(poolFor("infra"))
	c.applyPool(poolFor("worker"))
	left := c.awaitUpdated("infra", 1, "")
	if _, err := c.pools().DeleteMachineConfigPool(t.Context(), &configv1.DeleteMachineConfigPoolRequest{
		Name: "infra",
	}); err != nil {
		t.Fatal(err)
	}
	c.awaitUpdated("worker", 1, "")
	servetest.Await(t, func() string {
		_, err := c.configs().GetMachineConfig(t.Context(), &configv1.GetMachineConfigRequest{Name: left})
		if status.Code(err) != codes.NotFound {
			return fmt.Sprintf("%s is there: %v", left, err)
		}
		return ""
	})
}

func TestThePlanOfAPoolSaysWhatEachNodeNeeds(t *testing.T) {
	c := start(t)
	c.join("worker-0", "worker")
	c.join("worker-1", "worker")
	chrony := func(content string) *configv1.MachineConfig {
		return withUnit(t, machineConfig("50-chrony", "worker", "/etc/chrony.conf", content), "chronyd.service",
			"[Service]\nExecStart=/usr/sbin/chronyd -n\n")
	}
	c.apply(chrony("1"))
	c.applyPool(poolFor("worker"))
	c.awaitUpdated("worker", 2, "")
	ask := func() *configv1.PlanMachineConfigPoolResponse {
		resp, err := c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{Name: "worker"})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for _, n := range ask().GetNodes() {
		if n.GetAction() != "" || len(n.GetServices()) > 0 {
			t.Errorf("a node that has its configuration: %v", n)
		}
	}
	c.hold("worker-0", true)
	c.hold("worker-1", true)
	c.apply(chrony("2"))
	servetest.Await(t, func() string {
		for _, n := range ask().GetNodes() {
			if n.GetAction() != "Reboot" || n.GetActionReason() != `file "/etc/chrony.conf" changed` {
				return n.String()
			}
		}
		return ""
	})
	servetest.Await(t, func() string {
		for _, n := range ask().GetNodes() {
			if n.GetDrain() != "" {
				return ""
			}
		}
		return "no node says how far its drain is"
	})
	if _, err := configv1.NewMachineConfigurationServiceClient(c.admin).CreateMachineConfiguration(t.Context(),
		&configv1.CreateMachineConfigurationRequest{MachineConfiguration: &configv1.MachineConfiguration{
			Metadata: &metav1.ObjectMeta{Name: "cluster"},
			Spec: &configv1.MachineConfigurationSpec{
				NodeDisruptionPolicy: restarting("/etc/chrony.conf", "chronyd.service"),
			},
		}}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		found := false
		for _, n := range ask().GetNodes() {
			found = found || n.GetAction() == "Restart" && len(n.GetServices()) == 1
		}
		if !found {
			return "the plan does not follow the policies"
		}
		return ""
	})
}

// A change that nodes cannot make is answered with what it would be, and with why they cannot. What the controller
// itself renders is refused, as it refuses it.
func TestARenderingSaysWhetherNodesCanBeBroughtToIt(t *testing.T) {
	c := start(t)
	c.join("worker-0", "worker")
	base := machineConfig("50-base", "worker", "/etc/base", "1")
	c.apply(base)
	c.applyPool(poolFor("worker"))
	c.awaitUpdated("worker", 1, "")
	render := func(kernelType string, arguments ...string) *configv1.RenderMachineConfigResponse {
		t.Helper()
		kernel := machineConfig("60-kernel", "worker", "/etc/base", "1")
		kernel.Spec.KernelType, kernel.Spec.KernelArguments = kernelType, arguments
		out, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
			PoolName: "worker", MachineConfigs: &configv1.MachineConfigList{Items: []*configv1.MachineConfig{base, kernel}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := render(""); out.Reconcilable == nil || !out.GetReconcilable() || len(out.GetUnreconcilableReasons()) > 0 {
		t.Errorf("what is possible: %v", out)
	}
	if out := render("", "quiet", "debug"); !out.GetReconcilable() {
		t.Errorf("kernel arguments: %v", out)
	}
	out := render("realtime", "quiet", "debug")
	if out.Reconcilable == nil || out.GetReconcilable() || len(out.GetUnreconcilableReasons()) != 1 ||
		!strings.Contains(out.GetUnreconcilableReasons()[0], `machine config "60-kernel": spec.kernelType`) {
		t.Errorf("what is impossible: %v", out)
	}
	if changes := out.GetChanges(); len(changes) != 2 || !slices.Equal(changes[0].GetAdded(),
		[]string{"quiet", "debug"}) ||
		len(changes[0].GetRemoved()) > 0 {
		t.Errorf("the changes are %v", changes)
	}
	// Nodes of a request had that kernel before: it is the change from it that counts.
	kernel := machineConfig("60-kernel", "worker", "/etc/base", "1")
	kernel.Spec.KernelType = "realtime"
	same, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		Pool: poolFor("worker"), MachineConfigs: &configv1.MachineConfigList{Items: []*configv1.MachineConfig{kernel}},
		Before: kernel,
	})
	if err != nil || !same.GetReconcilable() {
		t.Errorf("the same kernel: %v, %v", same, err)
	}
	_, err = c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		PoolName: "worker", MachineConfigs: &configv1.MachineConfigList{},
	})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("nothing to render: %v", err)
	}
}

// The pools of a request decide to which a node belongs, and no live one.
func TestThePlanOfAPoolAmongOthersOfTheRequest(t *testing.T) {
	c := start(t)
	c.join("worker-0", "worker")
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	c.awaitUpdated("worker", 1, "")
	plan := func(others *configv1.MachineConfigPoolList) (*configv1.PlanMachineConfigPoolResponse, error) {
		node, err := c.nodes.Get(t.Context(), "", "worker-0")
		if err != nil {
			t.Fatal(err)
		}
		node.Metadata.Labels["node-role.kubernetes.io/infra"] = ""
		return c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{
			Pool: poolFor("worker"), OtherPools: others, Nodes: &nodev1.NodeList{Items: []*nodev1.Node{node}},
		})
	}
	alone, err := plan(&configv1.MachineConfigPoolList{})
	if err != nil || len(alone.GetNodes()) != 1 || len(alone.GetOtherNodes()) > 0 {
		t.Errorf("no other pool: %v, %v", alone, err)
	}
	among, err := plan(&configv1.MachineConfigPoolList{Items: []*configv1.MachineConfigPool{poolFor("infra")}})
	if err != nil || len(among.GetNodes()) > 0 || len(among.GetOtherNodes()) != 1 ||
		among.GetOtherNodes()[0].GetPool() != "infra" {
		t.Errorf("a custom pool: %v, %v", among, err)
	}
	if _, err := c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{
		Name: "worker", OtherPools: &configv1.MachineConfigPoolList{},
	}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("other pools for a live one: %v", err)
	}
}
