package collect

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// enoughSampled ports of a range in a sample give their number well enough.
	enoughSampled = 64
	// mostNarrow addresses are asked for: each is a walk of the kernel through the whole table, of some 0.3 µs for an entry.
	// mostOfNarrow bounds the entries that are read of one.
	mostNarrow   = 2
	mostOfNarrow = 32768
)

var askedNarrow = question{"pools of few ports", "narrow_pools.json"}

// addNarrow counts anew, and exactly, the pools of few ports of a table that was read in part, where insertions fail: of 200 ports
// a sample of two in a hundred entries may have none.
func (p *portReader) addNarrow(ctx context.Context, before *portReader) error {
	o := p.at
	if before == nil || o.Table.Complete || o.ConntrackStat.Grown(before.at.ConntrackStat)["insert_failed"] == 0 {
		return nil
	}
	given := p.narrow()
	if len(given) == 0 {
		return nil
	}
	pools, err := answer(o, askedNarrow, func() (*[]snapshot.PortPool, error) {
		pools := []snapshot.PortPool{}
		err := o.src.inside(func() error {
			for _, g := range given {
				exact, err := g.read(ctx, o)
				if err != nil {
					return err
				}
				pools = append(pools, exact...)
			}
			return nil
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

// givenRange are ports of an address that rules give.
type givenRange struct {
	address  netip.Addr
	protocol uint8 // 0 for any
	ports    nat.Ports
}

// narrow are the ranges of which the sample has too few, the smallest first. Kernels before 5.16 do not filter by what
// answers are for, and none does by addresses of IPv6.
func (p *portReader) narrow() (all []givenRange) {
	o := p.at
	entries, _ := o.Sysctls.Int(snapshot.ConntrackCount)
	if major, minor, ok := ports.Version(o.Kernel.Release); o.NATRules == nil || !ok || major < 5 || major == 5 && minor < 16 {
		return nil
	}
	for i := range o.NATRules.Rules {
		r := &o.NATRules.Rules[i]
		g := givenRange{address: r.First, ports: nat.Ports{First: r.FirstPort, Last: r.LastPort}}
		if !r.TranslatesSource() || !g.address.Is4() || r.Last.IsValid() && r.Last != r.First || r.FirstPort == 0 ||
			float64(g.ports.Len())*float64(o.Table.Sampled) >= enoughSampled*float64(entries) {
			continue
		}
		g.protocol, _ = nat.ParseProtocol(r.Protocol)
		if !slices.ContainsFunc(all, func(o givenRange) bool { return o.address == g.address && o.protocol == g.protocol }) {
			all = append(all, g)
		}
	}
	slices.SortStableFunc(all, func(a, b givenRange) int { return a.ports.Len() - b.ports.Len() })
	return all[:min(len(all), mostNarrow)]
}

// read returns the pools of the address; none where it has too many entries.
func (g givenRange) read(ctx context.Context, o *observation) ([]snapshot.PortPool, error) {
	f := conntrack.Filter{Family: unix.AF_INET, Reply: conntrack.Side{Dst: netip.PrefixFrom(g.address, g.address.BitLen())}}
	if g.protocol != 0 {
		f.Proto = conntrack.Is(g.protocol)
	}
	c := ports.NewCollector(ports.Options{MemoryBytes: snapshotMemory, Now: o.tableAt.Wall, Addresses: []netip.Addr{g.address}})
	read := 0
	r, err := dump.Each(ctx, nil, &f, func(e *conntrack.Entry) error {
		if read++; read > mostOfNarrow {
			return dump.ErrStop
		}
		c.Add(e)
		return nil
	})
	if err != nil || !r.Complete || r.Interrupted {
		return nil, err
	}
	pools := c.Ports(ports.Query{Complete: true, Rules: o.NATRules, Release: o.Kernel.Release, Top: snapshotPools, Users: snapshotUsers, Address: g.address}).Pools
	for i := range pools {
		pools[i].Exact = true
	}
	return pools, nil
}
