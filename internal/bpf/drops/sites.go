package drops

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// Read returns what was dropped since Start. It takes about a millisecond, or a few
// where there are many flows.
func (t *Tracer) Read() (*snapshot.Drops, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	t.links.expire()
	d := &snapshot.Drops{Seconds: time.Since(t.started).Seconds(), Source: t.source, FlowSample: max(t.opt.FlowSample, 0),
		Sites: []snapshot.DropSite{}}
	counts, err := t.siteCounts()
	if err != nil {
		return nil, err
	}
	cpu, err := t.cpuTotals()
	if err != nil {
		return nil, err
	}
	t.addSites(d, counts)
	if err := t.addFlows(d, cpu); err != nil {
		return nil, err
	}
	if err := t.addStacks(d, cpu); err != nil {
		return nil, err
	}
	d.Lost = cpu.Lost + t.missed()
	d.LostEvents = cpu.LostEvents
	d.Packets += cpu.Lost
	t.addCauses(d, counts)
	if t.countsPrograms() {
		now, _ := readPrograms(t.opt.Netns) // a note of the start says why not
		d.Programs = snapshot.GrownPrograms(now, t.programs)
	}
	return d, nil
}

// countsPrograms reports whether what programs of gateways count is asked for: they do not know which packets a filter wants.
func (t *Tracer) countsPrograms() bool {
	return t.opt.Filter == nil && t.opt.Interface == "" && !t.opt.PlacesOnly
}

// readPrograms returns what programs of gateways dropped so far.
func readPrograms(ns *netns.Handle) (all []snapshot.ProgramDrop, err error) {
	drops, err := plane.ReadDrops(ns)
	for _, d := range drops {
		all = append(all, snapshot.ProgramDrop{Reason: d.Reason.String(), Netns: d.Netns, Packets: d.Packets, Bytes: d.Bytes})
	}
	return all, err
}

// siteCounts adds up the CPUs' tables.
func (t *Tracer) siteCounts() (map[dropsSite]uint64, error) {
	counts := map[dropsSite]uint64{}
	var sets []dropsSet // one of each CPU
	for i := range t.maps[dropsMapSites].MaxEntries() {
		if err := t.maps[dropsMapSites].Lookup(i, &sets); err != nil {
			return nil, fmt.Errorf("read the table of drops: %w", err)
		}
		for _, set := range sets {
			for _, slot := range set.Way {
				if slot.Packets > 0 {
					counts[slot.Site] += slot.Packets
				}
			}
		}
	}
	var site dropsSite
	var packets uint64
	it := t.maps[dropsMapSpilled].Iterate()
	for it.Next(&site, &packets) {
		counts[site] += packets
	}
	return counts, iterated("the rest of the table of drops", it)
}

// iterated returns the error of an iteration. Entries that were passed over because the map changes
// fast are none: counts only grow.
func iterated(what string, it *ebpf.MapIterator) error {
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}

// cpuTotals adds up what the CPUs counted of losses.
func (t *Tracer) cpuTotals() (sum dropsCpu, err error) {
	var cpus []dropsCpu
	if err := t.maps[dropsMapCpus].Lookup(uint32(0), &cpus); err != nil {
		return sum, fmt.Errorf("read the counters of lost drops: %w", err)
	}
	for _, c := range cpus {
		sum.Lost += c.Lost
		sum.LostEvents += c.LostEvents
		sum.NewFlows += c.NewFlows
		sum.LostFlows += c.LostFlows
		sum.LostStacks += c.LostStacks
		sum.LostHeaders += c.LostHeaders
	}
	return sum, nil
}

// missed counts the drops for which the kernel did not run the program, because it
// interrupted itself.
func (t *Tracer) missed() uint64 {
	stats, err := t.program.Stats()
	if err != nil {
		return 0
	}
	return stats.RecursionMisses // since Linux 5.12
}

// addSites makes sites of counts: several addresses of one function are several
// sites.
func (t *Tracer) addSites(d *snapshot.Drops, counts map[dropsSite]uint64) {
	sites := map[snapshot.DropSite]uint64{}
	for site, packets := range counts {
		if t.names.isHarmless(site) {
			d.Harmless += packets
			if !t.opt.Harmless {
				continue
			}
		}
		sites[t.names.site(site)] += packets
		d.Packets += packets
	}
	for site, packets := range sites {
		site.Packets = packets
		d.Sites = append(d.Sites, site)
	}
	snapshot.SortSites(d.Sites)
}

// site names a place.
func (n *names) site(s dropsSite) snapshot.DropSite {
	at := n.place(s.Location)
	return snapshot.DropSite{
		Function: at.Name, Offset: at.Offset, Module: at.Module,
		Reason: n.reasons.Name(s.Reason), Protocol: protocolName(s.Protocol), Netns: uint64(s.Netns),
	}
}

// addStacks reads the ways on which packets came to their end.
func (t *Tracer) addStacks(d *snapshot.Drops, cpu dropsCpu) error {
	d.StackSample = max(t.opt.StackSample, 0)
	if t.opt.StackSample <= 0 {
		return nil
	}
	var key dropsStackKey
	var packets uint64
	it := t.maps[dropsMapStackCounts].Iterate()
	for it.Next(&key, &packets) {
		var stack dropsStack
		if err := t.maps[dropsMapStacks].Lookup(uint32(key.Id), &stack); err != nil {
			d.LostStacks += packets
			continue
		}
		d.Stacks = append(d.Stacks, snapshot.DropStack{
			Reason: t.names.reasons.Name(key.Site.Reason), Protocol: protocolName(key.Site.Protocol), Netns: uint64(key.Site.Netns),
			Functions: t.names.functions(stack, key.Site.Location), Packets: packets,
		})
	}
	slices.SortFunc(d.Stacks, func(a, b snapshot.DropStack) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), slices.Compare(a.Functions, b.Functions), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Netns, b.Netns))
	})
	d.LostStacks += cpu.LostStacks
	return iterated("the stacks of drops", it)
}

// functions name a stack, the innermost first, from the place of the drop on: what
// is further inside is the tracepoint's and this program's.
func (n *names) functions(s dropsStack, location uint64) []string {
	frames := s.Frame[:]
	if end := slices.Index(frames, 0); end >= 0 {
		frames = frames[:end]
	}
	if i := slices.Index(frames, location); i >= 0 {
		frames = frames[i:]
	}
	functions := make([]string, len(frames))
	for i, f := range frames {
		at := n.place(f)
		functions[i] = fmt.Sprintf("%s+%#x", at.Name, at.Offset)
	}
	return functions
}
