package load

import "fmt"

// Observed is what a run saw of the generator itself.
type Observed struct {
	// BusiestWorker is the greatest share of one CPU that a worker's thread used,
	// 0 to 1.
	BusiestWorker float64
	Workers       int
	// Own is the share that this process used of the CPUs it may run on, whose
	// number is CPUs.
	Own  float64
	CPUs int
	// Busy is the share of all the machine's CPU time that was not idle; 0 where
	// that is not known, and then so are the others.
	Busy float64
	// OthersMost bounds the share that other processes used: it contains the kernel's
	// work on packets where that is counted with no process (CONFIG_IRQ_TIME_ACCOUNTING).
	OthersMost float64
	// Others is the share that the times of the other processes add up to.
	Others float64
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
	busyShare  = 0.95 // of one CPU, by a thread
	fullShare  = 0.90 // of all CPUs
	otherShare = 0.10 // is too much to be passed over
	lateShare  = 0.01
)

// Limit says why the generator was the limit; empty where it was not.
func (o Observed) Limit() string {
	switch {
	case o.NoLocalPort > 0:
		return fmt.Sprintf("%d connections found no free local port: give more source addresses (--source) or a wider ip_local_port_range",
			o.NoLocalPort)
	case o.Own >= fullShare || o.Busy >= fullShare && o.OthersMost < otherShare:
		return fmt.Sprintf("natkit used %.0f %% of the %d CPUs that it may run on: the server may be able to do more",
			100*o.Own, o.CPUs)
	case o.BusiestWorker >= busyShare && o.Busy > 0 && o.Busy <= fullShare:
		return fmt.Sprintf("a worker used %.0f %% of a CPU while the machine was %.0f %% idle: use more than %d workers (--workers)",
			100*o.BusiestWorker, 100*(1-o.Busy), o.Workers)
	case o.Starts > 0 && float64(o.Late) > lateShare*float64(o.Starts):
		return fmt.Sprintf("%d of %d requests started more than 5 ms behind the schedule though a connection was free: this machine is too slow for the rate",
			o.Late, o.Starts)
	case o.Starts > 0 && float64(o.Queued) > lateShare*float64(o.Starts):
		return fmt.Sprintf("%d of %d requests waited for one of the %d connections: the server is slower than the rate, or --concurrency is too small for it",
			o.Queued, o.Starts, o.Concurrency)
	}
	return ""
}

// Contention says who else used the CPUs, where that was much: other processes, or packets
// where the CPUs were full.
func (o Observed) Contention() string {
	if text := OthersNote(o.Others, " (the server among them if it runs here)"); text != "" {
		return text
	}
	own := o.Busy - o.OthersMost
	if o.Busy < fullShare || own < otherShare || o.OthersMost < otherShare {
		return ""
	}
	return fmt.Sprintf("the CPUs were %.0f %% busy, %.0f %% with natkit, the rest with packets or other processes", 100*o.Busy, 100*own)
}

// OthersNote is the caution that figures need which were measured while other processes used
// that share of the machine's CPUs; empty where it was small. Who names some of them.
func OthersNote(share float64, who string) string {
	if share < otherShare {
		return ""
	}
	return fmt.Sprintf("other processes used %.0f %% of this machine's CPUs during the run%s: do not compare with runs on a quiet machine", 100*share, who)
}
