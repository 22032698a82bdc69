package state

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// Limits bound the lists of a state, and with them the number of series that metrics have.
type Limits struct {
	// Top is how many services, addresses, sources and places there are at most.
	Top int
}

// CountersOf returns the counters of a snapshot, with what they grew since an earlier one that has conntrack's counters, when
// they had come to counted; before is nil for the first one.
func CountersOf(s *snapshot.Snapshot, before *snapshot.Snapshot, counted map[string]uint64) *Counters {
	entries, limit, ok := s.Entries()
	if !ok && s.ConntrackStat == nil {
		return nil
	}
	buckets, _ := s.Sysctls.Int(snapshot.ConntrackBuckets)
	c := &Counters{Reading: Reading{At: s.TakenAt}, Entries: entries, Limit: limit, Buckets: buckets,
		Conntrack: map[string]uint64{}, PerSecond: map[string]float64{}}
	for _, name := range countersOf(s.ConntrackStat) {
		c.Conntrack[name], _ = s.ConntrackStat.Total(name)
		then, known := counted[name]
		if before == nil || !known {
			continue
		}
		grown, ok := s.ConntrackStat.Delta(before.ConntrackStat, name)
		if !ok { // a CPU came or went: what was counted meanwhile is not known
			c.Conntrack[name] = max(then, c.Conntrack[name])
			continue
		}
		c.Conntrack[name] = then + grown
		if seconds := s.UptimeSeconds - before.UptimeSeconds; seconds > 0 {
			c.PerSecond[name] = float64(grown) / seconds
		}
	}
	return c
}

// countersOf names the counters that the kernel has.
func countersOf(c *snapshot.ConntrackStat) (names []string) {
	if c == nil {
		return nil
	}
	for _, cpu := range c.PerCPU {
		for name := range cpu {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// TableOf returns the table of a sample; nil where it could not be read.
func TableOf(s *snapshot.Sample, l Limits) *Table {
	t := s.Table
	if t == nil {
		return nil
	}
	entries, _, known := s.Entries()
	if !known || t.Complete {
		entries = t.Sampled
	}
	whole := func(n int64) int64 {
		if t.Sampled == 0 {
			return 0
		}
		return int64(math.Round(float64(n) / float64(t.Sampled) * float64(entries)))
	}
	wholes := func(counts map[string]int64) map[string]int64 {
		all := make(map[string]int64, len(counts))
		for name, n := range counts {
			all[name] = whole(n)
		}
		return all
	}
	talkers := func(from []snapshot.Talker) []Talker {
		all := []Talker{}
		for _, k := range from[:min(len(from), l.Top)] {
			all = append(all, Talker{Who: k.Who, Entries: whole(k.Entries), Share: float64(k.Entries) / float64(max(1, t.Sampled))})
		}
		return all
	}
	out := &Table{Reading: Reading{At: s.TableAt}, Sampled: t.Sampled, Complete: t.Complete, Entries: entries,
		Protocols: wholes(t.ByProtocol), TCPStates: wholes(t.ByTCPState), Assured: whole(t.Assured), Unreplied: whole(t.Unreplied),
		SNAT: whole(t.SNAT), DNAT: whole(t.DNAT), Offloaded: whole(t.Offloaded), IdleLong: -1,
		TopSources: talkers(t.TopSources), TopServices: talkers(t.TopServices)}
	if t.Idle != nil {
		out.IdleLong = whole(t.Idle.IdleFrom(snapshot.IdleLong))
	}
	if known {
		out.Memory = memoryOf(s.Snapshot)
	}
	if f := s.Flows; f != nil {
		out.Flows = &Flows{NewPerSecond: f.TotalPerSecond, StandardErrorPerSecond: f.StandardErrorPerSecond, ByClass: f.PerSecond,
			UnansweredSources: f.Unanswered[:min(len(f.Unanswered), l.Top)]}
	}
	return out
}

func memoryOf(s *snapshot.Snapshot) *TableMemory {
	t := capacity.TableOf(s)
	entry := t.Cost
	entry.EntryBytes, entry.BucketBytes = entry.EntryBytes-entry.ExtensionBytes, 0
	extension := capacity.Cost{EntryBytes: t.Cost.ExtensionBytes}
	m := &TableMemory{EntriesBytes: entry.TableBytes(t.Entries, 0), ExtensionsBytes: extension.TableBytes(t.Entries, 0), BucketsBytes: t.Cost.TableBytes(0, t.Buckets),
		LimitEntriesBytes: entry.TableBytes(t.Max, 0), LimitExtensionsBytes: extension.TableBytes(t.Max, 0), Source: t.Cost.Source}
	if s.ConntrackSize != nil {
		m.SlabBytes = s.ConntrackSize.SlabBytes
	}
	return m
}

// ServicesOf returns the services of a sample; nil where they are not known. Those that are a part of others are left out.
func ServicesOf(s *snapshot.Sample, l Limits) *Services {
	if s.Flows == nil || s.Flows.Services == nil {
		return nil
	}
	from := s.Flows.Services
	out := &Services{Reading: Reading{At: s.TableAt}, WindowSeconds: from.Seconds, Complete: from.Complete, All: []Service{}}
	for i := range from.All {
		v := &from.All[i]
		if v.IsPart() || v.Kind == snapshot.ServiceUntranslated {
			continue
		}
		out.Answered += v.Answered
		out.Failed += v.Failed()
		out.All = append(out.All, serviceOf(v, s.Flows.Seconds, from.NewKnown))
	}
	out.AnsweredShare = share(out.Answered, out.Answered+out.Failed)
	slices.SortStableFunc(out.All, func(a, b Service) int {
		return cmp.Or(cmp.Compare(b.Unanswered+b.HalfOpen, a.Unanswered+a.HalfOpen), cmp.Compare(b.Answered+b.Open, a.Answered+a.Open), cmp.Compare(a.Name, b.Name))
	})
	out.Total = len(out.All)
	out.All = out.All[:min(len(out.All), l.Top)]
	return out
}

func serviceOf(v *snapshot.Service, seconds float64, newKnown bool) Service {
	out := Service{Name: v.String(), Kind: v.Kind, Protocol: v.Protocol, Service: endText(v.Service), Target: endText(v.Target),
		Answered: v.Answered, Unanswered: v.Unanswered, HalfOpen: v.HalfOpen, Waiting: v.Waiting, Open: v.Open, Stalled: v.Stalled,
		Reset: v.Reset, NewPerSecond: -1, AnsweredShare: share(v.Answered, v.Answered+v.Failed())}
	if v.Given.IsValid() {
		out.Given = v.Given.String()
	}
	if newKnown && seconds > 0 && v.Kind == snapshot.ServiceDNAT {
		out.NewPerSecond = float64(v.New) / seconds
	}
	return out
}

func endText(e netip.AddrPort) string {
	switch {
	case !e.IsValid():
		return ""
	case e.Port() == 0:
		return e.Addr().String()
	}
	return e.String()
}

// share is a part of all; -1 of nothing.
func share(part, all int64) float64 {
	if all == 0 {
		return -1
	}
	return float64(part) / float64(all)
}

// PortsOf returns the ports of a sample; nil where they are not known.
func PortsOf(s *snapshot.Sample, l Limits) *Ports {
	if s.Ports == nil {
		return nil
	}
	out := &Ports{Reading: Reading{At: s.TableAt}, Complete: s.Ports.Complete, Pools: s.Ports.Total, Addresses: []Address{}}
	type key struct {
		address, protocol string
		ports             nat.Ports
		zone              uint16
	}
	seen := map[key]bool{}
	for i := range s.Ports.Pools { // the worst first
		p := &s.Ports.Pools[i]
		r := nat.Ports{First: p.FirstPort, Last: p.LastPort}
		if k := (key{p.Address, p.Protocol, r, p.Zone}); seen[k] || len(out.Addresses) >= l.Top {
			continue
		} else {
			seen[k] = true
		}
		a := Address{Address: p.Address, Protocol: p.Protocol, Range: r, Zone: p.Zone, Destination: p.Destination, Used: p.Used, TimeWait: p.TimeWait,
			Ports: p.Len(), UsedShare: p.Share, Fails: -1, SecondsLeft: -1, NewPerSecond: -1, Exact: p.Exact}
		if p.Known {
			a.Fails = p.Fails
		}
		if p.RateKnown {
			a.SecondsLeft, a.NewPerSecond = p.SecondsLeft, p.NewPerSecond
		}
		out.Addresses = append(out.Addresses, a)
	}
	return out
}

// StackOf returns what IP and TCP count; nil where it could not be read.
func StackOf(s *snapshot.Snapshot) *Stack {
	if s.TCP == nil {
		return nil
	}
	out := &Stack{Reading: Reading{At: s.TakenAt}, Counters: map[string]uint64{}, Sockets: map[string]int64{}}
	for _, name := range StackCounters {
		if v, known := s.TCP.Counters[name]; known {
			out.Counters[name] = v
		}
	}
	if k := s.TCP.Sockets; k != nil {
		out.Sockets["in_use"], out.Sockets["time_wait"], out.Sockets["orphan"] = k.InUse+k.InUse6, k.TimeWait, k.Orphans
	}
	return out
}

// DropsOf returns the drops in one network namespace, of a reading of a tracer that began at since. Before is the
// reading before, nil for the first one.
func DropsOf(now *snapshot.Drops, before *Drops, netns uint64, since, at time.Time, l Limits) *Drops {
	out := &Drops{Reading: Reading{At: at}, Since: since, Reasons: []DropReason{}, Places: []DropPlace{}}
	reasons := map[string]uint64{}
	for _, s := range now.Sites { // those with most packets first
		if s.Netns != netns {
			continue
		}
		out.Packets += s.Packets
		reasons[s.Reason] += s.Packets
		if len(out.Places) < l.Top {
			out.Places = append(out.Places, DropPlace{Function: s.Function, Reason: s.Reason, Protocol: s.Protocol, Packets: s.Packets})
		}
	}
	seconds := 0.0
	had := map[string]uint64{}
	if before != nil {
		seconds = at.Sub(before.At).Seconds()
		for _, r := range before.Reasons {
			had[r.Reason] = r.Packets
		}
		out.PerSecond = rate(out.Packets, before.Packets, seconds)
	}
	for reason, packets := range reasons {
		out.Reasons = append(out.Reasons, DropReason{Reason: reason, Packets: packets, PerSecond: rate(packets, had[reason], seconds)})
	}
	slices.SortFunc(out.Reasons, func(a, b DropReason) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

func rate(now, before uint64, seconds float64) float64 {
	if seconds <= 0 || now < before {
		return 0
	}
	return float64(now-before) / seconds
}

// FindingsOf returns what stands after a report. Before is what stood before it, nil for the first one.
func FindingsOf(r *diagnose.Report, standing []diagnose.Standing, before *Findings) *Findings {
	out := &Findings{Reading: Reading{At: r.TakenAt}, WindowSeconds: r.Seconds, All: []Finding{}, Checks: map[diagnose.State]int{},
		Incomplete: r.Incomplete, Summary: r.Summary, Reports: 1}
	if before != nil {
		out.Reports = before.Reports + 1
	}
	for _, c := range r.Checks {
		if !c.NotAsked {
			out.Checks[c.State]++
		}
	}
	for _, s := range standing {
		f := Finding{Standing: s, Finding: r.Find(s.ID)}
		if f.Finding == nil && before != nil {
			if i := slices.IndexFunc(before.All, func(b Finding) bool { return b.ID == s.ID }); i >= 0 {
				f.Finding = before.All[i].Finding
			}
		}
		out.All = append(out.All, f)
	}
	return out
}

// UnreadOf returns the parts of a snapshot that could not be read.
func UnreadOf(s *snapshot.Snapshot) []Unread {
	all := []Unread{}
	for _, p := range s.Parts {
		if p.Error != "" {
			all = append(all, Unread{Part: p.Name, Why: p.Error, Unavailable: p.Unavailable})
		}
	}
	return all
}
