package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const establishedTimeout = "net.netfilter.nf_conntrack_tcp_timeout_established"

// An established leak is worth a warning where connections that have been idle for
// longer than any keepalive take up leakOfLimit of the limit, or leakOfTable of a table
// where that is no trifle.
const (
	leakOfLimit  = 0.20
	leakOfTable  = 0.50
	leakTrifle   = 20000
	fewestLeaked = 1000
	oneDay       = 86400
	// fewInUse is the share of ESTABLISHED, in use lately, below which it is doubtful that
	// the rest are idle: a timeout that was raised, or that a rule sets, looks like that.
	fewInUse = 0.01
)

// checkEstablishedLeak: much of the table is connections that were never closed as far as
// the tracker saw: their hosts are gone, or a firewall has forgotten them. Each stays
// for nf_conntrack_tcp_timeout_established, five days by default.
func (t *table) checkEstablishedLeak() (*Finding, Check) {
	tab := t.rec.Last().Table
	switch {
	case tab == nil:
		return unknown(t.noDump())
	case tab.Idle == nil:
		return unknown("idle times are not known: no " + establishedTimeout + ", or a bundle of an older natkit")
	case tab.Sampled == 0:
		return passed("the table is empty")
	}
	idle := int64(float64(tab.Idle.IdleFrom(snapshot.IdleLong)) * t.scale())
	seen := fmt.Sprintf("%s of %s entries are ESTABLISHED and idle for more than %s", units.Count(idle), units.Count(t.count), hours(snapshot.IdleLong))
	ofLimit, ofTable := float64(idle)/float64(t.max), float64(idle)/float64(max(1, t.count))
	if idle < fewestLeaked || ofLimit < leakOfLimit && (ofTable < leakOfTable || idle < leakTrifle) {
		return passed(seen)
	}
	return t.leak(tab.Idle, idle), Check{Why: seen}
}

func (t *table) leak(i *snapshot.IdleEstablished, idle int64) *Finding {
	day := int64(float64(i.IdleFrom(oneDay)) * t.scale())
	source := t.dumpSource() + ", timeout less seconds left"
	f := worded("ct-established-leak",
		[]Evidence{
			{What: "idle > " + hours(snapshot.IdleLong), Value: idle, Unit: "entries", Source: source},
			{What: "idle > " + hours(oneDay), Value: day, Unit: "entries", Source: source},
			{What: "tracked connections", Value: t.count, Source: snapshot.ConntrackCount},
			{What: "limit", Value: t.max, Source: snapshot.ConntrackMax},
			{What: "timeout of ESTABLISHED", Value: i.TimeoutSeconds, Unit: "s", Source: establishedTimeout},
		},
		leakRemedies(t.rec, i, idle, day), units.Percent(float64(idle)/float64(t.max)), hours(i.TimeoutSeconds))
	if inUse := i.Entries - i.IdleFrom(snapshot.IdleLong); float64(inUse) < fewInUse*float64(i.Entries) {
		f.Confidence = "possible"
		f.Cause += "; or, as hardly any is in use, their timeout differs from " + establishedTimeout + ": it was raised lately, or a rule sets one (nft ct timeout, iptables CT --timeout)"
	}
	f.Evidence = append(f.Evidence, idleTalkers("idle from ", i.Sources, t)...)
	f.Evidence = append(f.Evidence, idleTalkers("idle to ", i.Services, t)...)
	return f
}

func idleTalkers(what string, talkers []snapshot.Talker, t *table) []Evidence {
	var e []Evidence
	for _, w := range talkers[:min(len(talkers), mostShown)] {
		e = append(e, Evidence{What: what + w.Who, Value: int64(float64(w.Entries) * t.scale()), Unit: "entries", Source: t.dumpSource()})
	}
	return e
}

// leakRemedies are advice: a lower timeout cuts idle connections that do exist.
func leakRemedies(rec *snapshot.Recording, i *snapshot.IdleEstablished, idle, day int64) []Remedy {
	var r []Remedy
	lower := func(seconds, gone int64, why, risk string) {
		if i.TimeoutSeconds > seconds {
			r = append(r, advice("shorten-established", establishedTimeout, seconds, i.TimeoutSeconds, where(rec), why, units.Count(gone),
				risk))
		}
	}
	lower(oneDay, day, "a day, as kube-proxy sets it",
		"a connection that is idle for longer loses its entry: with NAT it hangs or is reset at its next packet")
	lower(snapshot.IdleLong, idle, "the least that RFC 5382 allows",
		"connections that are idle for longer and send no keepalives (databases, ssh, message queues) hang or are reset at their next packet; applications need keepalives below two hours (net.ipv4.tcp_keepalive_time)")
	return append(r,
		advice("leak-keepalives"),
		advice("leak-delete", deleteCommand(rec, "-p tcp --state ESTABLISHED -s ADDRESS")))
}

// hours is a long time in words.
func hours(seconds int64) string {
	switch {
	case seconds >= 2*oneDay && seconds%oneDay == 0:
		return fmt.Sprintf("%d days", seconds/oneDay)
	case seconds == oneDay:
		return "a day"
	case seconds%3600 == 0:
		return fmt.Sprintf("%d h", seconds/3600)
	}
	return fmt.Sprintf("%d h %d min", seconds/3600, seconds%3600/60)
}
