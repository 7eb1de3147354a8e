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
	// look reads all nodes that fit, and compare scores those of one bunch by what look found. compare is not called where
	// look found all nodes alike. Both read only those traits of nodes that reads names, and their places.
	look    func(k *class, p *priority, b *bunches) norm
	compare func(k *class, m *norm, b *bunch) int64
	reads   reads

	images bool // whether alone reads the images of a pod
}

// ranks returns the priorities, those of the default policy first and in its order.
func ranks() []*rank {
	return []*rank{
		{
			names: []string{"SelectorSpreadPriority"}, weight: 1, reads: readsSelectors,
			look: lookSpread(bySelectors), compare: compareSpread(bySelectors),
			about: "nodes and zones with fewer pods of the pod's services and controllers",
		},
		{
			names: []string{"InterPodAffinityPriority"}, weight: 1, reads: readsAffinity, look: (*class).lookAffinity,
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
			names: []string{"NodeAffinityPriority"}, weight: 1, reads: readsWanted, look: (*class).lookPreferred,
			compare: (*class).comparePreferred,
			about:   "nodes that match more preferred terms of node affinity, by weight",
		},
		{
			names: []string{"TaintTolerationPriority"}, weight: 1, reads: readsDisliked, look: (*class).lookTaints,
			compare: (*class).compareTaints,
			about:   "nodes with fewer PreferNoSchedule taints that the pod does not tolerate",
		},
		{
			names: []string{"EvenPodsSpreadPriority"}, weight: 2, reads: readsSpread, look: (*class).lookEven,
			compare: (*class).compareEven,
			about: "nodes in whose domains fewer pods run that the pod's `topologySpreadConstraints` with `ScheduleAnyway` " +
				"select",
		},
		{
			names: []string{"MostRequestedPriority"}, alone: (*class).mostRequested,
			about: "nodes with less CPU and memory left",
		},
		{
			names: []string{"ServiceSpreadingPriority"}, reads: readsServices,
			look: lookSpread(byServices), compare: compareSpread(byServices),
			about: "nodes and zones with fewer pods of the pod's services",
		},
		{
			names: []string{"ImageLocalityPriority"}, alone: (*class).imagesOn, images: true,
			about: "nodes that have more bytes of the pod's images",
		},
		{
			names: []string{"EqualPriority"}, alone: func(*class, *priority, *node) int64 { return 1 },
			about: "no node",
		},
		{
			arguments: []string{"serviceAntiAffinity", "serviceAffinity"}, reads: readsFirst, look: (*class).lookValues,
			compare: (*class).compareValues, about: "nodes whose value of the argument's label fewer pods of the service have",
		},
		{
			arguments: []string{"labelPreference", "labelsPresence"}, alone: (*class).preferred,
			about: "nodes that have, or have not, the argument's label",
		},
	}
}
