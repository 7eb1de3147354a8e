package plan

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// mounting gives a pod a volume; fields are those of its source.
func mounting(kind string, fields map[string]any) func(*schedulingv1.Pod) {
	source, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return func(p *schedulingv1.Pod) {
		v := &schedulingv1.Volume{Name: fmt.Sprint("v", len(p.Spec.Volumes))}
		switch kind {
		case ebs:
			v.AwsElasticBlockStore = source
		case gcePD:
			v.GcePersistentDisk = source
		case azureDisk:
			v.AzureDisk = source
		case iscsiDisk:
			v.Iscsi = source
		case rbdDisk:
			v.Rbd = source
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
}

func TestWhichDisksConflict(t *testing.T) {
	type fields = map[string]any
	device := func(pool, image string, monitors ...any) fields {
		return fields{"pool": pool, "image": image, "monitors": monitors, "readOnly": false}
	}
	tests := []struct {
		name     string
		kind     string
		one, two fields
		want     bool
	}{
		{"an EBS volume twice", ebs, fields{"volumeID": "a"}, fields{"volumeID": "a"}, true},
		{
			"an EBS volume twice, read-only", ebs,
			fields{"volumeID": "a", "readOnly": true},
			fields{"volumeID": "a", "readOnly": true},
			true,
		},
		{"two EBS volumes", ebs, fields{"volumeID": "a"}, fields{"volumeID": "b"}, false},
		{"a GCE disk twice", gcePD, fields{"pdName": "a"}, fields{"pdName": "a"}, true},
		{"a GCE disk that one reads", gcePD, fields{"pdName": "a", "readOnly": true}, fields{"pdName": "a"}, true},
		{
			"a GCE disk that both read", gcePD,
			fields{"pdName": "a", "readOnly": true},
			fields{"pdName": "a", "readOnly": true},
			false,
		},
		{"an Azure disk twice", azureDisk, fields{"diskName": "a"}, fields{"diskName": "a"}, false},
		{"two units of an iSCSI target", iscsiDisk, fields{"iqn": "a", "lun": 0}, fields{"iqn": "a", "lun": 1}, true},
		{
			"an iSCSI target that both read", iscsiDisk,
			fields{"iqn": "a", "readOnly": true},
			fields{"iqn": "a", "readOnly": true},
			false,
		},
		{"an image with a common monitor", rbdDisk, device("p", "i", "m1", "m2"), device("p", "i", "m2", "m3"), true},
		{"an image of two clusters", rbdDisk, device("p", "i", "m1"), device("p", "i", "m2"), false},
		{"images of two pools", rbdDisk, device("p", "i", "m1"), device("q", "i", "m1"), false},
		{"an image of the default pool", rbdDisk, device("", "i", "m1"), device("rbd", "i", "m1"), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			runs := newPod("runs", on("a"), mounting(tt.kind, tt.one))
			got := place(clusterOf(newNode("a")).with(runs), newPod("p", mounting(tt.kind, tt.two)))
			if is := got.Node == ""; is != tt.want {
				t.Fatalf("conflict %v, want %v: %s", is, tt.want, got.Message)
			}
			if tt.want && (got.Predicates["NoDiskConflict"] != 1 || !strings.Contains(got.Message,
				"1 node(s) had no available disk")) {
				t.Errorf("message %q, predicates %v", got.Message, got.Predicates)
			}
			elsewhere := place(clusterOf(newNode("a"), newNode("b")).with(runs), newPod("p", mounting(tt.kind, tt.two)))
			if elsewhere.Node == "" {
				t.Errorf("another node does not fit either: %s", elsewhere.Message)
			}
		})
	}
}

// Nothing of a node but the disks themselves limits how many fit, and each kind has its own limit.
func TestANodeHasOnlySoManyDisksAttached(t *testing.T) {
	for _, tt := range []struct {
		kind, field, resource, rule string
		most                        int
	}{
		{ebs, "volumeID", "attachable-volumes-aws-ebs", "MaxEBSVolumeCount", 39},
		{gcePD, "pdName", "attachable-volumes-gce-pd", "MaxGCEPDVolumeCount", 16},
		{azureDisk, "diskName", "attachable-volumes-azure-disk", "MaxAzureDiskVolumeCount", 16},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			disks := func(ids ...int) (out []func(*schedulingv1.Pod)) {
				for _, id := range ids {
					out = append(out, mounting(tt.kind, map[string]any{tt.field: fmt.Sprint("d", id), "readOnly": true}))
				}
				return out
			}
			full := newPod("full", on("a"))
			for i := range tt.most {
				disks(i)[0](full)
			}
			stating := func(n string) func(*nodev1.Node) { return having(tt.resource, n) }
			for name, check := range map[string]struct {
				node *nodev1.Node
				pod  *schedulingv1.Pod
				want string
			}{
				"one more":                     {newNode("a"), newPod("p", disks(1000)...), ""},
				"no such disk":                 {newNode("a"), newPod("p"), "a"},
				"one more where it is allowed": {newNode("a", stating("100")), newPod("p", disks(1000)...), "a"},
				"one more of none":             {newNode("a", stating("0")), newPod("p", disks(1000)...), ""},
			} {
				got := place(clusterOf(check.node).with(full), check.pod)
				if got.Node != check.want || check.want == "" && got.Predicates[tt.rule] != 1 {
					t.Errorf("%s: node %q, want %q: %s", name, got.Node, check.want, got.Message)
				}
			}
			last := newPod("full", on("a"))
			for i := range tt.most - 1 {
				disks(i)[0](last)
			}
			if got := place(clusterOf(newNode("a")).with(last), newPod("p", disks(1000)...)); got.Node != "a" {
				t.Errorf("the last disk does not fit: %s", got.Message)
			}
			if got := place(clusterOf(newNode("a")).with(last), newPod("p", disks(1000, 1001)...)); got.Node != "" {
				t.Error("two disks fit where there is room for one")
			}
		})
	}
}

func TestTheOperatorLimitsDisks(t *testing.T) {
	disk := func(id string) func(*schedulingv1.Pod) { return mounting(ebs, map[string]any{"volumeID": id}) }
	runs := newPod("runs", on("a"), disk("x"), disk("y"))
	for _, tt := range []struct {
		name string
		most int
		node *nodev1.Node
		want string
	}{
		{"no limit of the operator", 0, newNode("a"), "a"},
		{"one more than there are", 3, newNode("a"), "a"},
		{"as many as there are", 2, newNode("a"), ""},
		{"the node states more", 2, newNode("a", having("attachable-volumes-aws-ebs", "5")), "a"},
		{"the node states less", 5, newNode("a", having("attachable-volumes-aws-ebs", "2")), ""},
	} {
		var turn uint64
		got := placeAll(clusterOf(tt.node).with(runs), Limited(Policy(nil), tt.most),
			[]*schedulingv1.Pod{newPod("p", disk("z"))}, &turn)[0]
		if got.Node != tt.want {
			t.Errorf("%s: node %q, want %q: %s", tt.name, got.Node, tt.want, got.Message)
		}
	}
}

func TestADiskThatTwoPodsReadCountsOnce(t *testing.T) {
	shared := mounting(gcePD, map[string]any{"pdName": "shared", "readOnly": true})
	node := newNode("a", having("attachable-volumes-gce-pd", "1"))
	if got := place(clusterOf(node).with(newPod("runs", on("a"), shared)), newPod("p", shared)); got.Node != "a" {
		t.Errorf("the pod stays pending: %s", got.Message)
	}
}

func TestExplainSaysWhichPodHasTheDisk(t *testing.T) {
	d := mounting(gcePD, map[string]any{"pdName": "data"})
	c := clusterOf(newNode("a", having("attachable-volumes-gce-pd", "0"))).with(
		newPod("second", on("a"), d), newPod("first", on("a"), d))
	failures := Explain(c, Policy(nil), newPod("p", d, mounting(gcePD, map[string]any{"pdName": "more"})), 0).
		GetNodes()[0].GetFailures()
	if len(failures) != 2 {
		t.Fatalf("failures: %v", failures)
	}
	if f := failures[0]; f.GetPart() != "NoDiskConflict" ||
		f.GetReason() != `node(s) had no available disk: gcePersistentDisk "data" is mounted by pod default/first` ||
		f.GetUnblock() != "pod default/first leaves the node" {
		t.Errorf("disk conflict: %v", f)
	}
	if f := failures[1]; f.GetPart() != "MaxGCEPDVolumeCount" || f.GetResource() != "attachable-volumes-gce-pd" ||
		f.GetReason() != "node(s) exceed max volume count: asked 1 more, attached 1 of at most 0" || f.GetAsked() != "1" ||
		f.GetFree() != "0" {
		t.Errorf("limit: %v", f)
	}
}

// Pods of one batch count for each other, and a pod that leaves gives its disk back.
func TestADiskIsFreeOnceItsPodLeaves(t *testing.T) {
	d := mounting(ebs, map[string]any{"volumeID": "data"})
	c := clusterOf(newNode("a"))
	var turn uint64
	p := Policy(nil)
	got := placeAll(c, p, []*schedulingv1.Pod{newPod("p", d), newPod("q", d)}, &turn)
	if got[0].Node != "a" || got[1].Node != "" {
		t.Fatalf("nodes %q and %q, want one of the two pods on a", got[0].Node, got[1].Node)
	}
	c.RemovePod("default", "p")
	if got := placeAll(c, p, []*schedulingv1.Pod{newPod("q", d)}, &turn); got[0].Node != "a" {
		t.Errorf("the pod stays pending: %s", got[0].Message)
	}
	if wakers(Decision{Predicates: map[string]int{"NoDiskConflict": 1}})&podLeft == 0 {
		t.Error("the pod is not retried when a pod leaves")
	}
}
