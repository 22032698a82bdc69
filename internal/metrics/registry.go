package metrics

import (
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	"github.com/natkit/natkit/internal/state"
)

// Registry has the metrics of a state, and those of the process.
type Registry struct{ *prometheus.Registry }

// NewRegistry returns the metrics of what current returns at the time of a scrape.
func NewRegistry(current func() state.State) *Registry {
	r := &Registry{prometheus.NewPedanticRegistry()}
	r.MustRegister(Collector(current), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// What scrapes may take.
const (
	mostScrapes   = 4
	scrapeTimeout = 10 * time.Second
)

// Handler serves the metrics in the format that the client asks for, OpenMetrics too.
func (r *Registry) Handler() http.Handler {
	return promhttp.InstrumentMetricHandler(r, promhttp.HandlerFor(r, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: mostScrapes, Timeout: scrapeTimeout, Registry: r,
	}))
}

// Write writes the metrics as text.
func (r *Registry) Write(w io.Writer) error {
	families, err := r.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}
