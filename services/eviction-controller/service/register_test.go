package service

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

func TestARemovedMachinesCertificateRegistersNoNode(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	register := func(r identity.Request) error {
		t.Helper()
		_, err := nodev1.NewNodeAgentServiceClient(c.ground.Dial(c.address, r)).RegisterNode(t.Context(),
			&nodev1.RegisterNodeRequest{
				Name: "a", ProviderId: "local://test/chosen", Machine: &metav1.ObjectReference{
					Namespace: "openshift-machine-api",
					Name:      "a",
				},
			})
		return err
	}
	earlier := servetest.Node("a")
	earlier.URI = identity.NodeURI("a", "uid-of-an-earlier-a")

	if err := register(earlier); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an earlier machine of that name: %v", err)
	}
	c.machines.set(func() { c.machines.deleting["a"] = true })
	if err := register(servetest.Node("a")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a machine that is being deleted: %v", err)
	}
	c.machines.set(func() { c.machines.gone["a"] = true })
	if err := register(servetest.Node("a")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a machine that is gone: %v", err)
	}
	if _, err := nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "a"}); status.Code(err) != codes.NotFound {
		t.Errorf("a refused registration left a node: %v", err)
	}

	c.machines.set(func() { clear(c.machines.gone); clear(c.machines.deleting) })
	if err := register(servetest.Node("a")); err != nil {
		t.Fatal(err)
	}
	n, err := nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if n.GetSpec().GetProviderId() != "local://test/a" ||
		n.GetMetadata().GetAnnotations()[nodeid.MachineUID] != servetest.NodeUID("a") {
		t.Errorf("the node is of instance %q and machine %v", n.GetSpec().GetProviderId(), n.GetMetadata().GetAnnotations())
	}
	if len(n.GetSpec().GetTaints()) == 0 || n.GetSpec().GetTaints()[0].GetKey() != plan.UninitializedTaint {
		t.Errorf("the new node has taints %v, want %s", n.GetSpec().GetTaints(), plan.UninitializedTaint)
	}
	if err := register(earlier); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an earlier machine of that name, now that the node is there: %v", err)
	}
	// machine-api is not needed for a node that is known.
	c.machines.set(func() { c.machines.gone["a"] = true })
	if err := register(servetest.Node("a")); err != nil {
		t.Errorf("a known node's agent registers again: %v", err)
	}

	beat := func(r identity.Request) error {
		t.Helper()
		s, err := nodev1.NewNodeAgentServiceClient(c.ground.Dial(c.address, r)).Heartbeat(t.Context())
		if err != nil {
			return err
		}
		if err := s.Send(&nodev1.HeartbeatRequest{Name: "a"}); err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	}
	if err := beat(earlier); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a heartbeat of an earlier machine: %v", err)
	}
}

func TestANodeOfAnEarlierMachineGoesWhenTheNextOneRegisters(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	c.agent("a")
	first, err := nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodev1.NewDrainServiceClient(c.admin()).CreateDrain(t.Context(), &nodev1.CreateDrainRequest{
		Drain: &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: "first"}, Spec: &nodev1.DrainSpec{NodeName: "a"}},
	}); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, nodes, "a", "unschedulable", func(n *nodev1.Node) bool { return n.GetSpec().GetUnschedulable() })
	c.machines.set(func() { c.machines.uid["a"] = "uid-of-the-next-a" })
	next := servetest.Node("a")
	next.URI = identity.NodeURI("a", "uid-of-the-next-a")
	if _, err := nodev1.NewNodeAgentServiceClient(c.ground.Dial(c.address, next)).RegisterNode(t.Context(),
		&nodev1.RegisterNodeRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	// The drain was of the first node: the second one is neither held nor emptied by it.
	awaitNode(t, nodes, "a", "new and schedulable", func(n *nodev1.Node) bool {
		return n.GetMetadata().GetUid() != first.GetMetadata().GetUid() && !n.GetSpec().GetUnschedulable()
	})
}

func TestANodeOfAnEarlierMachineThatAFinalizerHoldsIsWaitedFor(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	c.agent("a")
	if _, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: "a", Patch: merge(`{"metadata":{"finalizers":["example.com/backup"]}}`),
	}); err != nil {
		t.Fatal(err)
	}
	c.machines.set(func() { c.machines.uid["a"] = "uid-of-the-next-a" })
	next := servetest.Node("a")
	next.URI = identity.NodeURI("a", "uid-of-the-next-a")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := nodev1.NewNodeAgentServiceClient(c.ground.Dial(c.address, next)).RegisterNode(ctx,
		&nodev1.RegisterNodeRequest{Name: "a"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "example.com/backup") {
		t.Errorf("while a finalizer holds the earlier node: %v, want UNAVAILABLE that names the finalizer", err)
	}
}

func TestANodesIdentityAndRolesAreNotForEditors(t *testing.T) {
	c := start(t, time.Minute)
	c.agent("a")
	editor := nodev1.NewNodeServiceClient(c.ground.Dial(c.address, servetest.User("ed", "windlass:editors")))
	for name, tt := range map[string]struct {
		patch string
		want  codes.Code
	}{
		"a role": {
			`{"metadata":{"labels":{"node-role.kubernetes.io/master":""}}}`,
			codes.PermissionDenied,
		},
		"another machine": {
			`{"metadata":{"annotations":{"windlass.dev/machine-uid":"x"}}}`,
			codes.PermissionDenied,
		},
		"another role of a machine": {
			`{"metadata":{"annotations":{"windlass.dev/machine-role":"master"}}}`,
			codes.PermissionDenied,
		},
		"another instance": {`{"spec":{"providerID":"local://test/b"}}`, codes.InvalidArgument},
		"no instance":      {`{"spec":{"providerID":null}}`, codes.InvalidArgument},
		"another configuration": {
			`{"metadata":{"annotations":{"machineconfiguration.openshift.io/desiredConfig":"x"}}}`,
			codes.PermissionDenied,
		},
		"another state": {
			`{"metadata":{"annotations":{"machineconfiguration.openshift.io/state":"Done"}}}`,
			codes.PermissionDenied,
		},
		"a boot": {
			`{"metadata":{"annotations":{"windlass.dev/config-boot":"x"}}}`,
			codes.PermissionDenied,
		},
		"an annotation of its own":  {`{"metadata":{"annotations":{"example.com/team":"x"}}}`, codes.OK},
		"a label that says no role": {`{"metadata":{"labels":{"team":"web"}}}`, codes.OK},
	} {
		if _, err := editor.PatchNode(t.Context(), &nodev1.PatchNodeRequest{Name: "a", Patch: merge(tt.patch)}); status.Code(
			err) != tt.want {
			t.Errorf("an editor gives the node %s: %v, want %v", name, err, tt.want)
		}
	}
	admin := nodev1.NewNodeServiceClient(c.admin())
	if _, err := admin.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: "a", Patch: merge(`{"metadata":{"labels":{"node-role.kubernetes.io/infra":""}}}`),
	}); err != nil {
		t.Errorf("an administrator gives the node a role: %v", err)
	}
	desired := merge(
		`{"metadata":{"annotations":{"machineconfiguration.openshift.io/desiredConfig":"rendered-worker-1"}}}`)
	configurator := nodev1.NewNodeServiceClient(c.ground.Dial(c.address, servetest.Service("node-configurator")))
	for name, client := range map[string]nodev1.NodeServiceClient{
		"node-configurator": configurator,
		"an administrator":  admin,
	} {
		if _, err := client.PatchNode(t.Context(), &nodev1.PatchNodeRequest{Name: "a", Patch: desired}); err != nil {
			t.Errorf("%s gives the node a configuration: %v", name, err)
		}
		if _, err := admin.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
			Name: "a", Patch: merge(`{"metadata":{"annotations":{"machineconfiguration.openshift.io/desiredConfig":null}}}`),
		}); err != nil {
			t.Error(err)
		}
	}
	// A node that an administrator creates stays as it is.
	made := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "by-document", Labels: map[string]string{"node-role.kubernetes.io/worker": ""}},
		Spec:     &nodev1.NodeSpec{Taints: []*nodev1.Taint{{Key: "k", Value: proto.String("v"), Effect: "NoSchedule"}}},
	}
	out, err := admin.CreateNode(t.Context(), &nodev1.CreateNodeRequest{Node: made})
	if err != nil || len(out.GetSpec().GetTaints()) != 1 {
		t.Errorf("CreateNode = %v, %v", out, err)
	}
}
