package metrics

import (
	"math"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	request "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// Origin is what metrics are of, for OpenTelemetry.
type Origin struct{ Version, Host string }

// OTLP encodes families as a request of the OpenTelemetry protocol (ExportMetricsServiceRequest), as they were at that
// time. Names and labels stay those of Prometheus. Counters have no start time: the kernel's began before natkit did.
func OTLP(families []*dto.MetricFamily, at time.Time, of Origin) ([]byte, error) {
	scope := &otlp.ScopeMetrics{Scope: &common.InstrumentationScope{Name: "natkit", Version: of.Version}}
	for _, f := range families {
		if m := otlpMetric(f, uint64(at.UnixNano())); m != nil {
			scope.Metrics = append(scope.Metrics, m)
		}
	}
	return proto.Marshal(&request.ExportMetricsServiceRequest{ResourceMetrics: []*otlp.ResourceMetrics{{
		Resource: &resource.Resource{Attributes: []*common.KeyValue{
			text("service.name", "natkit"), text("service.version", of.Version), text("host.name", of.Host)}},
		ScopeMetrics: []*otlp.ScopeMetrics{scope},
	}}})
}

// otlpMetric is nil of what has no series.
func otlpMetric(f *dto.MetricFamily, at uint64) *otlp.Metric {
	m := &otlp.Metric{Name: f.GetName(), Description: f.GetHelp(), Unit: unitOf(f.GetName())}
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		m.Data = &otlp.Metric_Sum{Sum: &otlp.Sum{IsMonotonic: true, AggregationTemporality: cumulative,
			DataPoints: points(f, at, func(s *dto.Metric) float64 { return s.GetCounter().GetValue() })}}
	case dto.MetricType_GAUGE:
		m.Data = &otlp.Metric_Gauge{Gauge: &otlp.Gauge{DataPoints: points(f, at, func(s *dto.Metric) float64 { return s.GetGauge().GetValue() })}}
	case dto.MetricType_HISTOGRAM:
		h := &otlp.Histogram{AggregationTemporality: cumulative}
		for _, s := range f.GetMetric() {
			h.DataPoints = append(h.DataPoints, histogram(s, at))
		}
		m.Data = &otlp.Metric_Histogram{Histogram: h}
	default:
		return nil
	}
	return m
}

const cumulative = otlp.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE

func points(f *dto.MetricFamily, at uint64, value func(*dto.Metric) float64) (all []*otlp.NumberDataPoint) {
	for _, s := range f.GetMetric() {
		all = append(all, &otlp.NumberDataPoint{TimeUnixNano: at, Attributes: attributes(s), Value: &otlp.NumberDataPoint_AsDouble{AsDouble: value(s)}})
	}
	return all
}

// histogram turns cumulative buckets into those of single ranges, the last of which has no bound.
func histogram(s *dto.Metric, at uint64) *otlp.HistogramDataPoint {
	from := s.GetHistogram()
	p := &otlp.HistogramDataPoint{TimeUnixNano: at, Attributes: attributes(s), Count: from.GetSampleCount(), Sum: new(from.GetSampleSum())}
	before := uint64(0)
	for _, b := range from.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			continue
		}
		p.ExplicitBounds = append(p.ExplicitBounds, b.GetUpperBound())
		p.BucketCounts = append(p.BucketCounts, b.GetCumulativeCount()-before)
		before = b.GetCumulativeCount()
	}
	p.BucketCounts = append(p.BucketCounts, from.GetSampleCount()-before)
	return p
}

// attributes are the labels; one that is empty is none to Prometheus.
func attributes(s *dto.Metric) (all []*common.KeyValue) {
	for _, l := range s.GetLabel() {
		if l.GetValue() != "" {
			all = append(all, text(l.GetName(), l.GetValue()))
		}
	}
	return all
}

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

// unitOf is the unit that a name ends in, as OpenTelemetry writes it (UCUM).
func unitOf(name string) string {
	for suffix, unit := range map[string]string{"_seconds": "s", "_bytes": "By", "_ratio": "1"} {
		if strings.HasSuffix(strings.TrimSuffix(name, "_total"), suffix) {
			return unit
		}
	}
	return ""
}
