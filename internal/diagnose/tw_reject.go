package diagnose

import (
	"cmp"
	"fmt"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// What PAWSEstab must have before it is taken for SYNs without a trace: it counts
// segments that open connections reject, too, as reordering makes them.
const (
	fewestEstab   = 10
	leastOfEstab  = lossShare
	fewestInTW    = 100
	completeTrace = 3.0 // seconds: a SYN that is not answered comes again after 1 s
	answersTell   = 1.0 // seconds of answers in which rejections that are many show
)

// checkTWPAWS: a NAT gives a port away again while this server holds the former
// connection in TIME_WAIT. The SYN's timestamp is from another clock; where it is
// behind, tcp_timewait_state_process takes the SYN for an old duplicate and answers with
// the former connection's ACK. It begins TIME_WAIT's minute anew, which the client's RST
// ends at once, unless it is lost or tcp_rfc1337 is 1.
func (e *endpoint) checkTWPAWS() (*Finding, Check) {
	name := pawsTimewait
	n, exact := e.delta(name)
	if !exact {
		name = pawsEstab
		var ok bool
		if n, ok = e.delta(name); !ok {
			return unknown("this kernel counts no segments that PAWS rejects")
		}
	}
	seen := fmt.Sprintf("%s grew by %s", name, units.Count(n))
	if held, ok := e.timeWait(); ok {
		seen += fmt.Sprintf(", %s in TIME_WAIT", units.Count(held))
	}
	confidence, but := e.pawsConfidence(n, exact)
	if confidence == "" {
		if but != "" {
			seen += ": " + but
		}
		return passed(seen)
	}
	return e.pawsFinding(name, n, confidence), Check{Why: seen}
}

// pawsConfidence returns how sure it is that SYNs are rejected; empty, with a remark, where
// nothing says so.
func (e *endpoint) pawsConfidence(n uint64, exact bool) (confidence, but string) {
	s, _ := e.syns()
	if s != nil {
		if e.rejectedByTimestamp(s, n) >= fewestRejected {
			if exact || inTimeWait(s) > 0 {
				return "certain", ""
			}
			return "likely", ""
		}
		if n > 0 && s.AnswersSeconds == 0 && s.All() && s.Seconds >= completeTrace {
			return "", "not SYNs, none of which came again or was refused by its client: late segments of closed connections, or of open ones"
		}
		if !exact && s.PausedSeconds == 0 && s.AnswersSeconds >= answersTell {
			return "", "the trace saw no such SYNs: segments of open connections count there, too, before Linux 6.16"
		}
	}
	switch {
	case n == 0:
		return "", ""
	case exact && n < fewestRejected:
		return "", "so few may be late duplicates (use a longer --for)"
	case exact:
		return "likely", ""
	case n < fewestEstab || e.share(n) < leastOfEstab || !e.manyInTimeWait(n):
		return "", "segments of open connections count there, too, before Linux 6.16 (--trace distinguishes them)"
	}
	return "possible", ""
}

// rejectedByTimestamp returns how many SYNs of a trace TIME_WAIT surely rejected: no more than
// the counter has, n, and none that may have met open connections.
func (e *endpoint) rejectedByTimestamp(s *snapshot.SYNs, n uint64) uint64 {
	rejected, _ := s.Rejected()
	return min(n, rejected-min(rejected, e.challengedToo(s)))
}

// manyInTimeWait reports whether there are enough tuples in TIME_WAIT, and enough new
// connections, that n SYNs may have met one.
func (e *endpoint) manyInTimeWait(n uint64) bool {
	held, ok := e.timeWait()
	opened, _ := e.delta(passiveOpens)
	return ok && held >= fewestInTW && opened >= n
}

func (e *endpoint) pawsFinding(name string, n uint64, confidence string) *Finding {
	f := worded("tw-paws-reject", nil, e.reuseRemedies(), offsetPerConnection, clientsSee, snapshot.TCPRFC1337)
	f.Severity, f.Confidence = e.severity(n), confidence
	if confidence == "possible" {
		f.Severity = Warning
		f.Title = "new connections may be rejected here: a NAT uses their port again too soon, with an older timestamp"
		f.Remedies = append([]Remedy{advice("tw-trace")}, f.Remedies...)
	}
	f.Evidence = append(e.counted(netstatSource, name, skippedInTW), e.counted(snmpSource, passiveOpens)...)
	f.Evidence = append(append(f.Evidence, e.held()...), e.setting(snapshot.TCPTimestamps, snapshot.TCPMaxTWBuckets)...)
	if s, _ := e.syns(); s != nil {
		f.Evidence = append(f.Evidence, traced(s)...)
		if address, clocks := machines(s); clocks > 1 {
			f.Title += fmt.Sprintf(" (%s has %d timestamp clocks)", address, clocks)
		}
	}
	return f
}

// mayRecycle reports whether a kernel has net.ipv4.tcp_tw_recycle (removed by 4396e46187ca, Linux 4.12), or is not known.
func mayRecycle(release string) bool {
	r, err := capacity.ParseRelease(release)
	return err != nil || r.Before(4, 12)
}

// checkTWRecycle: kernels before 4.12 can be set to remember the last timestamp of each
// address, and to drop SYNs that are behind it for a minute (tcp_peer_is_proven). Of
// clients behind one NAT address all but the one with the highest clock are dropped.
func checkTWRecycle(rec *snapshot.Recording) (*Finding, Check) {
	if len(rec.Last().Sysctls) == 0 {
		return unknown(cmp.Or(rec.Last().PartError(snapshot.PartSysctls), "the sysctls are missing"))
	}
	on, there := rec.Last().Sysctls.Int(snapshot.TCPTWRecycle)
	switch {
	case !there && rec.SomeSysctls && mayRecycle(rec.Last().Kernel.Release):
		return unknown(snapshot.TCPTWRecycle + " is not among the sysctls that were read, and kernels before 4.12 have it")
	case !there:
		return passed("this kernel has no " + snapshot.TCPTWRecycle)
	}
	if on == 0 {
		return passed(snapshot.TCPTWRecycle + " is 0")
	}
	if v, ok := rec.Last().Sysctls.Int(snapshot.TCPTimestamps); ok && v == 0 {
		return passed(fmt.Sprintf("%s is %d, and does nothing without timestamps", snapshot.TCPTWRecycle, on))
	}
	e, end := readEndpoint(rec)
	if e == nil {
		return unknown(fmt.Sprintf("%s is %d, and the counters are missing: %s", snapshot.TCPTWRecycle, on, end.Why))
	}
	n, ok := e.delta(pawsPassive)
	if !ok {
		return unknown(fmt.Sprintf("%s is %d, and there is no counter PAWSPassive", snapshot.TCPTWRecycle, on))
	}
	total := e.last.Counters[pawsPassive]
	seen := fmt.Sprintf("%s is %d, PAWSPassive grew by %s to %s", snapshot.TCPTWRecycle, on, units.Count(n), units.Count(total))
	return e.recycleFinding(n, total), Check{Why: seen}
}

// recycleFinding grows with what has come of the setting so far.
func (e *endpoint) recycleFinding(n, total uint64) *Finding {
	f := worded("tw-recycle",
		append(e.setting(snapshot.TCPTWRecycle, snapshot.TCPTimestamps), e.counted(netstatSource, pawsPassive)...),
		[]Remedy{advice("tw-recycle-off", snapshot.TCPTWRecycle, where(e.rec), snapshot.TCPTWReuse)}, snapshot.TCPTWRecycle)
	since := "since boot"
	if e.rec.SinceNstat {
		since = e.rec.ProtocolSpan()
	}
	f.Evidence = append(f.Evidence, Evidence{What: "PAWSPassive " + since, Value: int64(total), Source: netstatSource})
	switch {
	case n > 0 && !e.rec.SinceStart:
		f.Severity, f.Title = Critical, "tcp_tw_recycle drops connections of clients behind NAT"
		f.Evidence = append(append(f.Evidence, e.counted(snmpSource, passiveOpens)...), e.held()...)
	case total > 0:
		f.Severity, f.Title = Warning, "tcp_tw_recycle is on, and has dropped connections of clients behind NAT"
	}
	return f
}

// checkTWSeq: as twPAWSReject, but one of the two sides uses no timestamps. Then
// TIME_WAIT takes a SYN only if its sequence number is after the former connection's,
// which that of another machine is by chance. No counter shows it.
func (e *endpoint) checkTWSeq() (*Finding, Check) {
	held, known := e.timeWait()
	s, why := e.syns()
	switch {
	case s == nil && known && held == 0:
		return passed("nothing is in TIME_WAIT")
	case s == nil:
		check := Check{State: NotChecked, Why: why, NotAsked: why == needsTrace}
		if known {
			check.Why += fmt.Sprintf(" (no counter shows it; %s in TIME_WAIT)", units.Count(held))
		}
		return nil, check
	}
	_, rejected := s.Rejected()
	rejected -= min(rejected, e.challengedToo(s))
	seen := fmt.Sprintf("%s in %.1f s, %s came again, %s rejected", units.Plural(s.SYNs, "SYN", "SYNs"), s.Watched(), units.Count(s.Repeated), units.Count(rejected))
	if s.Sample > 1 {
		seen += fmt.Sprintf(" (1 in %s examined)", units.Count(s.Sample))
	}
	if s.PausedSeconds > 0 {
		seen += fmt.Sprintf(" (%.1f s were not watched: too many packets)", s.PausedSeconds)
	}
	if rejected < fewestRejected {
		return passed(seen)
	}
	return e.seqFinding(s, rejected), Check{Why: seen}
}

// challengedToo returns how many of the SYNs that seem rejected may have met open connections,
// by the counter, beyond those that the kernel reported when it was asked.
func (e *endpoint) challengedToo(s *snapshot.SYNs) uint64 {
	challenged, _ := e.delta(synChallenge)
	challenged /= uint64(max(1, s.Sample))
	for i := range s.Sources {
		challenged -= min(challenged, s.Sources[i].Challenged)
	}
	return challenged
}

func (e *endpoint) seqFinding(s *snapshot.SYNs, rejected uint64) *Finding {
	f := worded("tw-seq-reject", nil, e.reuseRemedies(), clientsSee)
	switch {
	case !s.LateKnown && float64(rejected) >= lossShare*float64(s.SYNs):
		f.Severity = Critical
	case s.LateKnown && !showsLate(s):
		f.Consequence = clientsSee + ", and no counter shows it; the trace was too short to see whether connections come late"
	case s.LateKnown:
		f.Severity = lateSeverity(s)
	}
	if showsLate(s) && lateOfRejected(s) == 0 {
		f.Consequence = "their clients sent these SYNs again at once, and no connection was late; clients that do not would wait 1 s, 3 s, 7 s, or give up. No counter shows it"
	}
	// Another ACK that answers a SYN is one of RFC 5961, which are counted, or of a handshake
	// that has not ended (tcp_check_req), which the kernel has reported.
	if challenged, ok := e.delta(synChallenge); inTimeWait(s) > 0 || ok && challenged == 0 {
		f.Confidence = "certain"
	}
	f.Evidence = append(traced(s), Evidence{What: "rejected SYNs whose tuple was in TIME_WAIT when queried at once", Value: int64(inTimeWait(s)), Source: "sock_diag"})
	f.Evidence = append(f.Evidence, e.counted(netstatSource, skippedInTW, pawsTimewait, synChallenge)...)
	f.Evidence = append(append(f.Evidence, e.held()...), e.setting(snapshot.TCPTimestamps, snapshot.TCPMaxTWBuckets)...)
	if v, ok := e.rec.Last().Sysctls.Int(snapshot.TCPTimestamps); ok && v == 0 {
		f.Remedies = append([]Remedy{advice("tw-timestamps-on", snapshot.TCPTimestamps)}, f.Remedies[:len(f.Remedies)-1]...)
	}
	return f
}

func inTimeWait(s *snapshot.SYNs) (n uint64) {
	for i := range s.Sources {
		n += s.Sources[i].TimeWait
	}
	return n
}
