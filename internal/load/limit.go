package load

import "fmt"

// Observed is what a run saw of the generator itself.
type Observed struct {
	// BusiestWorker is the greatest share of one CPU that a worker's thread used,
	// 0 to 1; MachineIdle the share of all CPUs' time that was idle.
	BusiestWorker, MachineIdle float64
	Workers                    int
	// Starts of requests in an open loop; Late ones began more than LateAfter
	// behind their time though a connection was free; Queued ones waited for one
	// of the allowed connections.
	Starts, Late, Queued int64
	Concurrency          int
	// NoLocalPort counts connections that found no free local port.
	NoLocalPort int64
}

// LateAfter is how far behind its time a start may be, in nanoseconds, before it
// counts as late.
const LateAfter = 5_000_000

// Shares above which the generator is named as the limit.
const (
	busyShare = 0.95
	idleShare = 0.10
	lateShare = 0.01
)

// Limit says why the generator was the limit; empty where it was not.
func (o Observed) Limit() string {
	switch {
	case o.NoLocalPort > 0:
		return fmt.Sprintf("%d connections found no free local port: give more source addresses (--source) or a wider ip_local_port_range",
			o.NoLocalPort)
	case o.BusiestWorker >= busyShare && o.MachineIdle >= idleShare:
		return fmt.Sprintf("a worker used %.0f %% of a CPU while the machine was %.0f %% idle: use more than %d workers (--workers)",
			100*o.BusiestWorker, 100*o.MachineIdle, o.Workers)
	case o.Starts > 0 && float64(o.Late) > lateShare*float64(o.Starts):
		return fmt.Sprintf("%d of %d requests started more than 5 ms behind the schedule though a connection was free: this machine is too slow for the rate",
			o.Late, o.Starts)
	case o.Starts > 0 && float64(o.Queued) > lateShare*float64(o.Starts):
		return fmt.Sprintf("%d of %d requests waited for one of the %d connections: the server is slower than the rate, or --concurrency is too small for it",
			o.Queued, o.Starts, o.Concurrency)
	}
	return ""
}
