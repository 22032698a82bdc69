package diagnose

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// keepsAtLeast is how long an idle TCP connection has to be kept (RFC 5382, REQ-5), in seconds:
	// keepalives come every two hours.
	keepsAtLeast = 7440
	// tooSoon is a timeout that ends connections whose both ends are there, as nobody is silent for good
	// after so few seconds.
	tooSoon = 30
	// slowAnswer is a timeout of UDP that answers of a slow server may exceed, in seconds; the kernel's is 30.
	slowAnswer = 10
	// fewestExpired is how many connections must have been forgotten.
	fewestExpired = 3
)

// checkIdle: connections are forgotten though both ends keep them. Short timeouts alone are usual.
func checkIdle(rec *snapshot.Recording) (*Finding, Check) {
	switch {
	case rec.Flows == nil:
		return unknown(cmp.Or(rec.Last().PartError(snapshot.PartFlows), "two dumps of the table could not be compared"))
	case !rec.Flows.ControlsKnown:
		return unknown("which connections were forgotten was not recorded: a bundle of an older natkit")
	}
	tcp, datagrams := forgotten(rec.Flows.Expired, "tcp"), forgotten(rec.Flows.Expired, "udp")
	why := fmt.Sprintf("%s forgotten without being closed in %.1f s", units.Plural(tcp.Entries+datagrams.Entries, "open connection was", "open connections were"), rec.Seconds())
	if f := tcp.killed(rec); f != nil {
		return f, Check{Why: why}
	}
	if f := datagrams.late(rec); f != nil {
		return f, Check{Why: why}
	}
	return passed(why)
}

// expired are the connections of a protocol that were forgotten.
type expired struct {
	snapshot.Expired
	services []snapshot.Expired
}

func forgotten(all []snapshot.Expired, protocol string) (x expired) {
	for _, one := range all {
		if one.Protocol == protocol {
			x.Entries += one.Entries
			x.Revived += one.Revived
			x.services = append(x.services, one)
		}
	}
	return x
}

// killed is the finding about TCP: what the ends send later is INVALID, or comes to nothing.
func (x *expired) killed(rec *snapshot.Recording) *Finding {
	name := snapshot.TimeoutOf("tcp/ESTABLISHED")
	timeout := rec.Last().Sysctls.ClassTimeout("tcp/ESTABLISHED")
	if left := x.longest(); left > 0 && left < timeout/2 {
		name, timeout = "timeout that a rule sets (CT --timeout, ct timeout)", left+1
	}
	if x.Entries < fewestExpired || timeout == 0 || timeout >= keepsAtLeast {
		return nil
	}
	invalid, counts := rec.Last().ConntrackStat.Delta(rec.First().ConntrackStat, "invalid")
	f := x.finding(rec, worded("idle-killed", nil, nil, units.Count(x.Entries), timeout), name, timeout, keepsAtLeast)
	f.Remedies = append(f.Remedies, advice("idle-keepalive", max(timeout/2, 1)))
	if counts {
		f.Evidence = append(f.Evidence, Evidence{What: "packets that fit no known connection (INVALID)", Value: int64(invalid), Unit: rec.Span(), Source: "conntrack -S"})
	}
	if loose, known := rec.Last().Sysctls.Int(snapshot.Loose); known {
		f.Evidence = append(f.Evidence, Evidence{What: snapshot.Loose, Value: loose, Source: "sysctl"})
	}
	switch {
	case counts && invalid >= fewestExpired && 2*int64(invalid) >= x.Entries && (takesNoneUp(rec) || refusesInvalid(rec)):
		f.Confidence = "certain"
	case timeout < tooSoon && x.Revived == 0:
		f.Confidence = "possible"
	default:
		return nil
	}
	return f
}

// longest is what entries had left at most to the service of which most were forgotten: the timeout, about.
func (x *expired) longest() uint32 {
	if len(x.services) == 0 || x.services[0].Entries < fewestExpired {
		return 0
	}
	return x.services[0].LongestLeft
}

// refusesInvalid reports whether rules dropped packets that are INVALID.
func refusesInvalid(rec *snapshot.Recording) bool {
	a, _ := readAudit(rec)
	if a == nil || rec.First().Audit == nil {
		return false
	}
	r, _ := a.refusals(snapshot.RefusalInvalid)
	return r.packets > 0
}

// late is the finding about UDP: answers come to this host itself, which has no socket for them.
func (x *expired) late(rec *snapshot.Recording) *Finding {
	timeout := rec.Last().Sysctls.ClassTimeout("udp/unreplied")
	orphans, counts := hostDelta(rec, "UdpNoPorts")
	if x.Entries < fewestExpired || timeout == 0 || timeout >= slowAnswer || !counts || 2*int64(orphans) < x.Entries {
		return nil
	}
	f := x.finding(rec, worded("idle-killed udp", nil, nil, units.Count(x.Entries), timeout), snapshot.TimeoutOf("udp/unreplied"), timeout, 30)
	f.Evidence = append(f.Evidence, Evidence{What: "datagrams to ports of this host without a socket", Value: int64(orphans), Unit: rec.ProtocolSpan(), Source: snmpSource})
	return f
}

func (x *expired) finding(rec *snapshot.Recording, f *Finding, name string, timeout uint32, enough int) *Finding {
	var services []string
	f.Evidence = []Evidence{{What: name, Value: int64(timeout), Unit: "s", Source: "sysctl"}}
	for _, s := range x.services[:min(len(x.services), mostListed)] {
		if s.Entries == 0 {
			continue
		}
		services = append(services, fmt.Sprintf("%s %s", s.Protocol, s.Service))
		f.Evidence = append(f.Evidence, Evidence{What: fmt.Sprintf("connections to %s %s that were forgotten", s.Protocol, s.Service), Value: s.Entries, Source: "connection table"})
	}
	f.Title += ": " + firstOf(services)
	if !strings.HasPrefix(name, "net.") {
		f.Evidence[0].Source = "what entries have left at most"
		f.Remedies = []Remedy{advice("idle-rule", enough, where(rec))}
		return f
	}
	f.Remedies = []Remedy{advice("idle-raise", name, enough, where(rec))}
	return f
}
