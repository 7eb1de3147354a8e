package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"

	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// claiming gives a pod a volume that is a claim.
func claiming(claim string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, &schedulingv1.Volume{
			Name: claim, PersistentVolumeClaim: &schedulingv1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		})
	}
}

// claimOf returns a claim of a class; without one the class is empty.
func claimOf(name, class, size string) *schedulingv1.PersistentVolumeClaim {
	resources, err := structpb.NewStruct(map[string]any{"requests": map[string]any{"storage": size}})
	if err != nil {
		panic(err)
	}
	return &schedulingv1.PersistentVolumeClaim{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name, Uid: "uid-" + name},
		Spec: &schedulingv1.PersistentVolumeClaimSpec{
			AccessModes: []string{"ReadWriteOnce"}, StorageClassName: &class, Resources: resources,
		},
	}
}

// volumeOf returns a volume of a class that nodes with one of some values of a label can use; without a label all can.
func volumeOf(name, class, size, label string, values ...any) *schedulingv1.PersistentVolume {
	v := &schedulingv1.PersistentVolume{
		Metadata: &metav1.ObjectMeta{Name: name, Uid: "uid-" + name},
		Spec: &schedulingv1.PersistentVolumeSpec{
			AccessModes: []string{"ReadWriteOnce"}, StorageClassName: class,
			Capacity: map[string]*structpb.Value{"storage": text(size)},
		},
	}
	if label != "" {
		affinity, err := structpb.NewStruct(map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{
			map[string]any{"matchExpressions": []any{map[string]any{"key": label, "operator": "In", "values": values}}},
		}}})
		if err != nil {
			panic(err)
		}
		v.Spec.NodeAffinity = affinity
	}
	return v
}

func classOf(name, provisioner, mode string) *schedulingv1.StorageClass {
	return &schedulingv1.StorageClass{
		Metadata: &metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: mode, ReclaimPolicy: "Delete",
	}
}

// stocked adds storage to a cluster.
func (c *Cluster) stocked(objects ...object.Object) *Cluster {
	for _, o := range objects {
		switch o := o.(type) {
		case *schedulingv1.PersistentVolume:
			c.AddVolume(o)
		case *schedulingv1.PersistentVolumeClaim:
			c.AddClaim(o)
		case *schedulingv1.StorageClass:
			c.AddStorageClass(o)
		}
	}
	return c
}

// boundTo binds a claim to a volume and adds both.
func (c *Cluster) boundTo(claim *schedulingv1.PersistentVolumeClaim, v *schedulingv1.PersistentVolume) *Cluster {
	b := volumes.Bind(claim, v)
	return c.stocked(b.Claim, b.Volume)
}

const host = "kubernetes.io/hostname"

func TestWhereAPodWithClaimsGoes(t *testing.T) {
	two := func() *Cluster { return clusterOf(newNode("a"), newNode("b")) }
	zones := func() *Cluster {
		return clusterOf(newNode("a", labelled("failure-domain.beta.kubernetes.io/zone", "za")),
			newNode("b", labelled("failure-domain.beta.kubernetes.io/zone", "zb")))
	}
	inZone := func(label, value string) *schedulingv1.PersistentVolume {
		v := volumeOf("v", "", "1Gi", "")
		v.Metadata.Labels = map[string]string{label: value}
		return v
	}
	slow := classOf("slow", volumes.NoProvisioner, volumes.WaitForFirstConsumer)
	local := classOf("local", volumes.LocalProvisioner, volumes.WaitForFirstConsumer)
	inA := proto.CloneOf(local)
	inA.AllowedTopologies = []*schedulingv1.TopologySelectorTerm{
		{MatchLabelExpressions: []*schedulingv1.TopologySelectorLabelRequirement{{Key: host, Values: []string{"a"}}}},
	}
	shared := claimOf("c", "local", "1Gi")
	shared.Spec.AccessModes = []string{"ReadWriteMany"}
	leaving := claimOf("c", "local", "1Gi")
	leaving.Metadata.DeletionTimestamp = &timestamppb.Timestamp{Seconds: 1}
	tests := []struct {
		name    string
		cluster *Cluster
		want    string // node, and what the claim gets there
		says    string
	}{
		{"a bound volume ties the pod to its node", two().boundTo(claimOf("c", "", "1Gi"),
			volumeOf("v", "", "1Gi", host, "b")), "b", ""},
		{
			"a bound volume that no node reaches", two().boundTo(claimOf("c", "", "1Gi"), volumeOf("v", "", "1Gi", host, "x")),
			"",
			"2 node(s) had volume node affinity conflict",
		},
		{
			"a claim that is not bound, nor waits for a pod", two().stocked(claimOf("c", "", "1Gi")), "",
			"pod has unbound immediate PersistentVolumeClaims",
		},
		{
			"a claim of a class that does not exist", two().stocked(claimOf("c", "none", "1Gi")), "",
			"pod has unbound immediate PersistentVolumeClaims",
		},
		{"a claim that is being deleted", two().stocked(leaving, local), "", "is being deleted"},
		{"the smallest volume of the class that fits is taken", two().stocked(slow, claimOf("c", "slow", "2Gi"),
			volumeOf("small", "slow", "1Gi", host, "a"), volumeOf("large", "slow", "9Gi", host, "b"),
			volumeOf("fits", "slow", "3Gi", host, "b"), volumeOf("other", "", "2Gi", host, "a")), "b fits", ""},
		{
			"no volume fits", two().stocked(slow, claimOf("c", "slow", "2Gi"), volumeOf("small", "slow", "1Gi", "")), "",
			"2 node(s) didn't find available persistent volumes to bind",
		},
		{
			"a volume is made where the pod goes", clusterOf(newNode("a")).stocked(local, claimOf("c", "local", "1Gi")),
			"a pvc-uid-c", "",
		},
		{"a volume is made where the class allows it", clusterOf(newNode("a"), newNode("b", having("cpu", "64"))).stocked(inA,
			claimOf("c", "local", "1Gi")), "a pvc-uid-c", ""},
		{
			"what the built-in provisioner does not make", two().stocked(local, shared), "",
			"2 node(s) didn't find available persistent volumes to bind",
		},
		{"a volume in another zone", zones().boundTo(claimOf("c", "", "1Gi"),
			inZone("failure-domain.beta.kubernetes.io/zone", "zb")), "b", ""},
		{"the newer label of a volume, and several zones", zones().boundTo(claimOf("c", "", "1Gi"),
			inZone("topology.kubernetes.io/zone", "zc__zb")), "b", ""},
		{"a region, which the nodes do not say", zones().boundTo(claimOf("c", "", "1Gi"),
			inZone("topology.kubernetes.io/region", "r")), "", "2 node(s) had no available volume zone"},
		{"nodes without zones", clusterOf(newNode("a")).boundTo(claimOf("c", "", "1Gi"),
			inZone("topology.kubernetes.io/zone", "zb")), "a", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := place(tt.cluster, newPod("p", claiming("c")))
			where := got.Node
			for _, c := range got.Claims {
				where += " " + c.Volume.GetMetadata().GetName()
			}
			if where != tt.want || !strings.Contains(got.Message, tt.says) {
				t.Errorf("goes to %q: %s; want %q: %s", where, got.Message, tt.want, tt.says)
			}
		})
	}
}

// A volume is given once, to pods of one decision and to claims of one pod.
func TestAVolumeIsGivenOnce(t *testing.T) {
	c := clusterOf(newNode("a")).stocked(classOf("slow", volumes.NoProvisioner, volumes.WaitForFirstConsumer),
		claimOf("c1", "slow", "1Gi"), claimOf("c2", "slow", "1Gi"), claimOf("c3", "slow", "1Gi"),
		volumeOf("v1", "slow", "1Gi", ""), volumeOf("v2", "slow", "2Gi", ""))
	first := place(c, newPod("p", claiming("c1"), claiming("c2")))
	second := place(c, newPod("q", claiming("c3")))
	var given []string
	for _, d := range []Decision{first, second} {
		for _, one := range d.Claims {
			given = append(given, one.Volume.GetMetadata().GetName())
		}
	}
	if slices.Sort(given); !slices.Equal(given, []string{"v1", "v2"}) || second.Node != "" {
		t.Errorf("the volumes given are %v, and the pod without one is on %q", given, second.Node)
	}
}

// Pods that share a claim which gets its volume with the first of them follow that one.
func TestPodsFollowTheVolumeOfTheirClaim(t *testing.T) {
	c := clusterOf(newNode("a"), newNode("b")).stocked(
		classOf("local", volumes.LocalProvisioner, volumes.WaitForFirstConsumer), claimOf("c", "local", "1Gi"))
	first, second := place(c, newPod("p", claiming("c"))), place(c, newPod("q", claiming("c")))
	if first.Node == "" || second.Node != first.Node || len(first.Claims) != 1 || len(second.Claims) != 0 {
		t.Errorf("the pods are on %q and %q", first.Node, second.Node)
	}
}

// A pod whose volume another program makes is not bound before.
func TestAPodWaitsForAnotherProvisioner(t *testing.T) {
	c := clusterOf(newNode("a"), newNode("b")).stocked(
		classOf("disk", "example.com/disk", volumes.WaitForFirstConsumer), claimOf("c", "disk", "1Gi"))
	d := place(c, newPod("p", claiming("c")))
	if d.Node != "" || len(d.Claims) != 1 || d.Claims[0].SelectedNode == "" ||
		!strings.Contains(d.Message, "waits until a volume is made") {
		t.Fatalf("the pod is on %q, with %v: %s", d.Node, d.Claims, d.Message)
	}
	claim := proto.CloneOf(d.Claims[0].Claim)
	claim.Metadata.Annotations = map[string]string{volumes.SelectedNode: "b"}
	c.boundTo(claim, volumeOf("v", "disk", "1Gi", host, "b"))
	if got := place(c, newPod("p", claiming("c"))); got.Node != "b" {
		t.Errorf("once its volume is there, it is on %q: %s", got.Node, got.Message)
	}
}

// Without CheckVolumeBinding a claim that waits for a pod would never get a volume.
func TestAPolicyThatDoesNotBindClaimsSaysSo(t *testing.T) {
	c := clusterOf(newNode("a")).stocked(classOf("local", volumes.LocalProvisioner, volumes.WaitForFirstConsumer),
		claimOf("c", "local", "1Gi"))
	var turn uint64
	p := Policy(&schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{{Name: "PodFitsResources"}}})
	d := placeAll(c, p, []*schedulingv1.Pod{newPod("p", claiming("c"))}, &turn)[0]
	if d.Node != "" || !strings.Contains(d.Message, "CheckVolumeBinding") {
		t.Errorf("the pod is on %q: %s", d.Node, d.Message)
	}
}

func TestDisksOfClaimsAreCounted(t *testing.T) {
	disk := func(name, id string) *schedulingv1.PersistentVolume {
		v := volumeOf(name, "", "1Gi", "")
		v.Spec.AwsElasticBlockStore = &structpb.Struct{Fields: map[string]*structpb.Value{"volumeID": text(id)}}
		return v
	}
	limit := having("attachable-volumes-aws-ebs", "1")
	c := clusterOf(newNode("a", limit)).boundTo(claimOf("c", "", "1Gi"), disk("v", "x")).boundTo(
		claimOf("d", "", "1Gi"), disk("w", "y")).with(newPod("q", claiming("c"), on("a")))
	if got := place(c, newPod("p", claiming("d"))); got.Node != "" || !strings.Contains(got.Message, "max volume count") {
		t.Errorf("a second disk is attached to %q: %s", got.Node, got.Message)
	}
	if got := place(c, newPod("r", claiming("c"))); got.Node != "a" {
		t.Errorf("the same disk is not attached twice, and yet: %s", got.Message)
	}
	c.RemovePod("default", "r")
	c.RemovePod("default", "q")
	if got := place(c, newPod("p", claiming("d"))); got.Node != "a" {
		t.Errorf("once the other disk is gone: %s", got.Message)
	}
}

// What is known of the pods with a claim ends when what the claim depends on changes.
func TestChangesOfStorageAreTakenIn(t *testing.T) {
	c := clusterOf(newNode("a"), newNode("b")).boundTo(claimOf("c", "", "1Gi"), volumeOf("v", "", "1Gi", host, "a"))
	if got := place(c, newPod("p", claiming("c"))); got.Node != "a" {
		t.Fatalf("the pod is on %q: %s", got.Node, got.Message)
	}
	c.RemovePod("default", "p")
	c.boundTo(claimOf("c", "", "1Gi"), volumeOf("v", "", "1Gi", host, "b"))
	if got := place(c, newPod("p", claiming("c"))); got.Node != "b" {
		t.Errorf("after its volume moved, the pod is on %q: %s", got.Node, got.Message)
	}
	c.RemovePod("default", "p")
	c.RemoveVolume("v")
	if got := place(c, newPod("p", claiming("c"))); !strings.Contains(got.Message, "bound to non-existent") {
		t.Errorf("after its volume is gone, the pod is on %q: %s", got.Node, got.Message)
	}
}

// A pod that waits for storage is tried again when that comes, and not by a change that cannot help it.
func TestAPodIsWokenByItsVolume(t *testing.T) {
	now := time.Unix(100, 0)
	q := NewQueue(clusterOf(newNode("a")).stocked(classOf("slow", volumes.NoProvisioner, volumes.WaitForFirstConsumer),
		claimOf("c", "slow", "1Gi")), Policies(nil))
	p := newPod("p", claiming("c"))
	p.Metadata.Uid = "p"
	q.AddPod(p)
	if got := q.Next(now); len(got.Held) != 1 {
		t.Fatalf("without a volume the plan is %v", got)
	}
	q.AddNode(with(newNode("a"), func(n *nodev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, &nodev1.NodeCondition{Type: "Other", Status: "True"})
	}))
	if got := q.Next(now.Add(time.Minute)); len(got.Held) != 0 {
		t.Errorf("a condition of the node woke the pod: %v", got.Held)
	}
	q.AddVolume(volumeOf("v", "slow", "1Gi", ""))
	got := q.Next(now.Add(2 * time.Minute))
	var verbs []string
	for _, a := range got.Do {
		verbs = append(verbs, a.Verb)
	}
	if !slices.Equal(verbs, []string{BindClaims, BindPod}) {
		t.Errorf("with a volume the plan is %v", verbs)
	}
}

// A pod with claims is stored before it is placed: its claims are bound in between.
func TestAPodWithClaimsIsNotOffered(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), Policies(nil))
	p := newPod("p", claiming("c"))
	p.Metadata.Uid = "p"
	if q.Offer([]*schedulingv1.Pod{p})[0] {
		t.Error("it is placed before it is stored")
	}
}

// Another scheduler may not bind a pod where its volumes are not.
func TestAnotherSchedulerIsHeldToTheVolumes(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a"), newNode("b")).boundTo(claimOf("c", "", "1Gi"),
		volumeOf("v", "", "1Gi", host, "b")), Policies(nil))
	p := newPod("p", claiming("c"))
	got := q.Grant([]Request{{Pod: p, Node: "a"}, {Pod: p, Node: "b"}})
	if !strings.Contains(got[0].Unfit, "volume v cannot be used there") || !got[1].Granted() {
		t.Errorf("on the other node %v, on that of the volume %v", got[0], got[1])
	}
	b := volumes.Bind(claimOf("c", "", "1Gi"), volumeOf("v", "", "1Gi", host, "b"))
	b.Claim.Metadata.DeletionTimestamp = timestamppb.Now()
	q = NewQueue(clusterOf(newNode("b")).stocked(b.Claim, b.Volume), Policies(nil))
	if got := q.Grant([]Request{{Pod: p, Node: "b"}}); !strings.Contains(got[0].Unfit, "claim c is being deleted") {
		t.Errorf("with a claim that is being deleted: %v", got[0])
	}
}

// A claim that names a volume waits for that one, and no other is chosen or made for it. What a claim says that it is
// bound to may be another's.
func TestAClaimThatNamesAVolume(t *testing.T) {
	local := classOf("local", volumes.LocalProvisioner, volumes.WaitForFirstConsumer)
	named := claimOf("c", "local", "1Gi")
	named.Spec.VolumeName = "v"
	d := place(clusterOf(newNode("a")).stocked(local, named), newPod("p", claiming("c")))
	if d.Node != "" || len(d.Claims) > 0 || !strings.Contains(d.Message, "unbound immediate") {
		t.Errorf("it gets %q, %v: %s", d.Node, d.Claims, d.Message)
	}
	v := volumeOf("v", "local", "1Gi", "")
	theirs, mine := volumes.Bind(claimOf("other", "local", "1Gi"), v), volumes.Bind(named, v)
	d = place(clusterOf(newNode("a")).stocked(local, mine.Claim, theirs.Claim, theirs.Volume), newPod("p", claiming("c")))
	if d.Node != "" || !strings.Contains(d.Message, "which another claim has") {
		t.Errorf("with another's volume it goes to %q: %s", d.Node, d.Message)
	}
}

// A directory is on its node, also if an administrator made the volume without a nodeAffinity.
func TestADirectoryIsReachedOnItsNode(t *testing.T) {
	csi, err := structpb.NewStruct(map[string]any{
		"driver": volumes.LocalProvisioner, "volumeAttributes": map[string]any{"node": "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	v := volumeOf("v", "", "1Gi", "")
	v.Spec.Csi = csi
	for range 4 {
		d := place(clusterOf(newNode("a"), newNode("b")).boundTo(claimOf("c", "", "1Gi"), v), newPod("p", claiming("c")))
		if d.Node != "b" {
			t.Fatalf("the pod goes to %q: %s", d.Node, d.Message)
		}
	}
}

func TestAClaimOfAPodHasAName(t *testing.T) {
	for _, name := range []string{"", "../x", "A"} {
		bad, _ := ValidateSpec("spec", newPod("p", claiming(name)).GetSpec())
		if len(bad) == 0 || bad[0].Path != "spec.volumes[0].persistentVolumeClaim.claimName" {
			t.Errorf("%q: %v", name, bad)
		}
	}
}

func TestDirectoriesAreNoDisks(t *testing.T) {
	c := clusterOf(newNode("a")).stocked(classOf("local", volumes.LocalProvisioner, volumes.WaitForFirstConsumer))
	p := newPod("p")
	for i := range maxGCEPD + 1 {
		name := fmt.Sprint("c", i)
		c.stocked(claimOf(name, "local", "1Gi"))
		claiming(name)(p)
	}
	if d := place(c, p); d.Node != "a" {
		t.Errorf("it goes to %q: %s", d.Node, d.Message)
	}
}
