package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// A source takes part in a flood if it holds fewestUnanswered entries without an
	// answer, and they are at least the share mostUnanswered of its entries: a source that
	// is usually answered, and loses some, does not.
	fewestUnanswered = 1000
	mostUnanswered   = 0.80
	// Those sources together must hold floodOfLimit of the limit, or floodOfTable of a
	// table that is no trifle, and open floodRate such connections a second.
	floodOfLimit = 0.10
	floodOfTable = 0.50
	floodTrifle  = 5000
	floodRate    = 20
	// crowded is the share of the limit from which what a flood takes is missing to
	// others.
	crowded = 0.80
)

// checkFlood: few sources open connections that get no answer: a scan, a flood of SYN or
// UDP, or a program that hammers a dead destination.
//
// A flood with forged sources is not distinguished from a dead server with many clients,
// and not reported. Neither are connections whose answers take another way (asymmetric
// routing): what follows their SYN is INVALID here, and is forwarded all the same.
func (t *table) checkFlood() (*Finding, Check) {
	tab := t.rec.Last().Table
	switch {
	case tab == nil:
		return unknown(t.noDump())
	case tab.Unanswered == nil:
		return unknown("unanswered connections were not counted by source: a bundle of an older natkit")
	case tab.Sampled == 0:
		return passed("the table is empty")
	}
	fl := t.flood(tab.Unanswered)
	seen := fmt.Sprintf("%s of %s entries are TCP or UDP connections without an answer", units.Count(t.scaled(tab.Unanswered.TCP+tab.Unanswered.UDP)), units.Count(t.count))
	if len(fl.sources) > 0 {
		seen += fmt.Sprintf(", %s of them from %s that get hardly any", units.Count(fl.entries), units.Plural(len(fl.sources), "source", "sources"))
	}
	switch {
	case !fl.large(t):
		return passed(seen)
	case fl.rateKnown && fl.perSecond < floodRate:
		return passed(fmt.Sprintf("%s; only %s new ones a second: it is over", seen, units.Rate(fl.perSecond)))
	}
	if l, _ := t.losses(); fl.mayBeAnswered(t, l.Invalid) {
		return unknown(fmt.Sprintf("%s, and %s packets were INVALID %s: a flood of several kinds, or answers that take another way (asymmetric routing), which cannot be distinguished", seen, units.Count(l.Invalid), t.rec.Span()))
	}
	return fl.finding(t), Check{Why: seen}
}

// scaled is a number of sampled entries as one of the whole table.
func (t *table) scaled(entries int64) int64 { return int64(float64(entries) * t.scale()) }

// flood is the sources that take part.
type flood struct {
	sources  []snapshot.UnansweredSource
	services []snapshot.Talker
	// entries without an answer of these sources, in the whole table.
	entries int64
	// perSecond of them are new; tcpPerSecond of those are TCP.
	perSecond, tcpPerSecond float64
	rateKnown               bool
}

func (t *table) flood(u *snapshot.Unanswered) flood {
	fl := flood{services: u.Services, rateKnown: t.rec.Flows != nil}
	for _, s := range u.Sources {
		if t.scaled(s.Entries) < fewestUnanswered || float64(s.Entries) < mostUnanswered*float64(s.OfEntries) {
			continue
		}
		fl.sources = append(fl.sources, s)
		fl.entries += t.scaled(s.Entries)
		rate, _ := t.unansweredRate(s)
		fl.perSecond += rate
		if s.Protocol == "tcp" {
			fl.tcpPerSecond += rate
		}
	}
	return fl
}

// mayBeAnswered reports whether the TCP connections may be alive: an acknowledgement, data
// and a FIN that follow a SYN whose answer went elsewhere are INVALID, each.
func (fl flood) mayBeAnswered(t *table, invalid int64) bool {
	tcp := slices.ContainsFunc(fl.sources, func(s snapshot.UnansweredSource) bool { return s.Protocol == "tcp" })
	return tcp && float64(invalid) >= max(floodRate, fl.tcpPerSecond)*t.rec.Seconds()
}

// unansweredRate returns how many unanswered entries of the source are new per second; it is
// known for the ten busiest.
func (t *table) unansweredRate(s snapshot.UnansweredSource) (float64, bool) {
	if t.rec.Flows == nil {
		return 0, false
	}
	for _, r := range t.rec.Flows.Unanswered {
		if r.Who == s.Protocol+" "+s.Who {
			return r.PerSecond, true
		}
	}
	return 0, false
}

func (fl flood) large(t *table) bool {
	n := float64(fl.entries)
	return n >= floodOfLimit*float64(t.max) || n >= floodOfTable*float64(t.count) && n >= floodTrifle
}

func (fl flood) finding(t *table) *Finding {
	ofLimit := float64(fl.entries) / float64(t.max)
	l, _ := t.losses()
	f := worded("ct-flood", fl.evidence(t), nil, units.Plural(len(fl.sources), "source", "sources"),
		singular(len(fl.sources)), fl.aim(t).cause(), units.Percent(ofLimit))
	switch {
	case ofLimit < floodOfLimit:
		f.Severity = Notice
	case t.share() >= crowded || l.Evicted > 0:
		f.Severity = Critical
		f.Title += fmt.Sprintf(", and fill%s the table", singular(len(fl.sources)))
	}
	f.Remedies = fl.remedies(t, f.Severity)
	return f
}

// aim is what the sources try to reach.
type aim struct {
	// one is the service that nearly all of them try; empty where there are several.
	one string
	// many is true if there are more destinations than few entries are of the
	// foremost ones.
	many bool
}

const (
	// oneService is the share of the flood that makes it one of a single destination.
	oneService = 0.80
	// fewForemost is the share of the foremost services below which it is a scan.
	fewForemost = 0.20
)

func (fl flood) aim(t *table) aim {
	foremost := int64(0)
	for _, s := range fl.services {
		foremost += t.scaled(s.Entries)
	}
	switch {
	case len(fl.services) == 0:
		return aim{}
	case float64(t.scaled(fl.services[0].Entries)) >= oneService*float64(fl.entries):
		return aim{one: fl.services[0].Who}
	case float64(foremost) < fewForemost*float64(fl.entries):
		return aim{many: true}
	}
	return aim{}
}

func (a aim) cause() string {
	switch {
	case a.one != "":
		return "nearly all go to " + a.one + ", which does not answer them: it is dead or filtered, and a program goes on trying; or it is flooded"
	case a.many:
		return "they go to many destinations, each a few times: a scan"
	}
	return "a flood, a scan, or programs that go on trying destinations that are dead or filtered"
}

// singular is the ending of a verb.
func singular(n int) string {
	if n == 1 {
		return "s"
	}
	return ""
}

func (fl flood) evidence(t *table) []Evidence {
	var e []Evidence
	for _, s := range fl.sources[:min(len(fl.sources), mostShown)] {
		from := s.Protocol + " from " + s.Who
		e = append(e, Evidence{What: from, Value: t.scaled(s.Entries), Unit: "unanswered", Source: fmt.Sprintf("%s, %s of its entries", t.dumpSource(), units.Percent(float64(s.Entries)/float64(s.OfEntries)))})
		if rate, ok := t.unansweredRate(s); ok {
			e = append(e, Evidence{What: from + ", new", Value: round1(rate), Unit: "/s",
				Source: fmt.Sprintf("two dumps, %.1f s apart", t.rec.Flows.Seconds)})
		}
	}
	for _, w := range fl.services[:min(len(fl.services), mostShown)] {
		if t.scaled(w.Entries) >= fewestUnanswered {
			e = append(e, Evidence{What: w.Who, Value: t.scaled(w.Entries), Unit: "unanswered", Source: t.dumpSource()})
		}
	}
	return slices.Concat(e, t.sizes(), t.counters("drop", "early_drop"))
}

// remedies are advice, the safest first: who may send what is not natkit's to decide.
// Where the table is not at stake the only advice is to inspect the sources, and one that
// also has connections that are answered is never cut off.
func (fl flood) remedies(t *table, severity Severity) []Remedy {
	var all, silent, deletes []string
	for _, s := range fl.sources[:min(len(fl.sources), mostShown)] {
		all = append(all, s.Who)
		if s.OfEntries == s.Entries {
			silent = append(silent, s.Who)
		}
		deletes = append(deletes, deleteCommand(t.rec, unansweredOf(s)))
	}
	proto, to, _ := strings.Cut(fl.aim(t).one, " ")
	dst, err := netip.ParseAddrPort(to)
	dead := err == nil
	inspect := advice("flood-sources", strings.Join(all, ", "), NamespaceFlag(t.rec.Last().Netns.Name), all[0])
	if dead {
		inspect.Title = fmt.Sprintf("find out why %s does not answer ('ip route get %s', 'ip neigh', a firewall before it, what DNAT makes of it), and correct or stop what tries it on %s", to, dst.Addr(), strings.Join(all, ", "))
	}
	if severity == Notice {
		return []Remedy{inspect}
	}
	there := ""
	if dead {
		there = fmt.Sprintf(" %s daddr %s %s dport %d", nftFamily(to), dst.Addr(), proto, dst.Port())
	}
	r := []Remedy{inspect, advice("flood-limit", where(t.rec),
		nftLine(all, -150, there+fmt.Sprintf(" ct state new limit rate over %d/second", floodRate)))}
	if fl.sources[0].Protocol == "tcp" {
		r = append(r, synproxy())
	}
	r = append(r, advice("flood-delete", strings.Join(deletes, "; ")))
	switch {
	case dead:
		r = append(r, advice("flood-drop-service", where(t.rec), nftLine(all, -310, there)))
	case len(silent) > 0:
		r = append(r, advice("flood-drop-sources", where(t.rec), nftLine(silent, -310, "")))
	}
	return r
}

func nftFamily(address string) string {
	if strings.Count(address, ":") > 1 {
		return "ip6"
	}
	return "ip"
}

// nftLine is a command that works as it stands: it drops what these sources send and
// the match is about, at a priority of prerouting.
func nftLine(sources []string, priority int, match string) string {
	of := map[string][]string{}
	for _, s := range sources {
		of[nftFamily(s)] = append(of[nftFamily(s)], s)
	}
	rules := ""
	for _, family := range []string{"ip", "ip6"} {
		if len(of[family]) > 0 {
			rules += fmt.Sprintf("; %s saddr { %s }%s counter drop", family, strings.Join(of[family], ", "), match)
		}
	}
	return fmt.Sprintf("nft 'table inet flood { chain prerouting { type filter hook prerouting priority %d%s; }; }'", priority, rules)
}

func unansweredOf(s snapshot.UnansweredSource) string {
	state := ""
	if s.Protocol == "tcp" {
		state = " --state SYN_SENT"
	}
	return fmt.Sprintf("-p %s -s %s%s -u UNREPLIED", s.Protocol, s.Who, state)
}
