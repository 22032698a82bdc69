package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

const (
	// statSource is where counters are read, for evidence.
	statSource = "ctnetlink GET_STATS_CPU"
)

// table is what the rules about the connection table have in common: the
// numbers of a recording, looked up once.
type table struct {
	rec                *snapshot.Recording
	count, before, max int64
	// firstMax is the limit at the first sample; another one if it was
	// changed it meanwhile.
	firstMax int64
	buckets  int64
}

// readTable gives the check that ends a rule where there is no table, or its size or
// limit is unknown.
func readTable(rec *snapshot.Recording) (*table, Check) {
	t := &table{rec: rec}
	first, last := rec.First(), rec.Last()
	var ok, okBefore, okMax bool
	t.count, ok = last.Sysctls.Int(snapshot.ConntrackCount)
	t.before, okBefore = first.Sysctls.Int(snapshot.ConntrackCount)
	t.max, okMax = last.Sysctls.Int(snapshot.ConntrackMax)
	t.firstMax, _ = first.Sysctls.Int(snapshot.ConntrackMax)
	t.buckets, _ = last.Sysctls.Int(snapshot.ConntrackBuckets)
	if ok && okBefore && okMax && t.max > 0 {
		return t, Check{}
	}
	why := last.PartError("sysctls")
	switch {
	case okMax && t.max == 0:
		return nil, Check{State: NotChecked, Why: "nf_conntrack_max is 0: the table has no limit"}
	case last.Sysctls[snapshot.ConntrackCount] == "" && last.Sysctls[snapshot.ConntrackMax] == "" && (why == "" || strings.HasSuffix(why, snapshot.NotLoaded)):
		return nil, Check{State: OK, Why: snapshot.NotLoaded, Absent: true}
	}
	return nil, Check{State: NotChecked, Why: cmp.Or(why, "nf_conntrack_count or nf_conntrack_max is missing, or no number")}
}

// share of the limit that is used.
func (t *table) share() float64 { return float64(t.count) / float64(t.max) }

func (t *table) usage() string {
	return fmt.Sprintf("%s of %s entries (%s)", units.Count(t.count), units.Count(t.max), units.Percent(t.share()))
}

// used is for where the evidence with the numbers stands beside it.
func (t *table) used() string { return "(" + units.Percent(t.share()) + " used)" }

// delta is the growth of a counter during the recording.
func (t *table) delta(name string) (int64, bool) {
	d, ok := t.rec.Last().ConntrackStat.Delta(t.rec.First().ConntrackStat, name)
	return int64(d), ok
}

// noCounters returns why the counters cannot be compared.
func (t *table) noCounters() string {
	return cmp.Or(t.rec.Last().PartError(snapshot.PartStat), "the conntrack counters of the two samples cannot be compared")
}

// evidence that every rule about the table gives.
func (t *table) evidence() []Evidence {
	e := append(t.sizes(), t.counters("drop", "early_drop", "insert_failed", "chaintoolong")...)
	return append(append(e, t.contents()...), cpuEvidence(t.rec.Profile)...)
}

// sizes is the evidence of how full the table is.
func (t *table) sizes() []Evidence {
	return []Evidence{
		{What: "tracked connections", Value: t.count, Source: snapshot.ConntrackCount},
		{What: "limit", Value: t.max, Source: snapshot.ConntrackMax},
	}
}

// counters returns the growth of these counters; those that the kernel lacks are left out.
func (t *table) counters(names ...string) []Evidence {
	var e []Evidence
	for _, name := range names {
		if d, ok := t.delta(name); ok {
			source := t.rec.Last().ConntrackStat.Source
			if source == "ctnetlink" {
				source = statSource
			}
			e = append(e, Evidence{What: "counter " + name, Value: d, Unit: t.rec.Span(), Source: source})
		}
	}
	return e
}

// contents is the evidence of who and what fills the table.
func (t *table) contents() []Evidence {
	tab := t.rec.Last().Table
	if tab == nil || tab.Sampled == 0 {
		return nil
	}
	source := t.dumpSource()
	share := func(n int64) float64 { return round1(100 * float64(n) / float64(tab.Sampled)) }
	var e []Evidence
	for _, state := range most(tab.ByTCPState) {
		e = append(e, Evidence{What: "tcp " + state, Value: share(tab.ByTCPState[state]), Unit: "% of entries", Source: source})
	}
	if udp := tab.ByProtocol["udp"]; udp > 0 {
		e = append(e, Evidence{What: "udp", Value: share(udp), Unit: "% of entries", Source: source})
	}
	for i, s := range tab.TopSources {
		if i == 3 || share(s.Entries) < 1 {
			break
		}
		e = append(e, Evidence{What: "from " + s.Who, Value: share(s.Entries), Unit: "% of entries", Source: source})
	}
	if f := t.rec.Flows; f != nil {
		e = append(e, Evidence{What: "new entries admitted", Value: round1(f.TotalPerSecond), Unit: "/s",
			Source: fmt.Sprintf("two dumps, %.1f s apart", f.Seconds)})
	}
	return e
}

// dumpSource returns how much of the table was read, for evidence.
func (t *table) dumpSource() string {
	tab := t.rec.Last().Table
	if tab.Complete {
		return fmt.Sprintf("dump of all %s", units.Plural(tab.Sampled, "entry", "entries"))
	}
	return fmt.Sprintf("dump of %s of %s entries", units.Count(tab.Sampled), units.Count(t.count))
}

// logLines are the kernel's lines about a full table during the recording, with
// the suppressed count that belongs to them. A line that names no namespace
// (kernels before 6.18) counts only where this table is full.
func (t *table) logLines() (lines, suppressed int64) {
	for _, l := range t.rec.NewLogLines() {
		switch {
		case !t.concerns(l):
		case l.Suppressed > 0:
			suppressed += int64(l.Suppressed)
		case isTableFull(l.Text):
			lines++
		}
	}
	return lines, suppressed
}

func (t *table) concerns(l snapshot.LogLine) bool {
	if l.Netns != 0 {
		return l.Netns == t.rec.Last().Netns.Inode
	}
	return t.full()
}

// nearlyAll is the share of the limit from which drops are put down to a full
// table. The kernel drops when the count exceeds the limit
// (__nf_conntrack_alloc); a sample may fall into a moment after some expired.
const nearlyAll = 0.95

// full reports whether the table was at its limit in one of the two samples.
func (t *table) full() bool {
	return float64(max(t.count, t.before)) >= nearlyAll*float64(t.max)
}

// lastLogged returns how many seconds before the end of the recording the kernel last
// logged a full table of this namespace; false where it did not.
func (t *table) lastLogged() (secondsAgo float64, ok bool) {
	last := t.rec.Last()
	for _, l := range last.KernelLog {
		if isTableFull(l.Text) && (l.Netns == 0 || l.Netns == last.Netns.Inode) {
			secondsAgo, ok = last.UptimeSeconds-l.UptimeSeconds, true
		}
	}
	return secondsAgo, ok
}

func (t *table) arriving() int64 { return capacity.Arriving(t.rec, t.count) }

func (t *table) groups() int64 { return capacity.Groups(t.rec, t.count) }

func (t *table) held() int64 { return capacity.Held(t.rec, t.count) }

// scale turns a number of sampled entries into one of the whole table.
func (t *table) scale() float64 { return capacity.Scale(t.rec.Last().Table, t.count) }

func round1(v float64) float64 { return math.Round(v*10) / 10 }

func round2(v float64) float64 { return math.Round(v*100) / 100 }

// tableFull is the line of a full table (__nf_conntrack_alloc).
var tableFull = regexp.MustCompile(`nf_conntrack: table full.*dropping packet`)

func isTableFull(line string) bool { return tableFull.MatchString(line) }

// size works out the limits that the table needs. lowerBound says that the
// kernel is turning connections away, so that more is offered than can be seen.
func (t *table) size(lowerBound bool) capacity.Sizing {
	need := capacity.Need{Table: t.facts(), Held: t.held(), Arriving: t.arriving(), LowerBound: lowerBound}
	need.Max, need.Buckets, need.Entries = t.max, t.buckets, t.count
	// The table is at least what it is: arrivals that are bounded by reachable
	// tuples must not talk it down.
	need.Arriving = max(need.Arriving, t.count-need.Held)
	return capacity.Size(need)
}

func (t *table) facts() tune.Facts { return capacity.TableOf(t.rec.Last()) }

// remedies are the ways out of a table that is too small, the automatic one first. No
// limit is large enough for a flood.
func (t *table) remedies(lowerBound bool) []Remedy {
	if t.flooded() {
		return t.floodRemedies()
	}
	s := t.size(lowerBound)
	var r []Remedy
	if s.Max > t.max {
		r = append(r, t.raise(s, lowerBound))
	}
	if t.needsBuckets(s) && !t.mayResize(s) {
		r = append(r, t.resize(s))
	}
	if s.Max == t.max && s.MemoryBound {
		r = append(r, advice("more-memory", units.Count(t.max), units.Bytes(s.FullBytesNow)))
	}
	return append(r, t.advice()...)
}

// mostlyHalfOpen is the share of half-open connections from which a table is full of
// them, and not too small for the others.
const mostlyHalfOpen = 0.50

// halfOpen is the share of the entries that are TCP connections whose handshake has not
// come to its end.
func (t *table) halfOpen() float64 {
	tab := t.rec.Last().Table
	if tab == nil || tab.Sampled == 0 {
		return 0
	}
	return float64(tab.ByTCPState["SYN_SENT"]+tab.ByTCPState["SYN_RECV"]) / float64(tab.Sampled)
}

// unansweredByFew is the share of the entries that are connections or datagrams without an answer of few
// sources (ct-flood).
func (t *table) unansweredByFew() float64 {
	tab := t.rec.Last().Table
	if tab == nil || tab.Unanswered == nil || t.count == 0 {
		return 0
	}
	return float64(t.flood(tab.Unanswered).entries) / float64(t.count)
}

func (t *table) flooded() bool {
	return t.halfOpen() > mostlyHalfOpen || t.unansweredByFew() > mostlyHalfOpen
}

// cause is why the limit is met: the given one, unless it is a flood.
func (t *table) cause(ofLimit string) string {
	switch {
	case !t.flooded():
		return ofLimit + " " + t.used()
	case t.halfOpen() <= mostlyHalfOpen:
		return fmt.Sprintf("%s of the entries are connections and datagrams without an answer of few sources: a flood, a scan, or programs that ask a destination that is dead",
			units.Percent(t.unansweredByFew()))
	}
	return fmt.Sprintf("%s of the entries are TCP connections whose handshake never ended (SYN_SENT or SYN_RECV): a flood of SYN, a scan, or clients of a destination that is dead",
		units.Percent(t.halfOpen()))
}

// floodRemedies are advice, the safest first.
func (t *table) floodRemedies() []Remedy {
	list := "natkit conntrack " + NamespaceFlag(t.rec.Last().Netns.Name) + "--by src,dst,dport "
	if t.halfOpen() <= mostlyHalfOpen {
		return []Remedy{advice("table-flood-unanswered", list+"--status UNREPLIED"), advice("no-larger-limit")}
	}
	list += "-p tcp --state "
	return []Remedy{
		advice("table-flood-sources", list),
		synproxy(),
		advice("shorten-syn-timeouts"),
		advice("no-larger-limit"),
	}
}

// synproxy lets no SYN of a forged source become an entry.
func synproxy() Remedy {
	return advice("synproxy")
}

func (t *table) needsBuckets(s capacity.Sizing) bool { return s.Buckets > t.buckets && t.buckets > 0 }

// mayResize reports whether the buckets may be changed automatically: the
// stall is short, and known, which takes the entries of all namespaces.
func (t *table) mayResize(s capacity.Sizing) bool {
	size := t.rec.Last().ConntrackSize
	return size != nil && size.SlabBytes > 0 && s.StallSeconds <= capacity.AutomaticStall
}

// raise is the change of the limit, with the buckets where that costs no stall.
func (t *table) raise(s capacity.Sizing, lowerBound bool) Remedy {
	changes := []tune.Change{{
		Kind: tune.Sysctl, Target: snapshot.ConntrackMax,
		Before: strconv.FormatInt(t.max, 10), After: strconv.FormatInt(s.Max, 10), Why: t.usage(),
	}}
	if t.needsBuckets(s) && t.mayResize(s) {
		changes = append(changes, t.bucketChange(s))
	}
	r := remedy("raise the limit of tracked connections", changes, t.facts())
	r.Automatic = true
	r.Predicts = t.predict(s, lowerBound)
	if s.MemoryBound {
		r.Predicts += fmt.Sprintf("; more was needed, but a quarter of the memory is the end (%s)", units.Bytes(s.FullBytes))
	}
	return r
}

// remedy has the cost and the risk of its changes.
func remedy(title string, changes []tune.Change, facts tune.Facts) Remedy {
	r := Remedy{Title: title, Changes: tune.Assess(changes, facts)}
	var costs, risks []string
	for _, c := range r.Changes { // changes of one kind cost and risk the same
		costs, risks = once(costs, c.Cost), once(risks, c.Risk)
	}
	r.Cost, r.Risk = strings.Join(costs, "; "), strings.Join(risks, "; ")
	return r
}

// once adds a text that is not there yet.
func once(texts []string, text string) []string {
	if text == "" || slices.Contains(texts, text) {
		return texts
	}
	return append(texts, text)
}

func (t *table) predict(s capacity.Sizing, lowerBound bool) string {
	share := units.Percent(float64(s.Entries) / float64(s.Max))
	if lowerBound {
		return fmt.Sprintf("at least %s, %s of the new limit; what the full table turns away cannot be counted, so measure again afterwards",
			units.Plural(s.Entries, "entry", "entries"), share)
	}
	return fmt.Sprintf("%s, %s of the new limit", units.Plural(s.Entries, "entry", "entries"), share)
}

// resize is advice: all packets would wait for longer than natkit may make them
// automatically.
func (t *table) resize(s capacity.Sizing) Remedy {
	facts := t.facts()
	facts.Max = s.Max
	r := remedy("raise the number of hash buckets", []tune.Change{t.bucketChange(s)}, facts)
	r.Predicts = r.Changes[0].Why
	r.Risk += fmt.Sprintf(": do it when the host is idle, or at boot (options nf_conntrack hashsize=%d)", s.Buckets)
	return r
}

func (t *table) bucketChange(s capacity.Sizing) tune.Change {
	return tune.Change{
		Kind: tune.Sysctl, Target: snapshot.ConntrackBuckets,
		Before: strconv.FormatInt(t.buckets, 10), After: strconv.FormatInt(s.Buckets, 10),
		Why: fmt.Sprintf("hash chains of %s entries on average when full, instead of %s",
			units.Fixed(s.ChainLength, 1), units.Fixed(s.ChainLengthNow, 1)),
	}
}

// advice returns what natkit never does automatically, with the risk of each.
func (t *table) advice() []Remedy {
	var r []Remedy
	if tab := t.rec.Last().Table; tab != nil && tab.Sampled > 0 {
		if share := float64(tab.ByTCPState["TIME_WAIT"]) / float64(tab.Sampled); share > 0.2 {
			now, _ := t.rec.Last().Sysctls.Int("net.netfilter.nf_conntrack_tcp_timeout_time_wait")
			r = append(r, advice("shorten-time-wait", now, units.Percent(share)))
		}
		if u := tab.Unanswered; u != nil && u.TCP+u.UDP > tab.Sampled/2 {
			r = append(r, advice("unanswered-sources", units.Percent(float64(u.TCP+u.UDP)/float64(tab.Sampled))))
		}
	}
	return append(r,
		advice("notrack"),
		advice("spread-connections"))
}
