package drops

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// hook frees what a netfilter hook drops by its verdict, whichever it was.
const hook = "nf_hook_slow"

// ruleFunctions free packets at the rule itself: nftables since Linux 6.8, and in
// long-term kernels that took it over (Debian's 6.1 and 6.12).
var ruleFunctions = []string{"nft_do_chain", "ipt_do_table", "ip6t_do_table"}

// causes are those of tables.h, with the function whose verdict decides.
var causes = []struct{ name, function string }{
	{},
	{snapshot.CauseTableFull, "nf_conntrack_in"},
	{snapshot.CauseInvalid, "nf_conntrack_in"},
	{snapshot.CauseNotInserted, "__nf_conntrack_confirm"},
	{snapshot.CauseNATFailed, "nf_nat_inet_fn"},
}

// addCauses adds why netfilter dropped.
func (t *Tracer) addCauses(d *snapshot.Drops, counts map[dropsSite]uint64) {
	found := map[snapshot.DropCause]uint64{}
	hooked := map[uint64]uint64{} // drops by a verdict without a cause, by namespace
	for site, packets := range counts {
		function, ns := base(t.names.place(site.Location).Name), uint64(site.Netns)
		switch {
		case site.Cause > 0 && int(site.Cause) < len(causes):
			c := causes[site.Cause]
			found[snapshot.DropCause{Cause: c.name, Netns: ns, Source: c.function}] += packets
		case function == hook:
			hooked[ns] += packets
		case slices.Contains(ruleFunctions, function):
			found[snapshot.DropCause{Cause: snapshot.CauseRule, Netns: ns, Source: function}] += packets
		}
	}
	switch {
	case t.verdicts:
		d.NAT = "fexit"
		for ns, packets := range hooked {
			found[snapshot.DropCause{Cause: snapshot.CauseRule, Netns: ns, Source: hook + ", by no verdict of conntrack or NAT"}] += packets
		}
	case t.before != nil && t.opt.Filter == nil && t.opt.Interface == "":
		d.NAT = "counters"
		t.before.divide(hooked, found)
	}
	for c, packets := range found {
		c.Packets = packets
		d.Causes = append(d.Causes, c)
	}
	slices.SortFunc(d.Causes, func(a, b snapshot.DropCause) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Source, b.Source))
	})
}

// base is a function's name in the source: compilers append .isra.0, .constprop.0, …
func base(function string) string {
	name, _, _ := strings.Cut(function, ".")
	return name
}

// counters are conntrack's of the namespaces that there were at the start; those
// of a namespace that came later began at 0.
type counters struct {
	only   *netns.Handle // nil: all namespaces
	before map[uint64]map[string]uint64
}

// readCounters returns nil where they cannot be read.
func readCounters(only *netns.Handle) *counters {
	c := &counters{only: only}
	all := func(uint64) bool { return true }
	if c.before = c.read(all); len(c.before) == 0 {
		return nil
	}
	return c
}

// read asks the wanted namespaces what they counted on all CPUs; those that are gone are skipped.
func (c *counters) read(wanted func(inode uint64) bool) map[uint64]map[string]uint64 {
	handles := []*netns.Handle{c.only}
	if c.only == nil {
		all, err := netns.All()
		if err != nil {
			return nil
		}
		defer netns.CloseAll(all)
		handles = all
	}
	tallies := map[uint64]map[string]uint64{}
	for _, h := range handles {
		if !wanted(h.Inode()) {
			continue
		}
		cpus, err := dump.Stats(h)
		if err != nil {
			continue
		}
		sum := map[string]uint64{}
		for _, cpu := range cpus {
			for name, n := range cpu {
				sum[name] += n
			}
		}
		tallies[h.Inode()] = sum
	}
	return tallies
}

// divide attributes what hooks dropped in each namespace.
func (c *counters) divide(hooked map[uint64]uint64, found map[snapshot.DropCause]uint64) {
	if len(hooked) == 0 {
		return
	}
	now := c.read(func(inode uint64) bool { return hooked[inode] > 0 })
	for ns, packets := range hooked {
		n, ok := now[ns]
		if !ok {
			continue // gone: the cause is unknown
		}
		for _, s := range shares(since(n, c.before[ns]), packets) {
			if s.packets > 0 {
				found[snapshot.DropCause{Cause: s.cause, Netns: ns, Source: s.source}] += s.packets
			}
		}
	}
}

// causeShare is a part of what a namespace's hooks dropped.
type causeShare struct {
	cause, source string
	packets       uint64
}

// shares are at most what was seen: what the tracker's losses do not explain is a rule's.
func shares(grown map[string]int64, seen uint64) []causeShare {
	l := snapshot.DecodeTracker(grown, false)
	full := min(uint64(l.NoRoom), seen)
	missed := min(uint64(l.Clashes+l.Chains), seen-full)
	return []causeShare{
		{snapshot.CauseTableFull, "drop less insert_failed", full},
		{snapshot.CauseNotInserted, "insert_failed", missed},
		{snapshot.CauseRule, hook + " less drop and chaintoolong", seen - full - missed},
	}
}

func since(now, before map[string]uint64) map[string]int64 {
	grown := map[string]int64{}
	for name, n := range now {
		grown[name] = int64(n - min(n, before[name]))
	}
	return grown
}

// names maps the running kernel's numbers and addresses to their names.
type names struct {
	symbols *bpf.Table // nil if there are none; note then has the reason
	note    string
	// read reads symbols when they are needed; nil where that is done.
	read    func() (*bpf.Table, error)
	reasons *bpf.Reasons
	// Reasons up to consumed are none.
	consumed uint32
	// closed are the numbers of closedReasons.
	closed [len(closedReasons)]uint32
	// unspecified is the reason without a meaning.
	unspecified uint32
	harmless    [maxHarmless]dropsRange
}

// readNames also reads the symbols where the programs compare addresses from the start: where the kernel has no
// reasons, and where every drop is an event.
func readNames(opt Options) (*names, error) {
	n := &names{read: opt.Symbols}
	if err := n.readReasons(opt.Types); err != nil {
		return nil, err
	}
	if n.read != nil && n.reasons.Carried && opt.Events == nil {
		n.hidden(bpf.CheckSymbols("/proc"))
		return n, nil
	}
	n.read = func() (*bpf.Table, error) { return bpf.ReadSymbols("/proc") }
	n.readSymbols()
	return n, nil
}

// readSymbols reads them once.
func (n *names) readSymbols() {
	if n.read == nil {
		return
	}
	table, err := n.read()
	n.symbols, n.read = table, nil
	n.hidden(err)
	n.findHarmless()
}

func (n *names) hidden(err error) {
	if err != nil {
		n.note = fmt.Sprintf("places are shown by their address: %v", err)
	}
}

// place names an address.
func (n *names) place(addr uint64) bpf.Symbol {
	n.readSymbols()
	return n.symbols.Place(addr)
}

// readReasons reads the numbers of the reasons that matter here, too.
func (n *names) readReasons(types *btf.Cache) (err error) {
	if n.reasons, err = bpf.ReadReasons(types); err != nil {
		return err
	}
	n.consumed, n.unspecified = n.reasons.Number("SKB_CONSUMED"), n.reasons.Number("NOT_SPECIFIED")
	for i, name := range closedReasons {
		n.closed[i] = n.reasons.Number(name)
	}
	return nil
}
