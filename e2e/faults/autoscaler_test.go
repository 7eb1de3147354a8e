package faults

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// scaledDocument is a set of simulated machines that is scaled for the pods of a deployment, which need one each.
const scaledDocument = `
apiVersion: autoscaling.openshift.io/v1
kind: ClusterAutoscaler
metadata: {name: default}
spec:
  scaleDown: {enabled: true, delayAfterAdd: 2s, delayAfterDelete: 1s, unneededTime: 2s}
---
apiVersion: autoscaling.openshift.io/v1beta1
kind: MachineAutoscaler
metadata: {name: scaled, namespace: openshift-machine-api}
spec:
  minReplicas: 0
  maxReplicas: 9
  scaleTargetRef: {apiVersion: machine.openshift.io/v1beta1, kind: MachineSet, name: scaled}
---
apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata:
  name: scaled
  namespace: openshift-machine-api
  annotations: {machine.openshift.io/vCPU: "2", machine.openshift.io/memoryMb: "4096"}
spec:
  replicas: 0
  selector: {matchLabels: {set: scaled}}
  template:
    metadata: {labels: {set: scaled}}
    spec:
      metadata: {labels: {set: scaled}}
      providerSpec:
        value:
          apiVersion: windlass.dev/v1
          kind: SimulatedMachineProviderSpec
          capacity: {cpu: "2", memory: 4Gi}
`

// crowdDocument is the pods; so many of them.
const crowdDocument = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: scaled, namespace: default}
spec:
  replicas: %d
  selector: {matchLabels: {app: scaled}}
  template:
    metadata: {labels: {app: scaled}}
    spec:
      nodeSelector: {set: scaled}
      terminationGracePeriodSeconds: 1
      containers:
      - {name: hello, image: docker.io/ocpqe/hello-pod, resources: {requests: {cpu: 1200m}}}
`

// A set grows from zero for three pods while etcd answers slowly and another member begins to lead, and no machine is
// created twice. With WINDLASS_FAULTS=all it then shrinks to one in the same way.
func TestFaultsAutoscalingWhileEtcdIsSlowAndItsLeaderChanges(t *testing.T) {
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	p := c.Provide("provider-simulated", "--call-time", "1ms-20ms", "--create-time", "8s-12s", "--delete-time",
		"100ms-1s")
	c.Up("--set", "machine-api.peer=provider-simulated="+p.Address())
	c.Settle(fleetPatience)
	store := func(document string) {
		c.Wait(fleetPatience, "the documents to be stored", func(context.Context) (bool, string, error) {
			r, err := c.Admin().CLI(document, "apply", "-f", "-")
			return err == nil && r.Code == 0, r.Stderr, err
		})
	}
	store(scaledDocument)
	record := c.Record()
	c.Between(harness.SlowAnswers)

	store(fmt.Sprintf(crowdDocument, 3))
	awaitStep(c, "the set to grow", record, func(made, deleted int) bool { return made > 0 })
	p.Pause() // no machine gets further before the autoscaler has decided again
	changeLeader(t, c)
	decideAgain(t, c, record, 3)
	p.Continue()
	settleCrowd(t, c, record, 3)
	wantMade, wantDeleted := 3, 0
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		store(fmt.Sprintf(crowdDocument, 1))
		awaitStep(c, "the set to shrink", record, func(made, deleted int) bool { return deleted > 0 })
		changeLeader(t, c)
		settleCrowd(t, c, record, 1)
		wantDeleted = 2
	}
	// The rules of the document have all of their delays behind them after some seconds.
	c.Hold(10*time.Second, "the set at its size", func(context.Context) (string, error) {
		if made, deleted := scaled(record); made != wantMade || deleted != wantDeleted {
			return fmt.Sprintf("%d machines were created and %d deleted, want %d and %d", made, deleted, wantMade,
				wantDeleted), nil
		}
		return "", nil
	})
	for _, fault := range harness.BrokenDeletions(record.Steps()) {
		t.Error(fault)
	}
}

// scaled returns how many machines of the set were created, and how many of them deleted.
func scaled(record *harness.Record) (made, deleted int) {
	all, gone := map[string]bool{}, map[string]bool{}
	for _, s := range record.Steps() {
		m, ok := s.Object.(*machinev1.Machine)
		if !ok || m.GetMetadata().GetLabels()["set"] != "scaled" {
			continue
		}
		all[m.GetMetadata().GetUid()] = true
		if s.Deleted || m.GetMetadata().GetDeletionTimestamp() != nil {
			gone[m.GetMetadata().GetUid()] = true
		}
	}
	return len(all), len(gone)
}

func awaitStep(c *harness.Cluster, what string, record *harness.Record, done func(made, deleted int) bool) {
	c.Wait(fleetPatience, what, func(context.Context) (bool, string, error) {
		made, deleted := scaled(record)
		return done(made, deleted), fmt.Sprintf("%d machines created, %d deleted", made, deleted), nil
	})
}

// decideAgain returns when the autoscaler has decided once more, with the set at n machines. With slow answers of etcd
// that takes longer than the creation of a machine. The test ends if it decides for more.
func decideAgain(t *testing.T, c *harness.Cluster, record *harness.Record, n int32) {
	t.Helper()
	c.Wait(fleetPatience, "another decision about the size", func(ctx context.Context) (bool, string, error) {
		if made, _ := scaled(record); made > int(n) {
			t.Fatalf("%d machines were created for %d pods", made, n)
		}
		a, err := machinev1.NewMachineAutoscalerServiceClient(c.Conn()).GetMachineAutoscaler(ctx,
			&machinev1.GetMachineAutoscalerRequest{Namespace: harness.Namespace, Name: "scaled"})
		s := a.GetStatus()
		if s.GetCurrentReplicas() == n && s.GetDesiredReplicas() > n {
			t.Fatalf("with %d machines for %d pods, %d of them under way, it decided for %d: %s", n, n,
				s.GetUnderwayMachines(), s.GetDesiredReplicas(), s.GetLastScaleReason())
		}
		if s.GetCurrentReplicas() == n {
			t.Logf("decided again with %d machines under way", s.GetUnderwayMachines())
		}
		return s.GetCurrentReplicas() == n, fmt.Sprint(s), err
	})
}

// settleCrowd returns when n pods run and the set has n machines, all of which run. The test ends if there were more
// than 3.
func settleCrowd(t *testing.T, c *harness.Cluster, record *harness.Record, n int) {
	t.Helper()
	c.Wait(fleetPatience, fmt.Sprintf("%d pods on %d machines", n, n), func(ctx context.Context) (bool, string, error) {
		if made, _ := scaled(record); made > 3 {
			t.Fatalf("%d machines were created for 3 pods", made)
		}
		pods, err := schedulingv1.NewPodServiceClient(c.Conn()).ListPods(ctx, &schedulingv1.ListPodsRequest{
			Namespace: "default", LabelSelector: "app=scaled",
		})
		if err != nil {
			return false, "", err
		}
		machines, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{
			Namespace: harness.Namespace, LabelSelector: "set=scaled",
		})
		if err != nil {
			return false, "", err
		}
		runs, up := 0, 0
		for _, pod := range pods.GetItems() {
			if pod.GetStatus().GetPhase() == "Running" && pod.GetMetadata().GetDeletionTimestamp() == nil {
				runs++
			}
		}
		for _, m := range machines.GetItems() {
			if m.GetStatus().GetPhase() == "Running" && m.GetMetadata().GetDeletionTimestamp() == nil {
				up++
			}
		}
		return runs == n && len(pods.GetItems()) == n && up == n && len(machines.GetItems()) == n,
			fmt.Sprintf("%d pods, %d run; %d machines, %d run", len(pods.GetItems()), runs, len(machines.GetItems()), up), nil
	})
}

// changeLeader makes another member of etcd the leader.
func changeLeader(t *testing.T, c *harness.Cluster) {
	t.Helper()
	root, err := c.Root()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c.Wait(patience, "another leader of etcd", func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		if err != nil {
			return false, "", err
		}
		var leader, heir uint64
		var at string
		for _, m := range q.GetMembers() {
			if m.GetLearner() || len(m.GetClientUrls()) == 0 {
				continue
			}
			client, err := root.Only(m.GetClientUrls()[0])
			if err != nil {
				return false, "", err
			}
			s, err := client.Status(ctx, client.Endpoints()[0])
			if err != nil {
				return false, "", err
			}
			if own := s.Header.GetMemberId(); own == s.Leader {
				leader, at = own, m.GetClientUrls()[0]
			} else {
				heir = own
			}
		}
		if leader == 0 || heir == 0 {
			return false, fmt.Sprintf("leader %x, another voter %x", leader, heir), nil
		}
		client, err := root.Only(at)
		if err != nil {
			return false, "", err
		}
		if _, err := client.MoveLeader(ctx, heir); err != nil {
			return false, "", err
		}
		t.Logf("%s: etcd's leader moved from %x to %x", time.Now().Format("15:04:05.000"), leader, heir)
		return true, "", nil
	})
}
