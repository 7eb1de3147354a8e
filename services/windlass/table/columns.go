package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
)

// Options say what a table of objects shows.
type Options struct {
	Wide      bool             // also the columns that only `-o wide` shows
	Namespace bool             // a first column with the namespace
	Qualified bool             // names with their kind, "machine.machine.openshift.io/a"
	Labels    bool             // a last column with all labels
	LabelKeys []string         // a column for each of these labels
	Now       func() time.Time // the clock; nil means time.Now
}

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// unnamed reports whether the column NAME of a kind is shown only with -o wide: names of events mean nothing to users.
func unnamed(t *metav1.ResourceType) bool { return t.GetKind() == "Event" }

// Header returns the headings of a kind's table.
func (o Options) Header(t *metav1.ResourceType) []string {
	var row []string
	if o.Namespace && t.GetNamespaced() {
		row = append(row, "NAMESPACE")
	}
	if !unnamed(t) {
		row = append(row, "NAME")
	}
	for _, c := range o.columns(t) {
		row = append(row, c.GetName())
	}
	if unnamed(t) && o.Wide {
		row = append(row, "NAME")
	}
	for _, key := range o.LabelKeys {
		row = append(row, strings.ToUpper(key[strings.LastIndex(key, "/")+1:]))
	}
	if o.Labels {
		row = append(row, "LABELS")
	}
	return row
}

func (o Options) columns(t *metav1.ResourceType) []*metav1.Column {
	return slices.DeleteFunc(slices.Clone(t.GetColumns()), func(c *metav1.Column) bool { return c.GetWide() && !o.Wide })
}

// Row returns the cells of an object.
func (o Options) Row(t *metav1.ResourceType, obj object.Object) []string {
	m := obj.GetMetadata()
	name := m.GetName()
	if o.Qualified {
		name = QualifiedName(t, name)
	}
	var row []string
	if o.Namespace && t.GetNamespaced() {
		row = append(row, m.GetNamespace())
	}
	if !unnamed(t) {
		row = append(row, name)
	}
	for _, c := range o.columns(t) {
		row = append(row, cell(obj, c, o.now()))
	}
	if unnamed(t) && o.Wide {
		row = append(row, name)
	}
	for _, key := range o.LabelKeys {
		row = append(row, m.GetLabels()[key])
	}
	if o.Labels {
		row = append(row, Labels(m.GetLabels()))
	}
	return row
}

// QualifiedName returns an object's name with its kind: "machine.machine.openshift.io/a", "node/a".
func QualifiedName(t *metav1.ResourceType, name string) string {
	if t.GetGroup() == "" {
		return t.GetSingular() + "/" + name
	}
	return t.GetSingular() + "." + t.GetGroup() + "/" + name
}

// Labels returns labels in one line, <none> if there are none.
func Labels(labels map[string]string) string {
	if len(labels) == 0 {
		return None
	}
	list := make([]string, 0, len(labels))
	for k, v := range labels {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

// What kubectl prints for values that are not there.
const (
	None    = "<none>"
	unknown = "<unknown>"
)

// OrNone returns s, or None where there is nothing.
func OrNone(s string) string { return cmp.Or(s, None) }

func cell(obj object.Object, c *metav1.Column, now time.Time) string {
	switch o := obj.(type) {
	case *machinev1.Machine:
		return machineCell(o, c, now)
	case *nodev1.Node:
		return nodeCell(o, c, now)
	case *schedulingv1.Pod:
		return podCell(o, c, now)
	case *schedulingv1.Deployment:
		return deploymentCell(o, c, now)
	case *schedulingv1.StatefulSet:
		return statefulSetCell(o, c, now)
	case *schedulingv1.DaemonSet:
		return daemonSetCell(o, c, now)
	case *schedulingv1.Job:
		return jobCell(o, c, now)
	case *schedulingv1.CronJob:
		return cronJobCell(o, c, now)
	case *schedulingv1.Service:
		return serviceCell(o, c, now)
	case *schedulingv1.PodDisruptionBudget:
		return budgetCell(o, c, now)
	case *schedulingv1.PersistentVolume:
		return volumeCell(o, c, now)
	case *schedulingv1.PersistentVolumeClaim:
		return claimCell(o, c, now)
	case *schedulingv1.StorageClass:
		return storageClassCell(o, c, now)
	case *schedulingv1.ConfigMap:
		return dataCell(o, len(o.GetData())+len(o.GetBinaryData()), c, now)
	case *schedulingv1.Secret:
		return dataCell(o, len(o.GetData()), c, now)
	case *updatev1.ClusterVersion:
		return clusterVersionCell(o, c, now)
	case *updatev1.ClusterOperator:
		return clusterOperatorCell(o, c, now)
	}
	return generic(obj, c, now)
}

func generic(obj object.Object, c *metav1.Column, now time.Time) string {
	if c.GetPath() == "" && c.GetName() == "AGE" {
		return Age(obj.GetMetadata().GetCreationTimestamp(), now)
	}
	v, ok := manifest.Lookup(obj, c.GetPath())
	if !ok {
		return ""
	}
	switch v := v.(type) {
	case *timestamppb.Timestamp:
		if ahead := v.AsTime().Sub(now); ahead > skew {
			return "in " + duration.HumanDuration(ahead)
		}
		return Age(v, now)
	case reference:
		return shown(v)
	case []any:
		var list []string
		for _, element := range v {
			if r, ok := element.(reference); ok {
				list = append(list, shown(r))
			}
		}
		if len(list) > 0 {
			return strings.Join(list, ",")
		}
	}
	return manifest.Format(v)
}

// reference is a message that names something by its kind, such as an ObjectReference or a subject of a binding.
type reference interface {
	GetKind() string
	GetName() string
}

func shown(r reference) string { return strings.ToLower(r.GetKind()) + "/" + r.GetName() }

// machineCell has who requested a machine's deletion, and why, in one cell, as describe shows them.
func machineCell(m *machinev1.Machine, c *metav1.Column, now time.Time) string {
	d := m.GetStatus().GetDeletion()
	if c.GetName() != "DELETED-BY" || d == nil {
		return generic(m, c, now)
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", d.GetTrigger(), d.GetRequestedBy(), d.GetReason()), ": ")
}

func nodeCell(n *nodev1.Node, c *metav1.Column, now time.Time) string {
	switch c.GetName() {
	case "STATUS":
		return NodeStatus(n)
	case "ROLES":
		return NodeRoles(n)
	}
	v := generic(n, c, now)
	switch {
	case v != "":
		return v
	case c.GetName() == "INTERNAL-IP":
		return None
	case c.GetWide():
		return unknown
	}
	return ""
}

// NodeStatus returns a node's state in the words of kubectl: "Ready,SchedulingDisabled".
func NodeStatus(n *nodev1.Node) string {
	state := "Unknown"
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() != "Ready" {
			continue
		}
		state = "NotReady"
		if c.GetStatus() == "True" {
			state = "Ready"
		}
	}
	if n.GetSpec().GetUnschedulable() {
		state += ",SchedulingDisabled"
	}
	return state
}

// NodeRoles returns a node's roles, which its labels say.
func NodeRoles(n *nodev1.Node) string {
	var roles []string
	for k, v := range n.GetMetadata().GetLabels() {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		} else if k == "kubernetes.io/role" && v != "" {
			roles = append(roles, v)
		}
	}
	if len(roles) == 0 {
		return None
	}
	slices.Sort(roles)
	return strings.Join(slices.Compact(roles), ",")
}

// Age returns the time since t in kubectl's form: "5m3s".
func Age(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return unknown
	}
	return since(t.AsTime(), now)
}

// skew is by how much the clock of a service may be ahead of ours before its times count as times to come.
// HumanDuration allows as much.
const skew = 2 * time.Second

func since(t, now time.Time) string { return duration.HumanDuration(now.Sub(t)) }
