package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// twRecycle: kernels before 4.12 can be told to remember the last timestamp of each
// address, and to drop SYNs that are behind it for a minute (tcp_peer_is_proven). Of
// clients behind one NAT address all but the one with the highest clock are dropped.
var twRecycle = Rule{
	ID:    "tw-recycle",
	Title: "tcp_tw_recycle drops SYNs of clients behind NAT",
	Check: checkTWRecycle,
}

func checkTWRecycle(rec *snapshot.Recording) (*Finding, Check) {
	if len(rec.Last().Sysctls) == 0 {
		return nil, Check{State: NotChecked, Why: unreadSysctls(rec)}
	}
	on, there := rec.Last().Sysctls.Int(snapshot.TCPTWRecycle)
	if !there {
		return nil, Check{State: OK, Why: "this kernel has no " + snapshot.TCPTWRecycle}
	}
	if on == 0 {
		return nil, Check{State: OK, Why: snapshot.TCPTWRecycle + " is 0"}
	}
	if v, ok := rec.Last().Sysctls.Int(snapshot.TCPTimestamps); ok && v == 0 {
		return nil, Check{State: OK, Why: fmt.Sprintf("%s is %d, and does nothing without timestamps", snapshot.TCPTWRecycle, on)}
	}
	e, why := readEndpoint(rec)
	if e == nil {
		return nil, Check{State: NotChecked, Why: fmt.Sprintf("%s is %d, and the counters are missing: %s", snapshot.TCPTWRecycle, on, why)}
	}
	n, ok := e.delta(pawsPassive)
	if !ok {
		return nil, Check{State: NotChecked, Why: fmt.Sprintf("%s is %d, and there is no counter PAWSPassive", snapshot.TCPTWRecycle, on)}
	}
	total := e.last.Counters[pawsPassive]
	seen := fmt.Sprintf("%s is %d, PAWSPassive grew by %s to %s", snapshot.TCPTWRecycle, on, units.Count(n), units.Count(total))
	return e.recycleFinding(n, total), Check{Why: seen}
}

func unreadSysctls(rec *snapshot.Recording) string {
	if why := rec.Last().PartError("sysctls"); why != "" {
		return why
	}
	return "the sysctls are missing"
}

// recycleFinding grows with what has come of the setting so far.
func (e *endpoint) recycleFinding(n, total uint64) *Finding {
	f := &Finding{
		Severity:   Notice,
		Confidence: "certain",
		Title:      "tcp_tw_recycle is on: it will drop connections of clients behind NAT",
		Evidence:   append(e.setting(snapshot.TCPTWRecycle, snapshot.TCPTimestamps), e.counted(netstatSource, pawsPassive)...),
		Cause: "with " + snapshot.TCPTWRecycle + " the kernel remembers one timestamp for each client address for a minute, and drops SYNs with an older one without an answer; " +
			"clients that share an address behind a NAT have clocks of their own",
		Consequence: "only some of the clients behind a NAT can connect, by turns; the others' SYNs are dropped and sent again after 1 s, 3 s, 7 s. Clients with addresses of their own see nothing",
		Remedies: []Remedy{{
			Title:    "sysctl -w " + snapshot.TCPTWRecycle + "=0" + where(e.rec),
			Predicts: "SYNs are judged by their own connection's TIME_WAIT only",
			Cost:     "TIME_WAIT of connections that this host opened itself stays for 60 s",
			Risk:     "a host that opens many connections to one address needs more ports: " + snapshot.TCPTWReuse + "=1 is the safe setting for these",
		}},
	}
	f.Evidence = append(f.Evidence, Evidence{What: "PAWSPassive since boot", Value: int64(total), Source: netstatSource})
	switch {
	case n > 0:
		f.Severity, f.Title = Critical, "tcp_tw_recycle drops connections of clients behind NAT"
		f.Evidence = append(append(f.Evidence, e.counted(snmpSource, passiveOpens)...), e.held()...)
	case total > 0:
		f.Severity, f.Title = Warning, "tcp_tw_recycle is on, and has dropped connections of clients behind NAT"
	}
	return f
}
