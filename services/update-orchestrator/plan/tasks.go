package plan

import (
	"path"
	"regexp"
)

// Mode is what an application of manifests is for.
type Mode string

// Modes of an application.
const (
	Updating     Mode = "Updating"     // to another release: run levels in order
	Initializing Mode = "Initializing" // nothing was ever complete: all components at once
	Reconciling  Mode = "Reconciling"  // to keep what was reached: all components at once
)

// Step is what is applied at once; the next step begins when all chains of it are done.
type Step struct {
	RunLevel string // empty where several are in one step
	Chains   []Chain
	Job      bool // it is a manifest with a Job
}

// Chain is manifests that are applied one after the other.
type Chain struct {
	Component string // empty where several are in one chain
	Manifests []string
}

// fileName is a name that says run level and component; a component has no underscore.
var fileName = regexp.MustCompile(`^0000_(\d+)_([a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*?)_`)

// RunLevel returns the run level and the component that a file name says. Run levels are compared as text.
func RunLevel(name string) (level, component string, ok bool) {
	m := fileName.FindStringSubmatch(path.Base(name))
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

// item is a file with what its name says.
type item struct {
	name, level, component string
	parsed                 bool
}

// TaskGraph returns the order in which files of manifests are applied; names are in load order. Every name is in
// exactly one chain. The second value is the names that do not say their run level and component.
//
// For Updating, the run levels follow each other and the components of one level are applied at once; levels with one
// component, and names that say nothing, share one serial chain with their neighbours of that sort. For the other modes
// every component of every level is a chain by itself, all in one step.
//
// jobs are the names of files that hold a Job. In every mode such a file is a step by itself: all before it is done
// when it begins, and it is done before what comes after it begins. Source: the Cluster Version Operator's task graph.
func TaskGraph(names []string, jobs map[string]bool, mode Mode) ([]Step, []string) {
	items := make([]item, len(names))
	var unparsed []string
	for i, n := range names {
		items[i].name = n
		items[i].level, items[i].component, items[i].parsed = RunLevel(n)
		if !items[i].parsed {
			unparsed = append(unparsed, n)
		}
	}
	var steps []Step
	for len(items) > 0 {
		n := stretch(items, func(a, b item) bool { return !jobs[a.name] && !jobs[b.name] })
		switch part := items[:n]; {
		case jobs[part[0].name]:
			steps = append(steps, Step{RunLevel: part[0].level, Chains: []Chain{chain(part)}, Job: true})
		case mode == Initializing || mode == Reconciling:
			steps = append(steps, flat(part))
		default:
			steps = append(steps, ordered(part)...)
		}
		items = items[n:]
	}
	return steps, unparsed
}

// flat returns all stretches of a component in one step.
func flat(items []item) Step {
	var s Step
	for len(items) > 0 {
		n := stretch(items, func(a, b item) bool {
			return a.parsed && b.parsed && a.level == b.level &&
				a.component == b.component
		})
		s.Chains = append(s.Chains, chain(items[:n]))
		items = items[n:]
	}
	return s
}

// ordered returns a step for every level with several components, and one for the manifests between such levels.
func ordered(items []item) []Step {
	var steps []Step
	var serial []item
	flush := func() {
		if len(serial) > 0 {
			steps = append(steps, Step{
				RunLevel: sole(serial, func(i item) string { return i.level }),
				Chains:   []Chain{chain(serial)},
			})
			serial = nil
		}
	}
	for len(items) > 0 {
		n := stretch(items, func(a, b item) bool { return a.parsed && b.parsed && a.level == b.level })
		step := flat(items[:n])
		if len(step.Chains) > 1 {
			flush()
			step.RunLevel = items[0].level
			steps = append(steps, step)
		} else {
			serial = append(serial, items[:n]...)
		}
		items = items[n:]
	}
	flush()
	return steps
}

// stretch returns how many items at the beginning belong together.
func stretch(items []item, together func(a, b item) bool) int {
	n := 1
	for n < len(items) && together(items[0], items[n]) {
		n++
	}
	return n
}

func chain(items []item) Chain {
	c := Chain{Component: sole(items, func(i item) string { return i.component })}
	for _, i := range items {
		c.Manifests = append(c.Manifests, i.name)
	}
	return c
}

// sole returns what all items say, or nothing if they differ.
func sole(items []item, of func(item) string) string {
	for _, i := range items {
		if of(i) != of(items[0]) {
			return ""
		}
	}
	return of(items[0])
}
