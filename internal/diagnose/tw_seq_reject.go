package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// twSeqReject: as twPAWSReject, but one of the two sides uses no timestamps. Then
// TIME_WAIT takes a SYN only if its sequence number is after the former connection's,
// which that of another machine is by chance. No counter tells of it.
var twSeqReject = Rule{
	ID:    "tw-seq-reject",
	Title: "SYNs rejected in TIME_WAIT by their sequence number",
	Check: checkTWSeq,
}

func checkTWSeq(rec *snapshot.Recording) (*Finding, Check) {
	e, why := readEndpoint(rec)
	if e == nil {
		return nil, Check{State: NotChecked, Why: why}
	}
	held, known := e.timeWait()
	s, why := e.syns()
	switch {
	case s == nil && known && held == 0:
		return nil, Check{State: OK, Why: "nothing is in TIME_WAIT"}
	case s == nil:
		check := Check{State: NotChecked, Why: why, NotAsked: why == needsTrace}
		if known {
			check.Why += fmt.Sprintf(" (no counter tells; %s in TIME_WAIT)", units.Count(held))
		}
		return nil, check
	}
	_, rejected := s.Rejected()
	rejected -= min(rejected, e.challengedToo(s))
	seen := fmt.Sprintf("%s in %.1f s, %s came again, %s rejected", units.Plural(s.SYNs, "SYN", "SYNs"), s.Seconds, units.Count(s.Repeated), units.Count(rejected))
	if s.Sample > 1 {
		seen += fmt.Sprintf(" (1 in %s looked at)", units.Count(s.Sample))
	}
	if rejected < fewestRejected {
		return nil, Check{State: OK, Why: seen}
	}
	return e.seqFinding(s, rejected), Check{Why: seen}
}

// challengedToo is how many of the SYNs that seem rejected may have met open connections,
// by the counter, beyond those that the kernel told when it was asked.
func (e *endpoint) challengedToo(s *snapshot.SYNs) uint64 {
	challenged, _ := e.delta(synChallenge)
	challenged /= uint64(max(1, s.Sample))
	for i := range s.Sources {
		challenged -= min(challenged, s.Sources[i].Challenged)
	}
	return challenged
}

func (e *endpoint) seqFinding(s *snapshot.SYNs, rejected uint64) *Finding {
	f := &Finding{
		Severity:   Warning,
		Confidence: "likely",
		Title:      "new connections are rejected here: a NAT uses their port again too soon, and their sequence number is not after the old one",
		Cause: "a NAT in front of the clients has used a port again while this host still holds the former connection in TIME_WAIT; without timestamps on both sides " +
			"a SYN is taken only if its sequence number is after the former connection's, which half of those from other machines and ports are not",
		Consequence: clientsSee + ", and no counter tells",
		Remedies:    e.reuseRemedies(),
	}
	switch {
	case !s.LateKnown && float64(rejected) >= lossShare*float64(s.SYNs):
		f.Severity = Critical
	case s.LateKnown && !showsLate(s):
		f.Consequence = clientsSee + ", and no counter tells; the trace was too short to see whether connections come late"
	case s.LateKnown:
		f.Severity = lateSeverity(s)
	}
	if showsLate(s) && lateOfRejected(s) == 0 {
		f.Consequence = "their clients sent these SYNs again at once, and no connection was late; clients that do not would wait 1 s, 3 s, 7 s, or give up. No counter tells"
	}
	// Another ACK that answers a SYN is one of RFC 5961, which are counted, or of a handshake
	// that has not ended (tcp_check_req), of which the kernel has told.
	if challenged, ok := e.delta(synChallenge); inTimeWait(s) > 0 || ok && challenged == 0 {
		f.Confidence = "certain"
	}
	f.Evidence = append(traced(s), Evidence{What: "rejected SYNs whose tuple was in TIME_WAIT when asked at once", Value: int64(inTimeWait(s)), Source: "sock_diag"})
	f.Evidence = append(f.Evidence, e.counted(netstatSource, skippedInTW, pawsTimewait, synChallenge)...)
	f.Evidence = append(append(f.Evidence, e.held()...), e.setting(snapshot.TCPTimestamps, snapshot.TCPMaxTWBuckets)...)
	if v, ok := e.rec.Last().Sysctls.Int(snapshot.TCPTimestamps); ok && v == 0 {
		f.Remedies = append([]Remedy{{
			Title:    fmt.Sprintf("%s=1 helps clients with a clock of their own each", snapshot.TCPTimestamps),
			Predicts: "a client that comes back alone is always accepted, as its timestamp is newer; behind a shared NAT address timestamps reject as well (tw-paws-reject)",
		}}, f.Remedies[:len(f.Remedies)-1]...)
	}
	return f
}

func inTimeWait(s *snapshot.SYNs) (n uint64) {
	for i := range s.Sources {
		n += s.Sources[i].TimeWait
	}
	return n
}
