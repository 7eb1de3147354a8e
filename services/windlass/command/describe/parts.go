package describe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/trace"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/event"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/hooktask"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// identity prints the fields that every object has.
func (d *describer) identity() {
	m := d.Object.GetMetadata()
	d.line("Name", m.GetName())
	if d.Kind.GetNamespaced() {
		d.line("Namespace", m.GetNamespace())
	}
	d.line("Labels", mapLines(m.GetLabels()))
	notes := maps.Clone(m.GetAnnotations())
	maps.DeleteFunc(notes, func(name, _ string) bool { return strings.HasPrefix(name, object.AppliedPrefix) })
	d.line("Annotations", mapLines(notes))
	d.line("API Version", d.Kind.APIVersion())
	d.line("Kind", d.Kind.GetKind())
	d.line("Created", ago(m.GetCreationTimestamp()))
	if t := m.GetDeletionTimestamp(); t != nil {
		d.line("Deleting since", ago(t))
	}
	for _, o := range m.GetOwnerReferences() {
		label := "Owned By"
		if o.GetController() {
			label = "Controlled By"
		}
		d.line(label, o.GetKind()+"/"+o.GetName())
	}
	d.optional("Finalizers", strings.Join(m.GetFinalizers(), "\n"))
}

func mapLines(m map[string]string) string {
	if len(m) == 0 {
		return table.None
	}
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+v)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// ago returns a time and its age.
func ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return table.None
	}
	return fmt.Sprintf("%s (%s ago)", t.AsTime().Format(time.RFC3339), table.Age(t, time.Now()))
}

func number(n *int32) string {
	if n == nil {
		return "<unset>"
	}
	return fmt.Sprint(*n)
}

// rows prints a table below a heading.
func (d *describer) rows(heading string, rows [][]string) {
	if len(rows) < 2 {
		d.line(heading, table.None)
		return
	}
	d.heading(heading)
	_ = table.NewIndented(d.out, "  ").Print(rows...) // the reader of the output has gone, so the error cannot be reported
}

// yaml prints a message below a heading.
func (d *describer) yaml(heading string, m proto.Message) {
	if m == nil || !m.ProtoReflect().IsValid() || proto.Size(m) == 0 {
		return
	}
	text, err := manifest.YAML(m)
	if err != nil {
		d.line(heading, "<"+err.Error()+">")
		return
	}
	d.heading(heading)
	for _, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		fmt.Fprintln(d.out, "  "+line)
	}
}

func (d *describer) conditions(list []*metav1.Condition) {
	rows := [][]string{{"TYPE", "STATUS", "SEVERITY", "REASON", "AGE", "MESSAGE"}}
	for _, c := range list {
		rows = append(rows, []string{
			c.GetType(), c.GetStatus(), c.GetSeverity(), c.GetReason(),
			table.Age(c.GetLastTransitionTime(), time.Now()), c.GetMessage(),
		})
	}
	d.rows("Conditions", rows)
}

func (d *describer) nodeConditions(list []*nodev1.NodeCondition) {
	rows := [][]string{{"TYPE", "STATUS", "REASON", "AGE", "MESSAGE"}}
	for _, c := range list {
		rows = append(rows, []string{
			c.GetType(), c.GetStatus(), c.GetReason(),
			table.Age(c.GetLastTransitionTime(), time.Now()), c.GetMessage(),
		})
	}
	d.rows("Conditions", rows)
}

func (d *describer) hooks(h *machinev1.LifecycleHooks) {
	rows := [][]string{{"POINT", "NAME", "OWNER"}}
	for _, p := range hooktask.Points(h) {
		for _, hook := range p.Hooks {
			rows = append(rows, []string{p.Name, hook.GetName(), hook.GetOwner()})
		}
	}
	d.rows("Lifecycle Hooks", rows)
}

func addressLines(list []*nodev1.NodeAddress) string {
	lines := make([]string, len(list))
	for i, a := range list {
		lines[i] = a.GetType() + ": " + a.GetAddress()
	}
	return table.OrNone(strings.Join(lines, "\n"))
}

func quantityLines(m map[string]*structpb.Value) string {
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+": "+manifest.Format(m[k].AsInterface()))
	}
	return table.OrNone(strings.Join(lines, "\n"))
}

// machineTemplate prints the template for new machines of a set.
func (d *describer) machineTemplate(meta *metav1.ObjectMeta, spec *machinev1.MachineSpec) {
	d.heading("Machine Template")
	inner := *d
	inner.out = &printer.Indenting{Out: d.out, Prefix: "  "}
	inner.line("Labels", mapLines(meta.GetLabels()))
	inner.optional("Annotations", strings.TrimPrefix(mapLines(meta.GetAnnotations()), table.None))
	inner.line("Node labels", mapLines(spec.GetMetadata().GetLabels()))
	inner.line("Node taints", printer.Taints(spec.GetTaints()))
	inner.hooks(spec.GetLifecycleHooks())
	inner.yaml("Provider Spec", spec.GetProviderSpec().GetValue())
}

// ownMachines lists the machines that the object owns.
func (d *describer) ownMachines(describe string) {
	k, err := client.FindKind("machine")
	if err != nil {
		return
	}
	list, _, err := d.client.List(d.ctx, k, client.Selection{Namespace: d.Namespace()})
	if err != nil {
		d.line(describe, "<"+shortError(err)+">")
		return
	}
	rows := [][]string{{"NAME", "PHASE", "NODE", "ZONE", "AGE"}}
	for _, o := range list {
		m := o.(*machinev1.Machine)
		for _, r := range m.GetMetadata().GetOwnerReferences() {
			if r.GetUid() == d.Object.GetMetadata().GetUid() {
				rows = append(rows, []string{
					m.GetMetadata().GetName(), m.GetStatus().GetPhase(), m.GetStatus().GetNodeRef().GetName(),
					m.GetMetadata().GetLabels()["machine.openshift.io/zone"], table.Age(m.GetMetadata().GetCreationTimestamp(),
						time.Now()),
				})
			}
		}
	}
	d.rows(describe, rows)
}

// planned prints what a plan would do.
func (d *describer) planned(heading string, actions []*metav1.PlannedAction) {
	if len(actions) == 0 {
		return
	}
	rows := [][]string{{"ACTION", "OBJECT", "REASON"}}
	for _, a := range actions {
		rows = append(rows, []string{a.GetAction(), printer.Reference(a.GetObject()), a.GetReason()})
	}
	d.rows(heading, rows)
}

func (d *describer) heldBack(list []*metav1.HeldBack) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"ACTION", "OBJECT", "SINCE", "REASON", "UNBLOCKED BY"}}
	for _, h := range list {
		rows = append(rows, []string{
			h.GetAction(), printer.Reference(h.GetObject()), table.Age(h.GetSinceTime(), time.Now()), h.GetReason(),
			h.GetUnblock(),
		})
	}
	d.rows("Held back", rows)
}

// freely prints spec and status of a kind without a describe function, as YAML.
func (d *describer) freely() {
	r := d.Object.ProtoReflect()
	for i := range r.Descriptor().Fields().Len() {
		f := r.Descriptor().Fields().Get(i)
		switch {
		case f.Name() == "metadata" || f.Name() == "api_version" || f.Name() == "kind" || !r.Has(f):
		case f.Message() != nil && !f.IsList() && !f.IsMap():
			d.yaml(strings.ToUpper(f.JSONName()[:1])+f.JSONName()[1:], r.Get(f).Message().Interface())
		default:
			v, _ := manifest.Lookup(d.Object, f.JSONName())
			d.line(strings.ToUpper(f.JSONName()[:1])+f.JSONName()[1:], manifest.Format(v))
		}
	}
}

// events prints the object's events, the newest last.
func (d *describer) events() {
	if _, ok := d.Object.(*eventv1.Event); ok {
		return
	}
	list, err := event.Of(d.ctx, d.client, d.Object)
	if err != nil {
		d.line("Events", "<"+shortError(err)+">")
		return
	}
	traced := slices.ContainsFunc(list, func(ev *eventv1.Event) bool { return traceOf(ev) != "" })
	row := func(ev []string, trace string) []string {
		if traced {
			ev = append(ev, trace)
		}
		return ev
	}
	rows := [][]string{row([]string{"TYPE", "REASON", "AGE", "FROM", "MESSAGE"}, "TRACE")}
	for _, ev := range list {
		rows = append(rows, row([]string{ev.GetType(), ev.GetReason(), eventAge(ev), source(ev), ev.GetMessage()},
			traceOf(ev)))
	}
	d.rows("Events", rows)
}

// eventAge returns the age of an event in kubectl's form: "3s (x4 over 2m)".
func eventAge(ev *eventv1.Event) string {
	last := table.Age(ev.GetLastTimestamp(), time.Now())
	if ev.GetCount() < 2 || ev.GetFirstTimestamp() == nil {
		return last
	}
	return fmt.Sprintf("%s (x%d over %s)", last, ev.GetCount(),
		duration.HumanDuration(time.Since(ev.GetFirstTimestamp().AsTime())))
}

// traceOf returns the trace ID of an event; "" if traces are not exported.
func traceOf(ev *eventv1.Event) string {
	return ev.GetMetadata().GetAnnotations()[trace.EventAnnotation]
}

func source(ev *eventv1.Event) string {
	return cmp.Or(ev.GetSource().GetComponent(), ev.GetReportingComponent())
}

// shortError returns an error in one line.
func shortError(err error) string {
	first, _, _ := strings.Cut(failure.Describe(err), "\n")
	return first
}
