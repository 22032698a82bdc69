package load

import (
	"cmp"
	"fmt"
	"slices"
)

// phases in the order of a request's life.
var phases = []Phase{Connect, Send, Wait, Read, Reply, Keep, Verify, Close}

type failureKind struct {
	phase  Phase
	reason Reason
}

// FailureCounts counts failures by phase and reason.
type FailureCounts map[failureKind]int64

// Add counts one failure.
func (c FailureCounts) Add(phase Phase, reason Reason) { c[failureKind{phase, reason}]++ }

// Merge adds what o counted.
func (c FailureCounts) Merge(o FailureCounts) {
	for kind, n := range o {
		c[kind] += n
	}
}

// List returns the classes in the order of a request's life, most frequent first within a phase.
// Reasons with the same text are one class.
func (c FailureCounts) List() []Failure {
	counts := map[Failure]int64{}
	for kind, n := range c {
		counts[Failure{Phase: kind.phase, Reason: kind.reason.String()}] += n
	}
	all := make([]Failure, 0, len(counts))
	for f, n := range counts {
		f.Count = n
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Failure) int {
		return cmp.Or(
			cmp.Compare(slices.Index(phases, a.Phase), slices.Index(phases, b.Phase)),
			cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Reason, b.Reason))
	})
	return all
}

// Reason is why a request failed: an errno below 4096, one of the constants
// here, or a status from StatusReason. It is a number so that failing costs a
// worker no memory.
type Reason uint32

// Reasons that no errno has.
const (
	// TimedOut is the run's own limit; the kernel's ETIMEDOUT reads the same.
	TimedOut Reason = 4096 + iota
	// TimedOutQueued happens in open loops: the time was over before a
	// connection of the allowed number was free.
	TimedOutQueued
	// NotClosed is a complete response after which the server did not close,
	// though it was asked to (HTTP/1.0).
	NotClosed
	// ClosedEarly is an end of the stream before any byte of the response.
	ClosedEarly
	// Truncated is an end of the stream inside a response.
	Truncated
	// Surplus is data after the end of a response.
	Surplus
	// Malformed is not HTTP/1.x.
	Malformed
	// BadFraming is a Content-Length, Transfer-Encoding or chunk that contradicts
	// the standard.
	BadFraming
	// OversizedHead is a response head above 64 KiB.
	OversizedHead
	// Prohibited is an ICMPv6 error that a firewall sent; the kernel makes EACCES of
	// it (net/ipv6/icmp.c, tab_unreach), as of what this machine forbids.
	Prohibited
	// ClosedByServer is the end of a connection that was to be kept.
	ClosedByServer
	// WrongByte came back instead of the one that was sent on a held connection.
	WrongByte
)

const (
	firstStatus = 8192
	etimedout   = 110
)

// StatusReason stands for a response with another status than 2xx.
func StatusReason(status int) Reason { return Reason(firstStatus + status) }

// Timeout reports whether the request failed by its time being over.
func (r Reason) Timeout() bool {
	return r == TimedOut || r == TimedOutQueued || r == NotClosed || r == etimedout
}

// reasonText has Linux's errno values by number (include/uapi/asm-generic/errno.h)
// because they are data here, not system calls.
var reasonText = map[Reason]string{
	TimedOut:       "timed out",
	TimedOutQueued: "timed out before a connection was free",
	NotClosed:      "timed out: response complete, but the server did not close",
	ClosedEarly:    "closed without a response",
	Truncated:      "closed inside the response",
	Surplus:        "more data than announced",
	Malformed:      "not HTTP/1.x",
	BadFraming:     "bad Content-Length or chunk",
	OversizedHead:  "header too large",
	Prohibited:     "administratively prohibited",
	ClosedByServer: "closed by the server",
	WrongByte:      "another byte than was sent",
	1:              "forbidden on this machine", // EPERM: netfilter's or a security module's no
	12:             "no memory",                 // ENOMEM
	13:             "forbidden on this machine", // EACCES
	22:             "invalid argument",          // EINVAL
	23:             "no file descriptor",        // ENFILE
	24:             "no file descriptor",        // EMFILE
	32:             "reset",                     // EPIPE
	71:             "protocol error",            // EPROTO
	90:             "message too long",          // EMSGSIZE
	97:             "address family not supported",
	98:             noLocalPort,           // EADDRINUSE
	99:             noLocalPort,           // EADDRNOTAVAIL
	100:            "network down",        // ENETDOWN
	101:            "network unreachable", // ENETUNREACH
	103:            "aborted",             // ECONNABORTED
	104:            "reset",               // ECONNRESET
	105:            "no memory",           // ENOBUFS
	110:            "timed out",           // ETIMEDOUT
	111:            "refused",             // ECONNREFUSED
	112:            "host down",           // EHOSTDOWN
	113:            "unreachable",         // EHOSTUNREACH
}

const noLocalPort = "no local port"

// NoLocalPort reports whether the machine ran out of ports or addresses to send from.
func (r Reason) NoLocalPort() bool { return r.String() == noLocalPort }

func (r Reason) String() string {
	if s, ok := reasonText[r]; ok {
		return s
	}
	if r >= firstStatus {
		return fmt.Sprintf("status %d", r-firstStatus)
	}
	return fmt.Sprintf("errno %d", uint32(r))
}

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

// Limit returns why the generator was the limit; empty where it was not.
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
	case o.Late >= o.Queued && float64(o.Late) > lateShare*float64(o.Starts) && o.Starts > 0:
		return fmt.Sprintf("%d of %d requests started more than 5 ms behind the schedule though a connection was free: this machine is too slow for the rate",
			o.Late, o.Starts)
	case o.Starts > 0 && float64(o.Queued) > lateShare*float64(o.Starts):
		return fmt.Sprintf("%d of %d requests waited for one of the %d connections: the server is slower than the rate, or --concurrency is too small for it",
			o.Queued, o.Starts, o.Concurrency)
	}
	return ""
}

// Contention returns what else used much of the CPUs: other processes, or packets
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
