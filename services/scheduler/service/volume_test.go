package service

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// storage are the clients of the kinds of storage.
type storage struct {
	*cluster
	claims  schedulingv1.PersistentVolumeClaimServiceClient
	volumes schedulingv1.PersistentVolumeServiceClient
	classes schedulingv1.StorageClassServiceClient
}

func (c *cluster) storage() storage {
	conn := c.admin()
	return storage{
		c, schedulingv1.NewPersistentVolumeClaimServiceClient(conn), schedulingv1.NewPersistentVolumeServiceClient(conn),
		schedulingv1.NewStorageClassServiceClient(conn),
	}
}

func newClaim(name, class string) *schedulingv1.PersistentVolumeClaim {
	resources, err := structpb.NewStruct(map[string]any{"requests": map[string]any{"storage": "1Gi"}})
	if err != nil {
		panic(err)
	}
	return &schedulingv1.PersistentVolumeClaim{
		Metadata: &metav1.ObjectMeta{Name: name},
		Spec: &schedulingv1.PersistentVolumeClaimSpec{
			AccessModes: []string{"ReadWriteOnce"}, Resources: resources, StorageClassName: &class,
		},
	}
}

func (s storage) claim(name, class string) {
	s.t.Helper()
	if _, err := s.claims.CreatePersistentVolumeClaim(s.t.Context(), &schedulingv1.CreatePersistentVolumeClaimRequest{
		PersistentVolumeClaim: newClaim(name, class),
	}); err != nil {
		s.t.Fatal(err)
	}
}

// await waits until a claim is as wanted.
func (s storage) await(name string, ok func(*schedulingv1.PersistentVolumeClaim) bool,
) (c *schedulingv1.PersistentVolumeClaim) {
	s.t.Helper()
	servetest.Await(s.t, func() string {
		var err error
		c, err = s.claims.GetPersistentVolumeClaim(s.t.Context(), &schedulingv1.GetPersistentVolumeClaimRequest{Name: name})
		if err == nil && ok(c) {
			return ""
		}
		return fmt.Sprintf("claim %s is %v, %v", name, c, err)
	})
	return c
}

func isBound(c *schedulingv1.PersistentVolumeClaim) bool { return c.GetStatus().GetPhase() == "Bound" }

// volume returns a volume; nil if there is none.
func (s storage) volume(name string) *schedulingv1.PersistentVolume {
	s.t.Helper()
	v, err := s.volumes.GetPersistentVolume(s.t.Context(), &schedulingv1.GetPersistentVolumeRequest{Name: name})
	if err != nil && status.Code(err) != codes.NotFound {
		s.t.Fatal(err)
	}
	return v
}

func claiming(name, claim string) *schedulingv1.Pod {
	p := newPod(name, "1m")
	p.Spec.Volumes = []*schedulingv1.Volume{{
		Name: "data", PersistentVolumeClaim: &schedulingv1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}
	return p
}

func (s storage) pod(p *schedulingv1.Pod) {
	s.t.Helper()
	if _, err := s.pods().CreatePod(s.t.Context(), &schedulingv1.CreatePodRequest{Pod: p}); err != nil {
		s.t.Fatal(err)
	}
}

// What is stored at the time of a question is in its answer, also what its writer has not been answered about yet.
func TestAClaimIsPlannedWithWhatIsStored(t *testing.T) {
	s := start(t).storage()
	for i := range 100 {
		name := fmt.Sprintf("class-%d", i)
		written := make(chan error, 1)
		go func() {
			_, err := s.classes.CreateStorageClass(t.Context(), &schedulingv1.CreateStorageClassRequest{
				StorageClass: &schedulingv1.StorageClass{
					Metadata: &metav1.ObjectMeta{Name: name}, Provisioner: placement.LocalDriver,
				},
			})
			written <- err
		}()
		for found := false; !found; {
			_, err := s.classes.GetStorageClass(t.Context(), &schedulingv1.GetStorageClassRequest{Name: name})
			if found = err == nil; !found && status.Code(err) != codes.NotFound {
				t.Fatal(err)
			}
		}
		p, err := s.claims.PlanPersistentVolumeClaim(t.Context(), &schedulingv1.PlanPersistentVolumeClaimRequest{
			PersistentVolumeClaim: newClaim("data", name),
		})
		if err != nil || len(p.GetHeldBack()) != 1 || !strings.Contains(p.GetHeldBack()[0].GetReason(), "first consumer") {
			t.Fatalf("class %d, which is stored: %v, %v", i, p, err)
		}
		if err = <-written; err != nil {
			t.Fatal(err)
		}
	}
}

// A claim of the class "local" gets a directory on the node of its first pod. Both go in order: the claim stays while
// the pod uses it, and the volume until the agent has removed the directory.
func TestAClaimGetsADirectoryWithItsPod(t *testing.T) {
	s := start(t).storage()
	s.addNode("node-1", "4")
	servetest.Await(t, func() string {
		_, err := s.classes.GetStorageClass(t.Context(), &schedulingv1.GetStorageClassRequest{Name: "local"})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	s.claim("data", "local")
	p, err := s.claims.PlanPersistentVolumeClaim(t.Context(), &schedulingv1.PlanPersistentVolumeClaimRequest{Name: "data"})
	if err != nil || len(p.GetHeldBack()) != 1 || !strings.Contains(p.GetHeldBack()[0].GetReason(), "first consumer") {
		t.Errorf("before a pod uses it: %v, %v", p, err)
	}
	s.pod(claiming("p", "data"))
	pod := s.awaitPod(s.pods(), "p", bound)
	claim := s.await("data", isBound)
	volume := s.volume(claim.GetSpec().GetVolumeName())
	if placement.VolumeNode(volume) != "node-1" ||
		volume.GetSpec().GetClaimRef().GetUid() != claim.GetMetadata().GetUid() ||
		volume.GetStatus().GetPhase() != "Bound" || volume.GetSpec().GetPersistentVolumeReclaimPolicy() != "Delete" {
		t.Errorf("the volume is %v", volume)
	}

	agent := s.agent("node-1")
	r, err := agent.ResolveVolumes(t.Context(), &schedulingv1.ResolveVolumesRequest{
		NodeName: "node-1", Namespace: "default", Name: "p", Uid: pod.GetMetadata().GetUid(),
	})
	if err != nil || r.GetVolumes()["data"].GetMetadata().GetUid() != volume.GetMetadata().GetUid() {
		t.Fatalf("its agent gets %v, %v", r, err)
	}
	from := func(store string) error {
		_, err := agent.ResolveVolumes(t.Context(), &schedulingv1.ResolveVolumesRequest{
			NodeName: "node-1", Namespace: "default", Name: "p", Uid: pod.GetMetadata().GetUid(), StoreId: store,
		})
		return err
	}
	if err := errors.Join(from("disk"), from("disk")); err != nil {
		t.Error(err)
	}
	if err := from("another"); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "its data is not there") {
		t.Errorf("an empty disk passes for the volume: %v", err)
	}
	s.addNode("node-2", "4")
	servetest.Await(t, func() string {
		_, err := s.agent("node-2").ResolveVolumes(t.Context(), &schedulingv1.ResolveVolumesRequest{
			NodeName: "node-2", Namespace: "default", Name: "p", Uid: pod.GetMetadata().GetUid(),
		})
		if status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), "not bound to node") {
			return ""
		}
		return fmt.Sprintf("another agent gets %v", err)
	})

	if _, err := s.claims.DeletePersistentVolumeClaim(t.Context(), &schedulingv1.DeletePersistentVolumeClaimRequest{
		Name: "data",
	}); err != nil {
		t.Fatal(err)
	}
	plan, err := s.claims.PlanPersistentVolumeClaim(t.Context(), &schedulingv1.PlanPersistentVolumeClaimRequest{
		Name: "data",
	})
	if err != nil || len(plan.GetHeldBack()) != 1 || !strings.Contains(plan.GetHeldBack()[0].GetReason(),
		"pod p uses it") {
		t.Errorf("while a pod uses it: %v, %v", plan, err)
	}
	gone := &schedulingv1.ConfirmVolumeGoneRequest{
		NodeName: "node-1", Name: volume.GetMetadata().GetName(), Uid: volume.GetMetadata().GetUid(),
	}
	if _, err := agent.ConfirmVolumeGone(t.Context(), gone); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("its directory may go while it is bound: %v", err)
	}
	if _, err := s.pods().DeletePod(t.Context(), &schedulingv1.DeletePodRequest{
		Name: "p", GracePeriodSeconds: new(int32(0)),
	}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if v := s.volume(gone.GetName()); placement.DirectoryGoes(v) {
			return ""
		}
		return fmt.Sprintf("the volume is %v", s.volume(gone.GetName()))
	})
	if _, err := s.agent("node-2").ConfirmVolumeGone(t.Context(), &schedulingv1.ConfirmVolumeGoneRequest{
		NodeName: "node-2", Name: gone.GetName(), Uid: gone.GetUid(),
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another agent reports that the directory is gone: %v", err)
	}
	if _, err := agent.ConfirmVolumeGone(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if v := s.volume(gone.GetName()); v != nil {
		t.Errorf("the volume stays: %v", v)
	}
}

// Many claims and pods compete for few volumes, while the scheduler is stopped and started: each claim that is bound
// has a volume of its own, and each pod that runs is where its volume is.
func TestNothingIsBoundTwiceInABurst(t *testing.T) {
	const pods, volumes = 24, 16
	s := start(t).storage()
	for i := range 4 {
		s.addNode(fmt.Sprint("node-", i), "64")
	}
	if _, err := s.classes.CreateStorageClass(t.Context(), &schedulingv1.CreateStorageClassRequest{
		StorageClass: &schedulingv1.StorageClass{
			Metadata: &metav1.ObjectMeta{Name: "disks"}, Provisioner: "kubernetes.io/no-provisioner",
			VolumeBindingMode: "WaitForFirstConsumer",
		},
	}); err != nil {
		t.Fatal(err)
	}
	for i := range volumes {
		affinity, err := structpb.NewStruct(map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{
			map[string]any{"matchFields": []any{map[string]any{
				"key": "metadata.name", "operator": "In", "values": []any{fmt.Sprint("node-", i%4)},
			}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.volumes.CreatePersistentVolume(t.Context(), &schedulingv1.CreatePersistentVolumeRequest{
			PersistentVolume: &schedulingv1.PersistentVolume{
				Metadata: &metav1.ObjectMeta{Name: fmt.Sprint("v", i)},
				Spec: &schedulingv1.PersistentVolumeSpec{
					StorageClassName: "disks", AccessModes: []string{"ReadWriteOnce"}, NodeAffinity: affinity,
					Capacity: map[string]*structpb.Value{"storage": structpb.NewStringValue("1Gi")},
				},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range pods {
		s.claim(fmt.Sprint("c", i), "disks")
		s.pod(claiming(fmt.Sprint("p", i), fmt.Sprint("c", i)))
		if i == pods/2 {
			s.stop()
			s.startScheduler()
			s = s.cluster.storage()
		}
	}
	servetest.Await(t, func() string {
		list, err := s.pods().ListPods(t.Context(), &schedulingv1.ListPodsRequest{})
		if err != nil {
			return err.Error()
		}
		n := 0
		for _, p := range list.GetItems() {
			if p.GetSpec().GetNodeName() != "" {
				n++
			}
		}
		if n == volumes {
			return ""
		}
		return fmt.Sprintf("%d pods are bound, and there are %d volumes", n, volumes)
	})
	list, err := s.claims.ListPersistentVolumeClaims(t.Context(), &schedulingv1.ListPersistentVolumeClaimsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]string{}
	for _, c := range list.GetItems() {
		name, v := c.GetMetadata().GetName(), c.GetSpec().GetVolumeName()
		if v == "" {
			continue
		}
		if other := of[v]; other != "" {
			t.Errorf("volume %s is bound to %s and %s", v, other, name)
		}
		of[v] = name
		volume := s.volume(v)
		if volume.GetSpec().GetClaimRef().GetName() != name {
			t.Errorf("claim %s has volume %s, which is of %s", name, v, volume.GetSpec().GetClaimRef().GetName())
		}
		p, err := s.pods().GetPod(t.Context(), &schedulingv1.GetPodRequest{Name: strings.Replace(name, "c", "p", 1)})
		if err != nil {
			t.Fatal(err)
		}
		var i int
		if _, err := fmt.Sscanf(v, "v%d", &i); err != nil || p.GetSpec().GetNodeName() != fmt.Sprint("node-", i%4) {
			t.Errorf("pod %s is on %q, and its volume %s elsewhere", p.GetMetadata().GetName(), p.GetSpec().GetNodeName(), v)
		}
	}
	if len(of) != volumes {
		t.Errorf("%d volumes are bound, of %d", len(of), volumes)
	}
}

// A stateful set's pods have claims, which stay when it shrinks, unless it says otherwise.
func TestAStatefulSetHasClaims(t *testing.T) {
	s := start(t).storage()
	s.addNode("node-1", "4")
	labels := map[string]string{"app": "db"}
	template := newPod("x", "1m").GetSpec()
	template.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "data", MountPath: "/data"}}
	sets := schedulingv1.NewStatefulSetServiceClient(s.admin())
	db := &schedulingv1.StatefulSet{
		Metadata: &metav1.ObjectMeta{Name: "db"},
		Spec: &schedulingv1.StatefulSetSpec{
			Replicas: new(int32(2)), PodManagementPolicy: "Parallel",
			Selector: &metav1.LabelSelector{MatchLabels: labels}, ServiceName: "db",
			VolumeClaimTemplates: []*schedulingv1.PersistentVolumeClaim{newClaim("data", "local")},
			Template: &schedulingv1.PodTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: labels}, Spec: template,
			},
		},
	}
	if _, err := sets.CreateStatefulSet(t.Context(), &schedulingv1.CreateStatefulSetRequest{StatefulSet: db}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"0", "1"} {
		s.await("data-db-"+n, isBound)
		pod := s.awaitPod(s.pods(), "db-"+n, bound)
		if !slices.ContainsFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool {
			return v.GetPersistentVolumeClaim().GetClaimName() == "data-db-"+n
		}) {
			t.Errorf("pod db-%s has the volumes %v", n, pod.GetSpec().GetVolumes())
		}
	}
	kept := s.await("data-db-1", isBound).GetMetadata().GetUid()
	scale := func(change func(*schedulingv1.StatefulSetSpec)) {
		t.Helper()
		servetest.Await(t, func() string {
			now, err := sets.GetStatefulSet(t.Context(), &schedulingv1.GetStatefulSetRequest{Name: "db"})
			if err == nil {
				change(now.GetSpec())
				_, err = sets.UpdateStatefulSet(t.Context(), &schedulingv1.UpdateStatefulSetRequest{Name: "db", StatefulSet: now})
			}
			if err != nil {
				return err.Error()
			}
			return ""
		})
	}
	end := func(name string) {
		t.Helper()
		servetest.Await(t, func() string {
			p, err := s.pods().GetPod(t.Context(), &schedulingv1.GetPodRequest{Name: name})
			if status.Code(err) == codes.NotFound {
				return ""
			}
			if p.GetMetadata().GetDeletionTimestamp() != nil {
				_, err = s.agent("node-1").ConfirmPodGone(t.Context(), &schedulingv1.ConfirmPodGoneRequest{
					NodeName: "node-1", Namespace: "default", Name: name, Uid: p.GetMetadata().GetUid(),
				})
			}
			return fmt.Sprintf("%s is there: %v", name, err)
		})
	}
	scale(func(spec *schedulingv1.StatefulSetSpec) { spec.Replicas = new(int32(1)) })
	end("db-1")
	if got := s.await("data-db-1", isBound).GetMetadata(); got.GetUid() != kept || got.GetDeletionTimestamp() != nil {
		t.Errorf("the claim of the pod that is not wanted did not stay: %v", got)
	}
	scale(func(spec *schedulingv1.StatefulSetSpec) {
		spec.PersistentVolumeClaimRetentionPolicy = &schedulingv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: "Delete",
		}
	})
	servetest.Await(t, func() string {
		_, err := s.claims.GetPersistentVolumeClaim(t.Context(), &schedulingv1.GetPersistentVolumeClaimRequest{
			Name: "data-db-1",
		})
		if status.Code(err) == codes.NotFound {
			return ""
		}
		return fmt.Sprintf("the claim is still there: %v", err)
	})
	s.await("data-db-0", isBound)
}
