package plan

// rank is a row of the table of priorities. A priority either reads a node alone, or compares the nodes that fit.
// Scores are 0 to best.
type rank struct {
	names     []string // in the documents; none if only an argument defines it
	arguments []string // the fields of a policy's argument that define such a priority
	weight    int64    // in the default policy; 0: it is not in it
	about     string   // for docs/scheduler.md: which nodes it prefers

	// alone scores a node by its own state, its pods and the pod; nil if the priority compares nodes.
	alone func(k *class, p *priority, n *node) int64
	// look reads all nodes that fit, and compare scores one of them by what look found; at is the node's index. compare is
	// not called where look found all nodes alike.
	look    func(s *session, k *class, p *priority) norm
	compare func(k *class, m *norm, n *node, at int32) int64
}

// ranks returns the priorities, those of the default policy first and in its order.
func ranks() []*rank {
	return []*rank{
		{
			names: []string{"SelectorSpreadPriority"}, weight: 1, look: (*session).lookSelectors,
			compare: (*class).compareSpread,
			about:   "nodes and zones with fewer pods of the pod's services and controllers",
		},
		{
			names: []string{"InterPodAffinityPriority"}, weight: 1, look: (*session).lookAffinity,
			compare: (*class).compareAffinity, about: "nodes that meet preferred affinity to pods",
		},
		{
			names: []string{"LeastRequestedPriority"}, weight: 1, alone: (*class).leastRequested,
			about: "nodes with more CPU and memory left",
		},
		{
			names: []string{"BalancedResourceAllocation"}, weight: 1, alone: (*class).balanced,
			about: "nodes of whose CPU and memory equal parts are used",
		},
		{
			names: []string{"NodePreferAvoidPodsPriority"}, weight: 10000, alone: (*class).notAvoided,
			about: "nodes whose annotation `" + avoidAnnotation + "` does not name the pod's controller",
		},
		{
			names: []string{"NodeAffinityPriority"}, weight: 1, look: (*session).lookPreferred,
			compare: (*class).comparePreferred,
			about:   "nodes that match more preferred terms of node affinity, by weight",
		},
		{
			names: []string{"TaintTolerationPriority"}, weight: 1, look: (*session).lookTaints, compare: (*class).compareTaints,
			about: "nodes with fewer PreferNoSchedule taints that the pod does not tolerate",
		},
		{
			names: []string{"MostRequestedPriority"}, alone: (*class).mostRequested,
			about: "nodes with less CPU and memory left",
		},
		{
			names: []string{"ServiceSpreadingPriority"}, look: (*session).lookServices, compare: (*class).compareSpread,
			about: "nodes and zones with fewer pods of the pod's services",
		},
		{
			names: []string{"ImageLocalityPriority"}, alone: (*class).imagesOn,
			about: "nodes that have more bytes of the pod's images",
		},
		{
			names: []string{"EqualPriority"}, alone: func(*class, *priority, *node) int64 { return 1 },
			about: "no node",
		},
		{
			arguments: []string{"serviceAntiAffinity", "serviceAffinity"}, look: (*session).lookValues,
			compare: (*class).compareValues, about: "nodes whose value of the argument's label fewer pods of the service have",
		},
		{
			arguments: []string{"labelPreference", "labelsPresence"}, alone: (*class).preferred,
			about: "nodes that have, or have not, the argument's label",
		},
	}
}
