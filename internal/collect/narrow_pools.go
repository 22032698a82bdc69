package collect

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// closeEnough is how far the share of a range that is in use may be off by the sample, one standard error: full ones must
	// not look as if ports were free.
	closeEnough = 0.03
	// mostNarrow addresses are asked for: each is a walk of the kernel through the whole table, of some 0.3 µs for an entry.
	// mostPassed bounds the entries that it passes on for one: it chooses by addresses of IPv4 alone.
	mostNarrow = 2
	mostPassed = 65536
)

var askedNarrow = question{"pools of few ports", "narrow_pools.json"}

// Narrow is a table that was read in part, of which the pools of few ports are to be counted exactly: of 200 ports a sample of two
// in a hundred entries may have none.
type Narrow struct {
	Rules   *snapshot.NATRules
	Release string
	// Sampled of its Entries were read.
	Sampled, Entries int64
	// Seen is how many ports of an address the sample has.
	Seen map[netip.Addr]int
	// Now is the time of the reading, for the ages of entries.
	Now time.Time
}

// NarrowPools counts the pools of few ports of a namespace (nil: this one): none where no rule gives few ports, or the kernel
// cannot choose their entries. Each of at most two addresses costs a walk through the whole table. Needs CAP_NET_ADMIN.
func NarrowPools(ctx context.Context, ns *netns.Handle, n *Narrow) (pools []snapshot.PortPool, err error) {
	if len(n.rules()) == 0 {
		return nil, nil
	}
	src := newLive(Options{Netns: ns})
	err = src.inside(func() error {
		pools, err = n.read(ctx, src.world)
		return err
	})
	return pools, err
}

// addNarrow counts anew, and exactly, the pools of few ports of a table that was read in part, where insertions fail.
func (p *portReader) addNarrow(ctx context.Context, before *portReader) error {
	o := p.at
	if before == nil || o.Table.Complete || o.ConntrackStat.Grown(before.at.ConntrackStat)["insert_failed"] == 0 {
		return nil
	}
	entries, _ := o.Sysctls.Int(snapshot.ConntrackCount)
	n := &Narrow{Rules: o.NATRules, Release: o.Kernel.Release, Sampled: o.Table.Sampled, Entries: entries, Seen: p.collector.Seen(), Now: o.tableAt.Wall}
	if len(n.rules()) == 0 {
		return nil
	}
	pools, err := answer(o, askedNarrow, func() (*[]snapshot.PortPool, error) {
		pools := []snapshot.PortPool{}
		err := o.src.inside(func() (err error) {
			read, err := n.read(ctx, o.src.world)
			pools = append(pools, read...)
			return err
		})
		return &pools, err
	})
	switch {
	case errors.As(err, new(errNotRecorded)), errors.As(err, new(errLost)):
		return nil
	case err != nil:
		return err
	}
	o.Ports.Replace(*pools)
	return nil
}

// rules are those that give so few ports that the sample does not tell how many are in use. Kernels before 5.16 do not filter by what answers
// are for.
func (n *Narrow) rules() (all []*snapshot.NATRule) {
	if major, minor, ok := ports.Version(n.Release); n.Rules == nil || !ok || major < 5 || major == 5 && minor < 16 {
		return nil
	}
	for i := range n.Rules.Rules {
		r := &n.Rules.Rules[i]
		one := r.First.IsValid() && (!r.Last.IsValid() || r.Last == r.First)
		if !r.TranslatesSource() || r.FirstPort == 0 || r.Protocol == snapshot.OtherProtocols || !one && r.Kind != snapshot.NATMasquerade ||
			closeEnough*closeEnough*float64(r.Ports().Len())*float64(n.Sampled) >= float64(n.Entries-n.Sampled) {
			continue
		}
		all = append(all, r)
	}
	return all
}

// read counts the pools, in the namespace of the calling thread.
func (n *Narrow) read(ctx context.Context, open func() (world, error)) (all []snapshot.PortPool, err error) {
	rules, m := n.rules(), &masquerades{}
	if slices.ContainsFunc(rules, func(r *snapshot.NATRule) bool { return r.Kind == snapshot.NATMasquerade }) {
		w, err := open()
		if err != nil {
			return nil, err
		}
		defer w.close()
		if m, err = newMasquerades(w); err != nil {
			return nil, err
		}
	}
	for _, g := range n.ranges(rules, m) {
		pools, err := g.read(ctx, n)
		if err != nil {
			return nil, err
		}
		all = append(all, pools...)
	}
	return all, nil
}

// givenRange are ports of an address that a rule gives.
type givenRange struct {
	address netip.Addr
	// protocol and remotePort are what the rule is for, 0 for any.
	protocol   uint8
	remotePort uint16
	ports      nat.Ports
}

// covers reports whether a reading of g has all that one of o has.
func (g givenRange) covers(o givenRange) bool {
	return g.address == o.address && (g.protocol == 0 || g.protocol == o.protocol) && (g.remotePort == 0 || g.remotePort == o.remotePort)
}

// ranges are those that are read: the smallest, and of equal ones those of which the sample has more.
func (n *Narrow) ranges(rules []*snapshot.NATRule, m *masquerades) (all []givenRange) {
	var found []givenRange
	for _, r := range rules {
		g := givenRange{address: r.First, ports: r.Ports()}
		if g.protocol, _ = nat.ParseProtocol(r.Protocol); g.protocol != 0 && r.LastDestinationPort == 0 {
			g.remotePort = r.DestinationPort
		}
		addresses := []netip.Addr{r.First}
		if r.Kind == snapshot.NATMasquerade {
			addresses = m.given(r)
		}
		for _, g.address = range addresses {
			found = append(found, g)
		}
	}
	slices.SortStableFunc(found, func(a, b givenRange) int {
		return cmp.Or(cmp.Compare(a.ports.Len(), b.ports.Len()), cmp.Compare(n.Seen[b.address], n.Seen[a.address]))
	})
	for _, g := range found {
		if len(all) < mostNarrow && !slices.ContainsFunc(all, func(o givenRange) bool { return o.covers(g) }) {
			all = append(all, g)
		}
	}
	return all
}

// filter chooses its entries. The kernel does not choose by addresses of IPv6 (conntrack.Filter.Request): the caller has to.
func (g givenRange) filter() conntrack.Filter {
	f := conntrack.Filter{Family: unix.AF_INET6}
	if g.address.Is4() {
		f = conntrack.Filter{Family: unix.AF_INET, Reply: conntrack.Side{Dst: netip.PrefixFrom(g.address, g.address.BitLen())}}
	}
	if g.protocol != 0 {
		f.Proto = conntrack.Is(g.protocol)
	}
	if g.remotePort != 0 { // postrouting sees the translated destination, which answers come from
		f.Reply.SrcPort = conntrack.Is(g.remotePort)
	}
	return f
}

// read returns the pools of the address; none where it has too many entries.
func (g givenRange) read(ctx context.Context, n *Narrow) ([]snapshot.PortPool, error) {
	f := g.filter()
	newCollector := func() *ports.Collector {
		return ports.NewCollector(ports.Options{MemoryBytes: snapshotMemory, Now: n.Now, Addresses: []netip.Addr{g.address}})
	}
	c := newCollector()
	passed := 0
	r, err := dump.EachSure(ctx, nil, &f, func() { passed = 0; c = newCollector() }, func(e *conntrack.Entry) error {
		if passed++; passed > mostPassed {
			return dump.ErrStop
		}
		if e.Reply.Dst == g.address {
			c.Add(e)
		}
		return nil
	})
	if err != nil || !r.Complete || r.Interrupted {
		return nil, err
	}
	pools := c.Ports(ports.Query{Complete: true, Rules: n.Rules, Release: n.Release, Top: snapshotPools, Users: snapshotUsers, Address: g.address}).Pools
	for i := range pools {
		pools[i].Exact = true
	}
	return pools, nil
}
