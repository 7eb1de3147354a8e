// Package metrics shows the version of the cluster and its ClusterOperators as metrics, so that queries of update risks
// can ask for them. Names and labels are those of the Cluster Version Operator.
package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"

	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

var (
	version = prometheus.NewDesc("cluster_version", "Versions of the cluster, with a time in seconds since 1970: initial "+
		"is the first one, since the cluster was created; current is the one that is applied, with the time at which its "+
		"image was created, or 0; completed is the last one that was applied, with the time of that; updating is an "+
		"update in progress, with its start; failure is one that fails, since when.",
		[]string{"type", "version", "image", "from_version"}, nil)
	operatorUp = prometheus.NewDesc("cluster_operator_up", "1 if a ClusterOperator is Available, 0 if not.",
		[]string{"name", "version", "reason"}, nil)
	operatorConditions = prometheus.NewDesc("cluster_operator_conditions",
		"Conditions of ClusterOperators: 1 for True, 0 for False; those that are Unknown are left out.",
		[]string{"name", "condition", "reason"}, nil)
	availableUpdates = prometheus.NewDesc("cluster_version_available_updates", "Number of recommended updates.",
		[]string{"upstream", "channel"}, nil)
	capability = prometheus.NewDesc("cluster_version_capability", "1 if a capability is enabled, 0 if not.",
		[]string{"name"}, nil)
)

// Collector collects the metrics from the records. It implements prometheus.Collector.
type Collector struct{ *kinds.Tables }

// Describe sends the descriptions.
func (c Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{version, operatorUp, operatorConditions, availableUpdates, capability} {
		out <- d
	}
}

// Collect sends the metrics.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	for _, o := range c.Operators.All() {
		collectOperator(o, out)
	}
	cv, ok := c.Cluster()
	if !ok {
		return
	}
	c.collectVersions(cv, out)
	spec, st := cv.GetSpec(), cv.GetStatus()
	if plan.Find(st.GetConditions(), plan.RetrievedUpdates).GetStatus() == plan.True {
		out <- gauge(availableUpdates, float64(len(st.GetAvailableUpdates())), spec.GetUpstream(), spec.GetChannel())
	}
	enabled := st.GetCapabilities().GetEnabledCapabilities()
	for _, name := range st.GetCapabilities().GetKnownCapabilities() {
		value := 0.0
		if slices.Contains(enabled, name) {
			value = 1
		}
		out <- gauge(capability, value, name)
	}
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func collectOperator(o *updatev1.ClusterOperator, out chan<- prometheus.Metric) {
	name := o.GetMetadata().GetName()
	var own string
	for _, v := range o.GetStatus().GetVersions() {
		if v.GetName() == "operator" {
			own = v.GetVersion()
		}
	}
	up, reason := 0.0, "NoConditions"
	seen := map[string]bool{}
	for _, cond := range o.GetStatus().GetConditions() {
		if seen[cond.GetType()] { // a metric may be sent only once
			continue
		}
		seen[cond.GetType()] = true
		value, known := truth(cond)
		if known {
			out <- gauge(operatorConditions, value, name, cond.GetType(), cond.GetReason())
		}
		if cond.GetType() == "Available" {
			up, reason = value, cond.GetReason()
		}
	}
	out <- gauge(operatorUp, up, name, own, reason)
}

// truth returns 1 for True, 0 for anything else, and whether it is True or False.
func truth(c *metav1.Condition) (value float64, known bool) {
	switch c.GetStatus() {
	case plan.True:
		return 1, true
	case plan.False:
		return 0, true
	}
	return 0, false
}

func (c Collector) collectVersions(cv *updatev1.ClusterVersion, out chan<- prometheus.Metric) {
	desired, history := cv.GetStatus().GetDesired(), cv.GetStatus().GetHistory()
	var created time.Time
	for _, r := range c.Releases.All() {
		if r.GetSpec().GetImage() == desired.GetImage() && r.GetStatus().GetCreated() != nil {
			created = r.GetStatus().GetCreated().AsTime()
		}
	}
	send := func(kind, number, image, from string, at time.Time) {
		value := 0.0
		if !at.IsZero() {
			value = float64(at.Unix())
		}
		out <- gauge(version, value, kind, number, image, from)
	}
	var completed *updatev1.UpdateHistory
	for _, h := range history {
		if h.GetState() == plan.StateCompleted {
			completed = h
			break
		}
	}
	send("current", desired.GetVersion(), desired.GetImage(), completed.GetVersion(), created)
	if n := len(history); n > 0 {
		first := history[n-1]
		send("initial", first.GetVersion(), first.GetImage(), "", cv.GetMetadata().GetCreationTimestamp().AsTime())
	}
	if completed != nil {
		send("completed", completed.GetVersion(), completed.GetImage(), "", completed.GetCompletionTime().AsTime())
	}
	if len(history) > 0 && history[0].GetState() != plan.StateCompleted && completed != nil {
		send("updating", history[0].GetVersion(), history[0].GetImage(), completed.GetVersion(),
			history[0].GetStartedTime().AsTime())
	}
	if f := plan.Find(cv.GetStatus().GetConditions(), plan.Failing); f.GetStatus() == plan.True {
		send("failure", desired.GetVersion(), desired.GetImage(), completed.GetVersion(),
			f.GetLastTransitionTime().AsTime())
	}
}
