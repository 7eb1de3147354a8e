// Package gauges exposes values that are computed when metrics are read, such as the states of objects.
package gauges

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Send sends one sample with the values of the labels that d declares. A second sample with the same labels is ignored:
// Prometheus would refuse all metrics of the program because of it.
type Send func(d *prometheus.Desc, value float64, labels ...string)

// Collector is a prometheus.Collector of gauges.
type Collector struct {
	read  func(Send)
	descs []*prometheus.Desc
}

// New returns a collector of the gauges that read sends. read may be called concurrently, and must not send others than
// descs.
func New(read func(Send), descs ...*prometheus.Desc) Collector { return Collector{read, descs} }

// Describe is part of prometheus.Collector.
func (c Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect is part of prometheus.Collector.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	type series struct {
		desc   *prometheus.Desc
		labels string
	}
	sent := map[series]bool{}
	c.read(func(d *prometheus.Desc, value float64, labels ...string) {
		s := series{d, strings.Join(labels, "\xff")} // no UTF-8, so in no label
		if sent[s] {
			return
		}
		sent[s] = true
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	})
}

// Bool returns 1 for true and 0 for false.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Seconds returns a time in seconds since 1970; 0 if it is absent.
func Seconds(at *timestamppb.Timestamp) float64 { return float64(at.GetSeconds()) }
