package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/validation"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// nodeSelectorAnnotation of a namespace holds labels that nodes of its pods must carry, as in "env=test,infra=fedora".
	nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
	// defaultTolerationSeconds is how long a pod that says nothing of it stays on a node that is not ready or not
	// reachable.
	defaultTolerationSeconds = 300
	// defaultGraceSeconds is how long containers get to end.
	defaultGraceSeconds = 30
)

// Admission plugins that are in force.
const (
	defaultTolerationsPlugin = "DefaultTolerationSeconds"
	nodeConstraintsPlugin    = "PodNodeConstraints"
	nodeSelectorPlugin       = "PodNodeSelector"
)

// AdmissionView is everything that decides on a pod that is created.
type AdmissionView struct {
	Pod           *schedulingv1.Pod
	Namespace     *schedulingv1.Namespace // that the pod is created in; nil has no annotations
	Admission     *schedulingv1.AdmissionConfig
	Master        *schedulingv1.KubernetesMasterConfig
	Classes       []*schedulingv1.PriorityClass // those that are stored
	MayBind       bool                          // the user may create pods/binding in the namespace, as services may
	MayBeCritical bool                          // the user may use the system's priority class that the pod names
}

// Admission is the result for a pod. It is stored if neither Fields nor Forbidden says otherwise.
type Admission struct {
	Pod       *schedulingv1.Pod // with defaults
	Fields    []object.Fault    // that are wrong
	Forbidden string            // why the user may not create such a pod; empty if there is no objection
	Warnings  []string          // what is odd and yet accepted
}

// Allowed reports whether the pod is stored.
func (a Admission) Allowed() bool { return len(a.Fields) == 0 && a.Forbidden == "" }

// Reason says in one line why the pod is not stored.
func (a Admission) Reason() string {
	if a.Forbidden != "" {
		return a.Forbidden
	}
	var out []string
	for _, f := range a.Fields {
		out = append(out, f.String())
	}
	return strings.Join(out, "; ")
}

// Admit gives a pod its defaults and checks it. It does not modify v.
func Admit(v AdmissionView) Admission {
	out := Admission{Pod: proto.Clone(v.Pod).(*schedulingv1.Pod)}
	pod := out.Pod
	if pod.Spec == nil {
		pod.Spec = &schedulingv1.PodSpec{}
	}
	plugins := configured(v.Admission, v.Master)
	Default(pod.Spec)
	out.Forbidden = forbidden(plugins, v.Pod.GetSpec(), v.MayBind)
	if refusal := Reserved("spec.", pod.Spec, v.MayBeCritical); refusal != "" && out.Forbidden == "" {
		out.Forbidden = refusal
	}
	if refusal := selectNodes(plugins, v.Namespace, pod); refusal != "" && out.Forbidden == "" {
		out.Forbidden = refusal
	}
	if placement.IsDaemon(pod) {
		placement.TolerateAsDaemon(pod.Spec)
	}
	if disabled := plugins[defaultTolerationsPlugin].GetConfiguration().GetFields()["disable"].GetBoolValue(); !disabled {
		tolerateForAWhile(pod.Spec, v.Master)
	}
	out.Fields = Prioritize(v.Classes, pod.Spec)
	class := placement.QOSClass(pod.Spec)
	if class != placement.BestEffortClass {
		tolerateShortMemory(pod.Spec)
	}
	pod.Status = &schedulingv1.PodStatus{Phase: proto.String(placement.Pending), QosClass: class}
	fields, warnings := ValidateSpec("spec", pod.Spec)
	unforced, more := SpecNotInForce("spec", pod.Spec)
	out.Fields, out.Warnings = slices.Concat(out.Fields, fields, unforced), append(warnings, more...)
	return out
}

// AdmitUpdate checks the change of a pod by a user. The agents of nodes and this service write the rest.
func AdmitUpdate(old, pod *schedulingv1.Pod) Admission {
	out := Admission{Pod: pod}
	switch {
	case old.GetSpec().GetNodeName() != pod.GetSpec().GetNodeName():
		out.Fields = []object.Fault{{
			Path: "spec.nodeName", Description: "cannot be changed: a binding says where a pod runs",
		}}
	case !proto.Equal(old.GetStatus(), pod.GetStatus()):
		out.Forbidden = "the status of a pod is written by the agent of its node alone, through PodAgentService"
	}
	return out
}

// CheckPodUpdate returns what is wrong with a change of a pod, by any author. A binding is allowed.
func CheckPodUpdate(old, pod *schedulingv1.Pod) []object.Fault {
	was, is := old.GetSpec(), pod.GetSpec()
	if proto.Equal(was, is) {
		return nil
	}
	if was.GetNodeName() == "" && is.GetNodeName() != "" {
		bound := proto.CloneOf(was)
		bound.NodeName = is.GetNodeName()
		if proto.Equal(bound, is) {
			return nil
		}
	}
	if len(is.GetSchedulingGates()) < len(was.GetSchedulingGates()) {
		old = proto.CloneOf(old) // gates may be opened
		old.Spec.SchedulingGates = is.GetSchedulingGates()
	}
	bad := checkUpdate(old, pod)
	if was.ActiveDeadlineSeconds != nil &&
		(is.ActiveDeadlineSeconds == nil || is.GetActiveDeadlineSeconds() > was.GetActiveDeadlineSeconds()) {
		bad = append(bad, object.Fault{Path: "spec.activeDeadlineSeconds", Description: "can only become shorter"})
	}
	fields, _ := ValidateSpec("spec", is)
	return append(bad, fields...)
}

// Default fills in what a pod's spec leaves out, as templates get it too.
func Default(spec *schedulingv1.PodSpec) {
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, "Always")
	spec.SchedulerName = cmp.Or(spec.SchedulerName, DefaultScheduler)
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = proto.Int32(defaultGraceSeconds)
	}
	for _, c := range slices.Concat(spec.GetInitContainers(), spec.GetContainers()) {
		for _, p := range c.GetPorts() {
			p.Protocol = cmp.Or(p.Protocol, "TCP")
			if spec.GetHostNetwork() && p.HostPort == 0 {
				p.HostPort = p.ContainerPort
			}
		}
		for name, limit := range c.GetResources().GetLimits() {
			if _, ok := c.Resources.Requests[name]; ok {
				continue
			}
			if c.Resources.Requests == nil {
				c.Resources.Requests = map[string]*structpb.Value{}
			}
			c.Resources.Requests[name] = proto.Clone(limit).(*structpb.Value)
		}
	}
}

// tolerateForAWhile lets a pod stay for five minutes, or as the master's configuration says, on a node that is not
// ready or not reachable, unless it says itself what it bears then.
func tolerateForAWhile(spec *schedulingv1.PodSpec, master *schedulingv1.KubernetesMasterConfig) {
	for _, one := range []struct{ key, flag string }{
		{placement.NotReadyTaint, notReadySecondsFlag}, {placement.UnreachableTaint, unreachableSecondsFlag},
	} {
		key := one.key
		said := slices.ContainsFunc(spec.GetTolerations(), func(t *schedulingv1.Toleration) bool {
			return (t.GetKey() == "" || placement.TaintKey(t.GetKey()) == key) &&
				(t.GetEffect() == "" || t.GetEffect() == placement.NoExecute)
		})
		if !said {
			spec.Tolerations = append(spec.Tolerations, &schedulingv1.Toleration{
				Key: key, Operator: "Exists", Effect: placement.NoExecute,
				TolerationSeconds: proto.Int32(tolerationSeconds(master, one.flag)),
			})
		}
	}
}

// tolerateShortMemory lets a pod that is promised something go to nodes that are short of memory: these take from
// pods that are promised nothing. Source: taint nodes by condition.
func tolerateShortMemory(spec *schedulingv1.PodSpec) {
	if placement.Tolerates(spec.GetTolerations(), &nodev1.Taint{
		Key:    placement.MemoryPressureTaint,
		Effect: placement.NoSchedule,
	}) {
		return
	}
	spec.Tolerations = append(spec.Tolerations, &schedulingv1.Toleration{
		Key:      placement.MemoryPressureTaint,
		Operator: "Exists", Effect: placement.NoSchedule,
	})
}

// configured returns the plugins that are configured: those of the admission configuration, and those of the master's
// that it lacks.
func configured(a *schedulingv1.AdmissionConfig,
	m *schedulingv1.KubernetesMasterConfig,
) map[string]*schedulingv1.AdmissionPluginConfig {
	out := withFiles(a.GetAdmissionConfig().GetPluginConfig(), a.GetStatus().GetFiles())
	for name, p := range withFiles(m.GetKubernetesMasterConfig().GetAdmissionConfig().GetPluginConfig(),
		m.GetStatus().GetFiles()) {
		if _, ok := out[name]; !ok {
			out[name] = p
		}
	}
	return out
}

// CheckAdmission returns the wrong fields of what plugins are configured with, below path. A list that is misspelled
// would guard nothing.
func CheckAdmission(path string, plugins *schedulingv1.AdmissionPlugins) (fields []object.Fault) {
	of := func(plugin, field string) (*structpb.Value, func(below, description string)) {
		at := fmt.Sprintf("%s['%s'].configuration.%s", path, plugin, field)
		return plugins.GetPluginConfig()[plugin].GetConfiguration().GetFields()[field], func(below, description string) {
			fields = append(fields, object.Fault{Path: at + below, Description: description})
		}
	}
	v, bad := of(defaultTolerationsPlugin, "disable")
	if _, ok := v.GetKind().(*structpb.Value_BoolValue); v != nil && !ok {
		bad("", "must be true or false")
	}
	v, bad = of(nodeConstraintsPlugin, "nodeSelectorLabelBlacklist")
	if v != nil && v.GetListValue() == nil {
		bad("", "must be a list of labels")
	}
	for i, label := range v.GetListValue().GetValues() {
		if label.GetStringValue() == "" {
			bad(fmt.Sprintf("[%d]", i), "must be a label")
		}
	}
	v, bad = of(nodeSelectorPlugin, "podNodeSelectorPluginConfig")
	if v != nil && v.GetStructValue() == nil {
		bad("", "must be selectors by namespace")
	}
	selectors := v.GetStructValue().GetFields()
	for _, namespace := range slices.Sorted(maps.Keys(selectors)) {
		if _, ok := selectors[namespace].GetKind().(*structpb.Value_StringValue); !ok {
			bad("['"+namespace+"']", "must be a text such as region=west,env=test")
		} else if _, err := pairs(selectors[namespace].GetStringValue()); err != nil {
			bad("['"+namespace+"']", err.Error())
		}
	}
	return fields
}

// AdmissionNotInForce names what of a configuration is stored and has no effect: plugins that are not built, and files
// that plugins should read and that are not among those in force.
func AdmissionNotInForce(plugins *schedulingv1.AdmissionPlugins, files []*schedulingv1.AdmissionPluginFile) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(plugins.GetPluginConfig())) {
		location := plugins.GetPluginConfig()[name].GetLocation()
		switch {
		case !builtPlugin(name):
			out = append(out, name)
		case location != "" && fileOf(files, name, location).GetConfiguration() == nil:
			out = append(out, name+".location")
		}
	}
	return out
}

// Constrain says why a user may not create or change something with a template of pods, under the plugin
// PodNodeConstraints; empty if there is no objection. Pods themselves go through Admit.
func Constrain(a *schedulingv1.AdmissionConfig, m *schedulingv1.KubernetesMasterConfig, spec *schedulingv1.PodSpec,
	mayBind bool,
) string {
	return forbidden(configured(a, m), spec, mayBind)
}

// forbidden is PodNodeConstraints: who may not bind pods may not go around the scheduler by nodeName or by the labels
// of a list.
func forbidden(plugins map[string]*schedulingv1.AdmissionPluginConfig, spec *schedulingv1.PodSpec,
	mayBind bool,
) string {
	plugin, on := plugins[nodeConstraintsPlugin]
	if !on || mayBind {
		return ""
	}
	listed := []string{"kubernetes.io/hostname"}
	if list, ok := plugin.GetConfiguration().GetFields()["nodeSelectorLabelBlacklist"]; ok {
		listed = nil
		for _, v := range list.GetListValue().GetValues() {
			listed = append(listed, v.GetStringValue())
		}
	}
	var what []string
	if spec.GetNodeName() != "" {
		what = append(what, "spec.nodeName")
	}
	for _, key := range slices.Sorted(maps.Keys(spec.GetNodeSelector())) {
		if slices.Contains(listed, key) {
			what = append(what, "spec.nodeSelector['"+key+"']")
		}
	}
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: only who may create pods/binding in the namespace may set it, says %s",
		strings.Join(what, " and "), nodeConstraintsPlugin)
}

// selectNodes is PodNodeSelector: the labels of the namespace, or those for all namespaces that say nothing, are added
// to the pod's; all of them must be in the namespace's list if it has one. It returns why the pod is refused; empty if
// it is not.
func selectNodes(plugins map[string]*schedulingv1.AdmissionPluginConfig, namespace *schedulingv1.Namespace,
	pod *schedulingv1.Pod,
) string {
	plugin, on := plugins[nodeSelectorPlugin]
	if !on {
		return ""
	}
	selectors := plugin.GetConfiguration().GetFields()["podNodeSelectorPluginConfig"].GetStructValue().GetFields()
	text, own := namespace.GetMetadata().GetAnnotations()[nodeSelectorAnnotation]
	if !own {
		text = selectors["clusterDefaultNodeSelector"].GetStringValue()
	}
	wanted, err := pairs(text)
	if err != nil {
		return fmt.Sprintf("%s: the node selector %q cannot be read: %v", nodeSelectorPlugin, text, err)
	}
	merged := maps.Clone(pod.GetSpec().GetNodeSelector())
	if merged == nil {
		merged = map[string]string{}
	}
	for _, k := range slices.Sorted(maps.Keys(wanted)) {
		if have, ok := merged[k]; ok && have != wanted[k] {
			return fmt.Sprintf("spec.nodeSelector['%s']: is %q, but the namespace's node selector says %q", k, have, wanted[k])
		}
		merged[k] = wanted[k]
	}
	name := cmp.Or(namespace.GetMetadata().GetName(), pod.GetMetadata().GetNamespace())
	list, err := pairs(selectors[name].GetStringValue())
	if err != nil {
		return fmt.Sprintf("%s: the labels permitted in namespace %q cannot be read: %v", nodeSelectorPlugin, name, err)
	}
	if len(list) > 0 {
		for _, k := range slices.Sorted(maps.Keys(merged)) {
			if v, ok := list[k]; !ok || v != merged[k] {
				return fmt.Sprintf("spec.nodeSelector['%s']: %s=%s is not among the labels that namespace %q permits: %s", k, k,
					merged[k], name, selectors[name].GetStringValue())
			}
		}
	}
	if len(merged) > 0 {
		pod.Spec.NodeSelector = merged
	}
	return ""
}

// pairs reads "k=v,k=v"; blanks around them do not count.
func pairs(text string) (map[string]string, error) {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not key=value", strings.TrimSpace(part))
		}
		out[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	return out, nil
}

// ValidateSpec returns the wrong fields of a pod's spec, or of a template's, below path, and what is odd and yet
// accepted.
func ValidateSpec(path string, spec *schedulingv1.PodSpec) (fields []object.Fault, warnings []string) {
	bad := func(field, description string) {
		fields = append(fields, object.Fault{Path: path + field, Description: description})
	}
	if len(spec.GetContainers()) == 0 {
		bad(".containers", "must have at least one container")
	}
	switch p := spec.GetRestartPolicy(); p {
	case "", "Always", "OnFailure", "Never":
	default:
		bad(".restartPolicy", fmt.Sprintf("must be Always, OnFailure or Never, not %q", p))
	}
	volumes := map[string]bool{}
	for i, v := range spec.GetVolumes() {
		if volumes[v.GetName()] {
			bad(fmt.Sprintf(".volumes[%d].name", i), fmt.Sprintf("there is another volume %q", v.GetName()))
		}
		volumes[v.GetName()] = true
		if v.GetPersistentVolumeClaim() != nil {
			for _, why := range validation.IsDNS1123Subdomain(v.GetPersistentVolumeClaim().GetClaimName()) {
				bad(fmt.Sprintf(".volumes[%d].persistentVolumeClaim.claimName", i), why)
			}
		}
	}
	names := map[string]bool{}
	for i, c := range spec.GetInitContainers() {
		validateContainer(fmt.Sprintf(".initContainers[%d]", i), c, names, volumes, bad)
	}
	for i, c := range spec.GetContainers() {
		validateContainer(fmt.Sprintf(".containers[%d]", i), c, names, volumes, bad)
	}
	for _, k := range slices.Sorted(maps.Keys(spec.GetNodeSelector())) {
		for _, why := range slices.Concat(validation.IsQualifiedName(k),
			validation.IsValidLabelValue(spec.GetNodeSelector()[k])) {
			bad(".nodeSelector['"+k+"']", why)
		}
	}
	if n := spec.GetNodeName(); n != "" {
		for _, why := range validation.IsDNS1123Subdomain(n) {
			bad(".nodeName", why)
		}
	}
	tolerations, warnings := placement.ValidateTolerations(path+".tolerations", spec.GetTolerations())
	affinity := spec.GetAffinity()
	return slices.Concat(fields, tolerations, dnsFaults(path, spec),
		placement.ValidateNodeAffinity(path+".affinity.nodeAffinity", affinity.GetNodeAffinity()),
		validatePodAffinity(path+".affinity.podAffinity",
			affinity.GetPodAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution(),
			affinity.GetPodAffinity().GetPreferredDuringSchedulingIgnoredDuringExecution()),
		validatePodAffinity(path+".affinity.podAntiAffinity",
			affinity.GetPodAntiAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution(),
			affinity.GetPodAntiAffinity().GetPreferredDuringSchedulingIgnoredDuringExecution()),
		validateSpread(path+".topologySpreadConstraints", spec.GetTopologySpreadConstraints()),
		placement.ValidateQuantities(path, spec), placement.ValidatePorts(path, spec),
	), warnings
}

func validateContainer(at string, c *schedulingv1.Container, names, volumes map[string]bool,
	bad func(field, description string),
) {
	for _, why := range validation.IsDNS1123Label(c.GetName()) {
		bad(at+".name", why)
	}
	if names[c.GetName()] {
		bad(at+".name", fmt.Sprintf("there is another container %q", c.GetName()))
	}
	names[c.GetName()] = true
	if c.GetImage() == "" && len(c.GetCommand()) == 0 {
		bad(at+".image", "must be given, or else a command")
	}
	paths := map[string]bool{}
	for i, m := range c.GetVolumeMounts() {
		mount := fmt.Sprintf("%s.volumeMounts[%d]", at, i)
		if !volumes[m.GetName()] {
			bad(mount+".name", fmt.Sprintf("there is no volume %q", m.GetName()))
		}
		if m.GetMountPath() == "" {
			bad(mount+".mountPath", "must be given")
		} else if paths[m.GetMountPath()] {
			bad(mount+".mountPath", "there is another mount at "+m.GetMountPath())
		}
		paths[m.GetMountPath()] = true
	}
}

func validatePodAffinity(path string, required []*schedulingv1.PodAffinityTerm,
	preferred []*schedulingv1.WeightedPodAffinityTerm,
) (fields []object.Fault) {
	term := func(at string, t *schedulingv1.PodAffinityTerm) {
		if t.GetTopologyKey() == "" {
			fields = append(fields,
				object.Fault{
					Path:        at + ".topologyKey",
					Description: "must be given: the label that says which nodes are near each other",
				})
		}
		_, wrong := object.LabelSelector(t.GetLabelSelector(), at+".labelSelector")
		fields = append(fields, wrong...)
	}
	for i, t := range required {
		term(fmt.Sprintf("%s.requiredDuringSchedulingIgnoredDuringExecution[%d]", path, i), t)
	}
	for i, t := range preferred {
		at := fmt.Sprintf("%s.preferredDuringSchedulingIgnoredDuringExecution[%d]", path, i)
		if w := t.GetWeight(); w < 1 || w > 100 {
			fields = append(fields, object.Fault{Path: at + ".weight", Description: "must be 1 to 100"})
		}
		term(at+".podAffinityTerm", t.GetPodAffinityTerm())
	}
	return fields
}

// checkUpdate returns the wrong fields of a change of a pod that exists: of its spec only images, activeDeadlineSeconds
// and tolerations may change, and nodeName once, when the pod is bound.
func checkUpdate(before, after *schedulingv1.Pod) []object.Fault {
	x, y := proto.Clone(before.GetSpec()).(*schedulingv1.PodSpec), proto.Clone(after.GetSpec()).(*schedulingv1.PodSpec)
	if x == nil || y == nil {
		return nil
	}
	if x.NodeName == "" {
		y.NodeName = ""
	}
	x.Tolerations, x.ActiveDeadlineSeconds = y.Tolerations, y.ActiveDeadlineSeconds
	images := func(from, to []*schedulingv1.Container) {
		for i := range min(len(from), len(to)) {
			to[i].Image = from[i].GetImage()
		}
	}
	images(y.GetContainers(), x.GetContainers())
	images(y.GetInitContainers(), x.GetInitContainers())
	if proto.Equal(x, y) {
		return nil
	}
	return []object.Fault{
		{
			Path:        "spec",
			Description: "only images, activeDeadlineSeconds and tolerations of a pod may change: delete it and make another",
		},
	}
}

// InForce returns the condition of a policy or a configuration that says whether all of it is in force.
func InForce(notBuilt []string) *metav1.Condition {
	if len(notBuilt) == 0 {
		return &metav1.Condition{Type: "InForce", Status: "True", Reason: proto.String("AllInForce")}
	}
	return &metav1.Condition{
		Type: "InForce", Status: "False", Severity: "Warning", Reason: proto.String("NotInForce"),
		Message: proto.String("stored and not in force: " + strings.Join(notBuilt, ", ")),
	}
}
