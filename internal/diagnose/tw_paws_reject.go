package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// twPAWSReject: a NAT gives a port away again while this server holds the former
// connection in TIME_WAIT. The SYN's timestamp is from another clock; where it is
// behind, tcp_timewait_state_process takes the SYN for an old duplicate and answers with
// the former connection's ACK. It begins TIME_WAIT's minute anew, which the client's RST
// ends at once, unless it is lost or tcp_rfc1337 is 1.
var twPAWSReject = Rule{
	ID:    "tw-paws-reject",
	Title: "SYNs rejected in TIME_WAIT by their timestamp",
	Check: checkTWPAWS,
}

// What PAWSEstab must have before it is taken for SYNs without a trace: it counts
// segments that open connections reject, too, as reordering makes them.
const (
	fewestEstab   = 10
	leastOfEstab  = lossShare
	fewestInTW    = 100
	completeTrace = 3.0 // seconds: a SYN that is not answered comes again after 1 s
	answersTell   = 1.0 // seconds of answers in which rejections that are many show
)

func checkTWPAWS(rec *snapshot.Recording) (*Finding, Check) {
	e, why := readEndpoint(rec)
	if e == nil {
		return nil, Check{State: NotChecked, Why: why}
	}
	name := pawsTimewait
	n, exact := e.delta(name)
	if !exact {
		name = pawsEstab
		var ok bool
		if n, ok = e.delta(name); !ok {
			return nil, Check{State: NotChecked, Why: "this kernel counts no segments that PAWS rejects"}
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
		return nil, Check{State: OK, Why: seen}
	}
	return e.pawsFinding(name, n, confidence), Check{Why: seen}
}

// pawsConfidence is how sure it is that SYNs are rejected; empty, with a remark, where
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
		if n > 0 && s.AnswersSeconds == 0 && s.Sample == 1 && s.Lost == 0 && s.Seconds >= completeTrace {
			return "", "not SYNs, none of which came again or was refused by its client: late segments of closed connections, or of open ones"
		}
		if !exact && s.AnswersSeconds >= answersTell {
			return "", "the trace saw no such SYNs: segments of open connections count there, too, before Linux 6.16"
		}
	}
	switch {
	case n == 0:
		return "", ""
	case exact && n < fewestRejected:
		return "", "so few may be late duplicates (--for looks longer)"
	case exact:
		return "likely", ""
	case n < fewestEstab || e.share(n) < leastOfEstab || !e.manyInTimeWait(n):
		return "", "segments of open connections count there, too, before Linux 6.16 (--trace tells)"
	}
	return "possible", ""
}

// rejectedByTimestamp is how many SYNs of a trace TIME_WAIT surely rejected: no more than
// the counter has, n, and none that may have met open connections.
func (e *endpoint) rejectedByTimestamp(s *snapshot.SYNs, n uint64) uint64 {
	rejected, _ := s.Rejected()
	return min(n, rejected-min(rejected, e.challengedToo(s)))
}

// manyInTimeWait reports whether there are so many tuples in TIME_WAIT, and so many new
// connections, that n SYNs may have met one.
func (e *endpoint) manyInTimeWait(n uint64) bool {
	held, ok := e.timeWait()
	opened, _ := e.delta(passiveOpens)
	return ok && held >= fewestInTW && opened >= n
}

func (e *endpoint) pawsFinding(name string, n uint64, confidence string) *Finding {
	f := &Finding{
		Severity:   e.severity(n),
		Confidence: confidence,
		Title:      "new connections are rejected here: a NAT uses their port again too soon, with an older timestamp",
		Cause: "a NAT in front of the clients has used a port again while this host still holds the former connection in TIME_WAIT, " +
			"and the SYN's TCP timestamp is behind the former connection's, so the kernel takes it for an old duplicate (PAWS, RFC 7323): it comes from another machine's clock, " +
			"or, where systems give each connection an offset of its own (" + offsetPerConnection + "), from another port of the same machine",
		Consequence: clientsSee + "; the SYN begins TIME_WAIT's minute anew, unless the client's RST comes here and ends it (with " + snapshot.TCPRFC1337 + " = 1 it does not)",
		Remedies:    e.reuseRemedies(),
	}
	if confidence == "possible" {
		f.Severity = Warning
		f.Title = "new connections may be rejected here: a NAT uses their port again too soon, with an older timestamp"
		f.Remedies = append([]Remedy{{Title: "look at the SYNs themselves: natkit doctor --trace", Predicts: "it tells whether these are SYNs, and from where"}}, f.Remedies...)
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
