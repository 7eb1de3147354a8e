package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	"github.com/windlass-dev/windlass/services/scheduler/placement/view"
)

// Nodes is a copy of all nodes.
type Nodes interface {
	All() []*nodev1.Node
	HasNode(name string) bool
	// Speaks returns nil if the caller is the agent of the node.
	Speaks(ctx context.Context, name string) error
	// Synced is closed once all nodes are known.
	IsSynced() bool
	// WaitRevision waits until all changes of nodes up to a revision are known here.
	WaitRevision(ctx context.Context, revision int64) error
}

// maxNodes and maxPods bound the objects that a request may bring: twice the cluster that is aimed at.
const (
	maxNodes = 10_000
	maxPods  = 20_000
)

// ExplainPod says for each node which predicates a pod fails and why, and what each priority makes of it.
func (s *Pods) ExplainPod(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.ExplainPodResponse,
	error,
) {
	out, err := s.evaluate(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.GetSummaryOnly() {
		out.Nodes = nil
	}
	return out, nil
}

// evaluate answers a request by the state of the leader, or by a copy of it if something of that is to be different or
// this process does not lead.
func (s *Pods) evaluate(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.ExplainPodResponse,
	error,
) {
	in, err := s.asked(ctx, r)
	if err != nil {
		return nil, err
	}
	alike := !given(r) && len(r.GetWithoutNodes())+len(r.GetNodeLabels()) == 0 // to the live cluster
	if alike {
		if out, leads, err := s.evaluateLive(ctx, r, in); leads || err != nil {
			return out, err
		}
	}
	revision := s.Tables.Pods.Revision()
	if in.cluster, in.pods, err = s.clusterOf(ctx, r); err != nil {
		return nil, err
	}
	out := plan.ExplainAnswered(in.cluster, in.profile, in.pod, 0, s.inquire(ctx, r, in))
	if name := plan.SchedulerOf(in.pod); in.profiles.AwaitsOther(in.pod) {
		out.Best, out.Refused = "", plan.AwaitsScheduler(name, slices.ContainsFunc(in.pods, func(p *schedulingv1.Pod) bool {
			return plan.BoundBy(p, name)
		}))
		out.Message, out.Obstacles, out.Changes = out.Refused, nil, nil
	}
	if out.ComputedFrom = "Given"; !given(r) {
		out.ComputedFrom, out.ResourceVersion = "Copy", strconv.FormatInt(revision, 10)
	}
	if alike && r.GetPolicy() == nil && r.MaxVolumes == nil && r.GetPod() == nil && out.GetBoundTo() != "" {
		out.Placement = &schedulingv1.ExplainPodResponse_Placement{
			Unknown: "the process that answers does not lead, and only the leader knows it",
		}
	}
	return out, nil
}

// evaluateLive has the leader answer a request that supposes nothing but a policy or a limit of volumes; leads is false
// if this process is not the leader.
func (s *Pods) evaluateLive(ctx context.Context, r *schedulingv1.ExplainPodRequest, in explained) (
	out *schedulingv1.ExplainPodResponse, leads bool, err error,
) {
	var supposed *plan.Profile
	if r.GetPolicy() != nil || r.MaxVolumes != nil {
		supposed = in.profile
	}
	var ask func(*plan.Inquiry)
	if asksExtenders(r) {
		ask = func(in *plan.Inquiry) { s.consult(ctx, in) }
	}
	out, leads, err = s.Placer.Explain(ctx, supposed, in.pod, ask)
	if leads && err == nil && r.GetPod() != nil { // what is kept is not of that one
		out.Pending, out.Placement = nil, nil
	}
	return out, leads, err
}

// asksExtenders reports whether extenders are asked for a request: they answer for the live cluster and its policies.
func asksExtenders(r *schedulingv1.ExplainPodRequest) bool {
	return !given(r) && r.GetPolicy() == nil && len(r.GetNodeLabels()) == 0 && len(r.GetWithoutNodes()) == 0 &&
		!r.GetSummaryOnly()
}

// inquire asks the extenders about a pod in a copy of the cluster; nil if none is responsible for it, or they are not
// asked for the request.
func (s *Pods) inquire(ctx context.Context, r *schedulingv1.ExplainPodRequest, in explained) *plan.Inquiry {
	if !asksExtenders(r) || in.profiles.AwaitsOther(in.pod) {
		return nil
	}
	out := plan.NewInquiry(in.cluster, in.profile, in.pod)
	if out != nil {
		s.consult(ctx, out)
	}
	return out
}

// consult has the extenders answer an inquiry.
func (s *Pods) consult(ctx context.Context, in *plan.Inquiry) {
	for questions := in.Ask(); len(questions) > 0; questions = in.Ask() {
		answers := make([]plan.Answer, len(questions))
		var calls sync.WaitGroup
		for i, q := range questions {
			calls.Go(func() { answers[i] = s.Extenders.Ask(ctx, q) })
		}
		calls.Wait()
		for _, a := range answers {
			in.Take(a)
		}
	}
}

// explained is what a request to explain a pod is about.
type explained struct {
	pod      *schedulingv1.Pod
	pods     []*schedulingv1.Pod
	profile  *plan.Profile
	profiles plan.Profiles
	cluster  *plan.Cluster
}

func (s *Pods) explained(ctx context.Context, r *schedulingv1.ExplainPodRequest) (explained, error) {
	in, err := s.asked(ctx, r)
	if err == nil {
		in.cluster, in.pods, err = s.clusterOf(ctx, r)
	}
	return in, err
}

// asked is explained without the cluster.
func (s *Pods) asked(ctx context.Context, r *schedulingv1.ExplainPodRequest) (explained, error) {
	if fields := slices.Concat(atMost("nodes.items", len(r.GetNodes().GetItems()), maxNodes),
		atMost("pods.items", len(r.GetPods().GetItems()), maxPods), mixed(r)); len(fields) > 0 {
		return explained{}, rpcerr.Invalid(fields...)
	}
	pod, err := s.podOf(ctx, r)
	if err != nil {
		return explained{}, err
	}
	profile, profiles, err := s.profileOf(r, pod)
	if err != nil {
		return explained{}, err
	}
	return explained{pod: pod, profile: profile, profiles: profiles}, nil
}

// clusterOf returns the cluster that a request is about, with its pods.
func (s *Pods) clusterOf(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*plan.Cluster, []*schedulingv1.Pod,
	error,
) {
	nodes, pods := r.GetNodes().GetItems(), r.GetPods().GetItems()
	if !given(r) {
		if err := s.nodesKnown(); err != nil {
			return nil, nil, err
		}
		// A caller who saw a pod bound, or go, does not get an answer about the time before.
		if err := s.Tables.Pods.CatchUp(ctx); err != nil {
			return nil, nil, err
		}
		nodes, pods = s.Nodes.All(), s.Tables.Pods.All()
	}
	nodes, fields := supposed(nodes, r)
	if len(fields) > 0 {
		return nil, nil, rpcerr.Invalid(fields...)
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	var c *plan.Cluster
	if given(r) {
		c = view.Given(nodes, pods, r)
	} else {
		c = view.Cluster(s.Tables, nodes, pods)
	}
	return c, pods, ctx.Err() // what follows takes as long again in a large cluster
}

// given reports whether a request brings its own cluster.
func given(r *schedulingv1.ExplainPodRequest) bool {
	return r.GetNodes() != nil || r.GetPods() != nil ||
		len(r.GetServices())+len(r.GetReplicationControllers())+len(r.GetReplicaSets())+len(r.GetStatefulSets()) > 0 ||
		len(r.GetVolumes())+len(r.GetClaims())+len(r.GetStorageClasses())+len(r.GetBudgets()) > 0
}

// nodesToo is the fault of a request that brings objects without nodes.
var nodesToo = object.Fault{
	Path: "nodes", Description: "give the nodes too: live ones are not mixed with given objects",
}

// mixed returns what a request would have to give in place of live objects.
func mixed(r *schedulingv1.ExplainPodRequest) (fields []object.Fault) {
	if given(r) && r.GetNodes() == nil {
		fields = append(fields, nodesToo)
	}
	return append(fields, misnamed(r)...)
}

// misnamed returns the faults of a request that names another pod than it gives: the name would have no effect. Without
// a name, the namespace is that of a given pod that has none.
func misnamed(r *schedulingv1.ExplainPodRequest) (fields []object.Fault) {
	if r.GetPod() == nil || r.GetName() == "" {
		return nil
	}
	m := r.GetPod().GetMetadata()
	if r.GetName() != m.GetName() {
		fields = append(fields, object.Fault{
			Path: "name", Description: "is not the name of the given pod: give one of them",
		})
	}
	named := keyOf(r.GetNamespace(), "").Namespace
	if m.GetNamespace() != "" && m.GetNamespace() != named {
		fields = append(fields, object.Fault{
			Path: "namespace", Description: fmt.Sprintf("is %q, and the given pod is in namespace %q", named, m.GetNamespace()),
		})
	}
	return fields
}

// profileOf returns the policy that a pod is explained by: that of the request, or else that of its cluster. profiles
// are all of the cluster.
func (s *Pods) profileOf(r *schedulingv1.ExplainPodRequest, pod *schedulingv1.Pod) (*plan.Profile, plan.Profiles,
	error,
) {
	profiles, most := plan.Policies(nil), int(r.GetMaxVolumes())
	if !given(r) {
		profiles = view.Profiles(s.Tables)
		most = cmp.Or(most, s.Tables.MaxDisks())
	}
	if r.GetPolicy() == nil {
		return plan.Limited(profiles.Of(pod), most), profiles, nil
	}
	if fields := plan.CheckPolicy(r.GetPolicy()); len(fields) > 0 {
		return nil, nil, rpcerr.Invalid(fields...)
	}
	return plan.Limited(plan.Policy(r.GetPolicy()), most), profiles, nil
}

// supposed returns nodes as a request supposes that they were.
func supposed(nodes []*nodev1.Node, r *schedulingv1.ExplainPodRequest) (out []*nodev1.Node, fields []object.Fault) {
	out = slices.Clone(nodes)
	at := make(map[string]int, len(out))
	for i, n := range out {
		at[n.GetMetadata().GetName()] = i
	}
	for i, l := range r.GetNodeLabels() {
		n, ok := at[l.GetNode()]
		if !ok {
			fields = append(fields, object.Fault{
				Path: fmt.Sprintf("nodeLabels[%d].node", i), Description: fmt.Sprintf("there is no node %q", l.GetNode()),
			})
			continue
		}
		node := object.Clone(out[n])
		if node.Metadata.Labels == nil {
			node.Metadata.Labels = map[string]string{}
		}
		maps.Copy(node.Metadata.Labels, l.GetLabels())
		out[n] = node
	}
	for i, name := range r.GetWithoutNodes() {
		if _, ok := at[name]; !ok {
			fields = append(fields, object.Fault{
				Path: fmt.Sprintf("withoutNodes[%d]", i), Description: fmt.Sprintf("there is no node %q", name),
			})
		}
	}
	return slices.DeleteFunc(out, func(n *nodev1.Node) bool {
		return slices.Contains(r.GetWithoutNodes(), n.GetMetadata().GetName())
	}), fields
}

func atMost(path string, n, most int) []object.Fault {
	if n <= most {
		return nil
	}
	return []object.Fault{{Path: path, Description: fmt.Sprintf("has %d objects, at most %d can be checked", n, most)}}
}

// nodesKnown returns nil once all nodes are known.
func (c Config) nodesKnown() error {
	if !c.Nodes.IsSynced() {
		return rpcerr.Unavailable("it is not known yet which nodes there are")
	}
	return nil
}

// podOf returns the pod of a request: the given one with its defaults, but without what admission would add, or else
// the named one of the given pods or of the live ones.
func (s *Pods) podOf(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.Pod, error) {
	if r.GetPod() == nil {
		if r.GetName() == "" {
			return nil, rpcerr.Invalid(object.Fault{Path: "name", Description: "give a name or a pod"})
		}
		key := keyOf(r.GetNamespace(), r.GetName())
		if given(r) {
			for _, pod := range r.GetPods().GetItems() {
				if m := pod.GetMetadata(); keyOf(m.GetNamespace(), m.GetName()) == key {
					return pod, nil
				}
			}
			return nil, rpcerr.NotFound("Pod", key.Name)
		}
		return s.Tables.Pods.Get(ctx, key.Namespace, key.Name)
	}
	pod := object.Clone(r.GetPod())
	if pod.Metadata == nil {
		pod.Metadata = &metav1.ObjectMeta{}
	}
	if pod.Metadata.Namespace == "" {
		pod.Metadata.Namespace = keyOf(r.GetNamespace(), "").Namespace
	}
	if pod.Spec == nil {
		pod.Spec = &schedulingv1.PodSpec{}
	}
	pod.Metadata.ResourceVersion = "" // its state need not be awaited
	plan.Default(pod.Spec)
	if given(r) || pod.GetSpec().Priority != nil {
		return pod, nil
	}
	// It is explained as it would be stored: whom it may preempt depends on its class.
	fields := plan.Prioritize(slices.Collect(s.Tables.PriorityClasses.Objects()), pod.Spec)
	for i := range fields {
		fields[i].Path = "pod." + fields[i].Path
	}
	if len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
	return pod, nil
}

// refusal reports whether a code reports something wrong with what was asked for, and not of trouble here.
func refusal(code int32) bool {
	return slices.Contains([]codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.AlreadyExists,
	}, codes.Code(code))
}
