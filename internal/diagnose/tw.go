package diagnose

import (
	"cmp"
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Names of counters (net/ipv4/proc.c).
const (
	// pawsTimewait counts segments, mostly SYNs, that TIME_WAIT rejects for their
	// timestamp; since Linux 6.16.
	pawsTimewait = "TcpExtPAWSTimewait"
	// pawsEstab counts the same until then, together with segments that connections
	// themselves reject.
	pawsEstab     = "TcpExtPAWSEstab"
	pawsPassive   = "TcpExtPAWSPassive"
	synChallenge  = "TcpExtTCPSYNChallenge"
	skippedInTW   = "TcpExtTCPACKSkippedTimeWait"
	passiveOpens  = "TcpPassiveOpens"
	netstatSource = "/proc/net/netstat"
	snmpSource    = "/proc/net/snmp"
	sockstat      = "/proc/net/sockstat"
)

// timeWaitSeconds is TCP_TIMEWAIT_LEN, the same in every kernel. Kernels before 4.1 keep
// it for 52.5 to 60 s, loaded ones for up to 112.5 s.
const timeWaitSeconds = 60

// offsetPerConnection names the systems that add an offset to their timestamps that depends
// on the ports. Linux 4.11 to 6.19 took the two addresses alone (28ee1b746f49);
// 165573e41f2f is in Linux 7.0 and came to stable series, one after the other. A NAT that
// changes source ports then makes many clocks of one machine.
const offsetPerConnection = "as Linux 7.0 and many stable kernels since March 2026 do"

// clientsSee is what becomes of a client whose SYN meets TIME_WAIT and is rejected
// (tcp_rcv_synsent_state_process; the first SYN comes again at once since 9603d47bad46).
const clientsSee = "the client gets the ACK of a connection that it does not know instead of a SYN-ACK, resets, and sends its SYN again " +
	"(Linux of today once within milliseconds, then as others after 1 s, 3 s, 7 s), or gives up; nothing is logged here"

// fewestRejected is from how many rejected segments on they are more than an accident:
// a late duplicate of a closed connection counts as well.
const fewestRejected = 3

// endpoint is what the rules about TIME_WAIT have in common: the namespace's own TCP
// over a recording.
type endpoint struct {
	rec         *snapshot.Recording
	first, last *snapshot.TCP
}

// readEndpoint gives the check that ends a rule where the TCP counters are missing.
func readEndpoint(rec *snapshot.Recording) (*endpoint, Check) {
	e := &endpoint{rec, rec.First().TCP, rec.Last().TCP}
	if e.first != nil && e.last != nil {
		return e, Check{}
	}
	return nil, Check{State: NotChecked,
		Why: cmp.Or(rec.Last().PartError(snapshot.PartTCP), rec.First().PartError(snapshot.PartTCP), "the TCP counters are missing")}
}

func (e *endpoint) delta(name string) (uint64, bool) {
	return e.last.Counters.Delta(e.first.Counters, name)
}

// timeWait returns the number of sockets in TIME_WAIT, the larger of the two samples; false
// where that is not known.
func (e *endpoint) timeWait() (int64, bool) {
	if e.first.Sockets == nil || e.last.Sockets == nil {
		return 0, false
	}
	return max(e.first.Sockets.TimeWait, e.last.Sockets.TimeWait), true
}

func (e *endpoint) inSeconds() string { return e.rec.ProtocolSpan() }

// share of n among the connections that came, those rejected included.
func (e *endpoint) share(n uint64) float64 {
	opened, _ := e.delta(passiveOpens)
	if n == 0 {
		return 0
	}
	return float64(n) / float64(n+opened)
}

// lossShare is the share of rejected attempts from which on connections are being lost
// in numbers that clients notice.
const lossShare = 0.01

func (e *endpoint) severity(n uint64) Severity {
	if s, _ := e.syns(); s != nil && showsLate(s) {
		return lateSeverity(s)
	}
	if e.share(n) >= lossShare {
		return Critical
	}
	return Warning
}

// showsLate reports whether a trace lasted long enough to see connections that come late.
func showsLate(s *snapshot.SYNs) bool { return s.LateKnown && s.Watched() >= completeTrace }

// lateOfRejected returns how many connections of the addresses with rejected SYNs came about
// late, or not at all.
func lateOfRejected(s *snapshot.SYNs) (n uint64) {
	for i := range s.Sources {
		from := &s.Sources[i]
		n += min(from.Late, from.ByTimestamp+from.BySequence)
	}
	return n
}

// lateSeverity is Warning where clients of today's Linux send a rejected SYN again at
// once and are in.
func lateSeverity(s *snapshot.SYNs) Severity {
	if late := lateOfRejected(s); late >= fewestRejected && float64(late) >= lossShare*float64(s.SYNs-min(s.SYNs, s.Repeated)) {
		return Critical
	}
	return Warning
}

// counted is the evidence of counters, where the kernel has them.
func (e *endpoint) counted(source string, names ...string) []Evidence {
	var all []Evidence
	for _, name := range names {
		if d, ok := e.delta(name); ok {
			all = append(all, Evidence{What: "counter " + name, Value: int64(d), Unit: e.inSeconds(), Source: source})
		}
	}
	return all
}

// held is the evidence of what is in TIME_WAIT.
func (e *endpoint) held() []Evidence {
	n, ok := e.timeWait()
	if !ok {
		return nil
	}
	return []Evidence{{What: "in TIME_WAIT", Value: n, Unit: "sockets", Source: sockstat}}
}

// setting is the evidence of sysctls.
func (e *endpoint) setting(names ...string) []Evidence {
	var all []Evidence
	for _, name := range names {
		if v, ok := e.rec.Last().Sysctls.Int(name); ok {
			all = append(all, Evidence{What: name, Value: v, Source: "sysctl"})
		}
	}
	return all
}

// syns is the trace of SYNs, nil where there is none, with the reason.
func (e *endpoint) syns() (*snapshot.SYNs, string) {
	if s := e.rec.SYNs; s != nil && s.Seconds > 0 {
		return s, ""
	}
	if tried, failed := e.rec.Last().Traced(snapshot.PartSYNs); tried {
		return nil, cmp.Or(failed, "SYNs were traced for no time")
	}
	return nil, needsTrace
}

// synSource returns how many of the SYNs a trace captured, for evidence.
func synSource(s *snapshot.SYNs) string {
	if s.Sample > 1 {
		return fmt.Sprintf("trace of SYNs, 1 in %s connections in the end", units.Count(s.Sample))
	}
	return "trace of SYNs"
}

// traced is the evidence of a trace: sums, then the sources with rejected SYNs.
func traced(s *snapshot.SYNs) []Evidence {
	source, span := synSource(s), fmt.Sprintf("in %.1f s", s.Watched())
	all := []Evidence{
		{What: "SYNs to listeners", Value: int64(s.SYNs), Unit: span, Source: source},
		{What: "SYNs that came again", Value: int64(s.Repeated), Unit: span, Source: source},
	}
	if s.Late > 0 {
		all = append(all, Evidence{What: "connections that came late, or not at all", Value: int64(s.Late), Unit: span,
			Source: fmt.Sprintf("%s: the SYN came again %g s or more after the first", source, snapshot.LateSYN)})
	}
	for i, from := range s.Sources {
		if i == mostShown || from.ByTimestamp+from.BySequence == 0 {
			break
		}
		all = append(all, Evidence{What: fmt.Sprintf("from %s to %s", from.Source, from.Destination), Value: described(&from), Source: source})
	}
	return all
}

// described is a source in words.
func described(s *snapshot.SYNSource) string {
	text := fmt.Sprintf("%s, %s sent again", units.Plural(s.SYNs, "SYN", "SYNs"), units.Count(s.Repeated))
	if n := s.ByTimestamp + s.BySequence; n > 0 {
		text += fmt.Sprintf(", %s answered with the ACK of the former connection", units.Count(n))
	}
	switch {
	case s.ByTimestamp > 0 && s.BySequence > 0:
		text += fmt.Sprintf(" (%s for their timestamp, %s for their sequence number)", units.Count(s.ByTimestamp), units.Count(s.BySequence))
	case s.ByTimestamp > 0:
		text += " for their timestamp"
	case s.BySequence > 0:
		text += " for their sequence number"
	}
	return text + clocks(s)
}

func clocks(s *snapshot.SYNSource) string {
	switch {
	case s.PerConnection:
		return "; each connection has a timestamp offset of its own (" + offsetPerConnection + "), so machines cannot be counted"
	case s.Clocks > 1 && !sharesClocks(s):
		return fmt.Sprintf("; %d timestamp clocks, which may be of as many machines or of one that gives each connection an offset of its own", s.Clocks)
	case s.Clocks > 1:
		return fmt.Sprintf("; %d timestamp clocks: at least as many machines are behind this address", s.Clocks)
	case s.Plain == s.SYNs && s.SYNs > 0:
		return "; without timestamps"
	}
	return ""
}

// sharesClocks reports whether a clock has two connections on average: where connections are
// few, offsets of their own are not distinguished from machines.
func sharesClocks(s *snapshot.SYNSource) bool {
	return uint64(2*s.Clocks) <= s.SYNs-min(s.SYNs, s.Repeated)
}

// machines is the address with most clocks among those with rejected SYNs.
func machines(s *snapshot.SYNs) (address string, n int) {
	for _, from := range s.Sources {
		if from.ByTimestamp+from.BySequence > 0 && !from.PerConnection && sharesClocks(&from) && from.Clocks > n {
			address, n = from.Source, from.Clocks
		}
	}
	return address, n
}

// The ways out of a port that comes back too soon. All are advice: they concern other
// machines, or lower what natkit never lowers automatically.
func (e *endpoint) reuseRemedies() []Remedy {
	return []Remedy{
		advice("tw-nat-addresses", e.portsNeeded()),
		advice("tw-service-addresses", e.portsNeeded()),
		advice("tw-keep-alive"),
		advice("tw-clients-close"),
		advice("tw-nat-hold", timeWaitTimeout),
		advice("tw-nat-own-ports", offsetPerConnection),
		advice("tw-max-buckets", snapshot.TCPMaxTWBuckets),
		advice("tw-no-timestamps-off", snapshot.TCPTimestamps),
	}
}

// portsNeeded is the arithmetic of the source with most rejected SYNs, where a trace has
// seen all of them, else of all.
func (e *endpoint) portsNeeded() string {
	rate, of := 0.0, "all clients of this server"
	if s, _ := e.syns(); s != nil && len(s.Sources) > 0 && s.All() {
		from := s.Sources[0]
		rate, of = float64(from.SYNs-min(from.SYNs, from.Repeated))/s.Seconds, from.Source
	} else if opened, ok := e.delta(passiveOpens); ok && e.rec.Seconds() > 0 {
		rate = float64(opened) / e.rec.Seconds()
	}
	if rate < 1 {
		return fmt.Sprintf("connections per second × %d s is how many ports are needed", timeWaitSeconds)
	}
	return fmt.Sprintf("%s/s from %s × %d s of TIME_WAIT are %s ports", units.Rate(rate), of, timeWaitSeconds,
		units.Count(int64(math.Ceil(rate*timeWaitSeconds))))
}
