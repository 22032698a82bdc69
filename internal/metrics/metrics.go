// Package metrics has the metrics of Prometheus that a state is exported as.
package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/natkit/natkit/internal/state"
)

// Kind is what a metric is to Prometheus.
type Kind string

const (
	// Counter only grows, until the exporter starts again.
	Counter Kind = "counter"
	// Gauge goes up and down.
	Gauge Kind = "gauge"
	// Histogram counts values by ranges, since the exporter started.
	Histogram Kind = "histogram"
)

// Metric is a metric of a state. Its labels are bounded: by the kernel's names, or by state.Limits.
type Metric struct {
	Name string
	Kind Kind
	// Help is one sentence. Labels come besides netns, which those of namespaces have.
	Help   string
	Labels []string

	ofHost func(*state.State, emit)
	of     func(*state.Namespace, emit)
	// histograms are by the value of the one label.
	histograms func(*state.State) map[string]state.Histogram
	desc       *prometheus.Desc
}

// emit takes a value, with those of the labels.
type emit func(value float64, labels ...string)

// IsHost reports whether the metric is of the host, and has no label netns.
func (m *Metric) IsHost() bool { return m.of == nil }

// AllLabels are those that a series has.
func (m *Metric) AllLabels() []string {
	if m.IsHost() {
		return m.Labels
	}
	return append([]string{netnsLabel}, m.Labels...)
}

// netnsLabel names the network namespace; it is empty, and so absent, for the one that natkit runs in.
const netnsLabel = "netns"

// collector makes the metrics of what current returns.
type collector struct{ current func() state.State }

// Collector returns what exports the state that current returns.
func Collector(current func() state.State) prometheus.Collector { return collector{current} }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	for i := range All {
		to <- All[i].desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	s := c.current()
	for i := range All {
		m := &All[i]
		switch {
		case m.histograms != nil:
			for label, h := range m.histograms(&s) {
				to <- histogramOf(m.desc, h, label)
			}
			continue
		case m.IsHost():
			m.ofHost(&s, m.send(to))
			continue
		}
		send := m.send(to)
		for j := range s.Namespaces {
			n := &s.Namespaces[j]
			m.of(n, func(value float64, labels ...string) { send(value, append([]string{n.Name}, labels...)...) })
		}
	}
}

// send hands on each series once, as Prometheus refuses all of a scrape that has one twice.
func (m *Metric) send(to chan<- prometheus.Metric) emit {
	kind := map[Kind]prometheus.ValueType{Counter: prometheus.CounterValue, Gauge: prometheus.GaugeValue}[m.Kind]
	sent := map[string]bool{}
	return func(value float64, labels ...string) {
		for i := range labels {
			labels[i] = strings.ToValidUTF8(labels[i], "�")
		}
		key := strings.Join(labels, "\x00")
		if sent[key] {
			return
		}
		sent[key] = true
		to <- prometheus.MustNewConstMetric(m.desc, kind, value, labels...)
	}
}

// histogramOf adds the buckets up, as Prometheus has them.
func histogramOf(desc *prometheus.Desc, h state.Histogram, label string) prometheus.Metric {
	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, n := range h.Counts {
		if sum += n; i < len(h.Bounds) {
			buckets[h.Bounds[i]] = sum
		}
	}
	return prometheus.MustNewConstHistogram(desc, sum, h.Sum, buckets, label)
}
