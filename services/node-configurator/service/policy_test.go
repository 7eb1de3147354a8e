package service

import (
	"slices"
	"strings"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// withUnit adds an enabled service to a configuration.
func withUnit(t *testing.T, c *configv1.MachineConfig, name, contents string) *configv1.MachineConfig {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"units": []any{
		map[string]any{"name": name, "enabled": true, "contents": contents},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.Spec.Config.Fields["systemd"] = structpb.NewStructValue(s)
	return c
}

// restarting is the policy that a change of a file restarts a service.
func restarting(path, service string) *configv1.NodeDisruptionPolicy {
	return &configv1.NodeDisruptionPolicy{Files: []*configv1.NodeDisruptionPolicyFile{{
		Path: path, Actions: []*configv1.NodeDisruptionPolicyAction{
			{Type: "Restart", Restart: &configv1.NodeDisruptionPolicyService{ServiceName: service}},
		},
	}}}
}

func TestAPolicyOfUsersSparesARestart(t *testing.T) {
	c := start(t)
	settings := configv1.NewMachineConfigurationServiceClient(c.admin)
	a := c.join("worker-0", "worker")
	chrony := func(content string) *configv1.MachineConfig {
		return withUnit(t, machineConfig("50-chrony", "worker", "/etc/chrony.conf", content), "chronyd.service",
			"[Service]\nExecStart=/usr/sbin/chronyd -n\n")
	}
	c.apply(chrony("1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 1, "")

	made, err := settings.CreateMachineConfiguration(t.Context(), &configv1.CreateMachineConfigurationRequest{
		MachineConfiguration: &configv1.MachineConfiguration{
			Metadata: &metav1.ObjectMeta{Name: "cluster"},
			Spec: &configv1.MachineConfigurationSpec{
				NodeDisruptionPolicy: restarting("/etc/chrony.conf", "chronyd.service"),
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	get := func() *configv1.MachineConfiguration {
		is, err := settings.GetMachineConfiguration(t.Context(), &configv1.GetMachineConfigurationRequest{Name: "cluster"})
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	servetest.Await(t, func() string {
		s := get().GetStatus()
		for _, f := range s.GetNodeDisruptionPolicyStatus().GetClusterPolicies().GetFiles() {
			if f.GetPath() == "/etc/chrony.conf" && s.GetObservedGeneration() == int32(made.GetMetadata().GetGeneration()) {
				return ""
			}
		}
		return "the status does not say what is in force: " + s.String()
	})
	preview, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		PoolName: "worker", MachineConfigs: &configv1.MachineConfigList{Items: []*configv1.MachineConfig{chrony("2")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := preview.GetServices(); preview.GetAction() != "Restart" || len(s) != 1 ||
		s[0].GetName() != "chronyd.service" ||
		len(preview.GetChanges()) != 1 || preview.GetChanges()[0].GetItem() != `file "/etc/chrony.conf"` {
		t.Errorf("preview %v", preview)
	}
	without, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		PoolName: "worker", MachineConfigs: &configv1.MachineConfigList{Items: []*configv1.MachineConfig{chrony("2")}},
		NodeDisruptionPolicy: &configv1.NodeDisruptionPolicy{},
	})
	if err != nil || without.GetAction() != "Reboot" || len(without.GetServices()) > 0 {
		t.Errorf("preview without policies: %v, %v", without, err)
	}
	before, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		PoolName: "worker", Before: preview.GetMachineConfig(),
		MachineConfigs: &configv1.MachineConfigList{Items: []*configv1.MachineConfig{chrony("2")}},
	})
	if err != nil || before.GetAction() != "None" || len(before.GetChanges()) > 0 {
		t.Errorf("preview on top of itself: %v, %v", before, err)
	}

	c.apply(chrony("2"))
	second := c.awaitUpdated("worker", 1, first)
	if a.restarts() != 0 || c.most() != 0 {
		t.Errorf("the node was restarted %d times and unschedulable: %d", a.restarts(), c.most())
	}
	a.mu.Lock()
	told := slices.ContainsFunc(a.orders, func(o *configv1.FollowConfigResponse) bool {
		s := o.GetServices()
		return o.GetMachineConfig().GetMetadata().GetName() == second && o.GetApply() && len(s) == 1 &&
			proto.Equal(s[0], &configv1.ServiceAction{Name: "chronyd.service"})
	})
	a.mu.Unlock()
	if !told {
		t.Error("the agent was not ordered to restart the service")
	}

	// Without the policies their defaults are in force again.
	if _, err := settings.DeleteMachineConfiguration(t.Context(), &configv1.DeleteMachineConfigurationRequest{
		Name: "cluster",
	}); err != nil {
		t.Fatal(err)
	}
	c.apply(chrony("3"))
	c.awaitUpdated("worker", 1, second)
	if a.restarts() != 1 {
		t.Errorf("without policies the node was restarted %d times, want 1", a.restarts())
	}
}

func TestSettingsThatAreNotInForceAreRefused(t *testing.T) {
	c := start(t)
	settings := configv1.NewMachineConfigurationServiceClient(c.admin)
	for _, tc := range []struct {
		name, path string
		change     func(*configv1.MachineConfiguration)
	}{
		{"another name", "metadata.name", func(c *configv1.MachineConfiguration) { c.Metadata.Name = "other" }},
		{
			"another state", "spec.managementState",
			func(c *configv1.MachineConfiguration) { c.Spec.ManagementState = "Unmanaged" },
		},
		{"another level", "spec.logLevel", func(c *configv1.MachineConfiguration) { c.Spec.LogLevel = "Trace" }},
		{
			"no action", "spec.nodeDisruptionPolicy.files[0].actions",
			func(c *configv1.MachineConfiguration) { c.Spec.NodeDisruptionPolicy.Files[0].Actions = nil },
		},
		{
			"an action that is none", "spec.nodeDisruptionPolicy.files[0].actions[0].type",
			func(c *configv1.MachineConfiguration) {
				c.Spec.NodeDisruptionPolicy.Files[0].Actions[0].Type = "Special"
			},
		},
		{
			"a relative path", "spec.nodeDisruptionPolicy.files[0].path",
			func(c *configv1.MachineConfiguration) { c.Spec.NodeDisruptionPolicy.Files[0].Path = "etc" },
		},
	} {
		is := &configv1.MachineConfiguration{
			Metadata: &metav1.ObjectMeta{Name: "cluster"},
			Spec:     &configv1.MachineConfigurationSpec{NodeDisruptionPolicy: restarting("/etc/x", "x.service")},
		}
		tc.change(is)
		_, err := settings.CreateMachineConfiguration(t.Context(), &configv1.CreateMachineConfigurationRequest{
			MachineConfiguration: is,
		})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tc.path+": ") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	_, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{
		Pool: poolFor("worker"), NodeDisruptionPolicy: restarting("etc", "x.service"),
	})
	if status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "nodeDisruptionPolicy.files[0].path: ") {
		t.Errorf("a preview with wrong policies: %v", err)
	}
}

func TestAgentsOfAPoolThatRepairsAreOrderedTo(t *testing.T) {
	c := start(t)
	a := c.join("worker-0", "worker")
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.apply(machineConfig("60-state", "worker", "/etc/nmstate/openshift/state.yml", "1"))
	c.applyPool(poolFor("worker"))
	c.awaitUpdated("worker", 1, "")
	set := func(policy string) {
		servetest.Await(t, func() string { // its status may change in between
			p := c.pool("worker")
			p.Spec.DriftPolicy = policy
			if _, err := c.pools().UpdateMachineConfigPool(t.Context(), &configv1.UpdateMachineConfigPoolRequest{
				Name: "worker", MachineConfigPool: p,
			}); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	awaitRepairs := func(want ...string) {
		t.Helper()
		servetest.Await(t, func() string {
			a.mu.Lock()
			defer a.mu.Unlock()
			var got []string
			for _, r := range a.orders[len(a.orders)-1].GetRepairs() {
				got = append(got, r.GetPaths()...)
			}
			if slices.Equal(got, want) {
				return ""
			}
			return "it puts back " + strings.Join(got, ", ")
		})
	}
	awaitRepairs()
	set("Repair")
	awaitRepairs("/etc/nmstate/openshift/state.yml")
	set("Report")
	awaitRepairs()
}
