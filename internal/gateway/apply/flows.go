package apply

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
	"golang.org/x/sys/unix"
)

// Stale are connections that keep a translation that nothing gives any more.
type Stale struct {
	Keys []conntrack.Key
	// Rules counts them by the rule that made them, in the former plan's words.
	Rules map[gateway.Ref]int64
	// Cut: they are translated no more. The kernel does so for connections that it
	// tracks only as long as there is a rule of NAT, of whomever: with the last one
	// it takes its hooks away (nf_nat_unregister_fn, nf_ct_netns_put).
	Cut bool
}

// Orphans finds the connections that a rule of old translated and no rule of new (nil:
// none at all) would translate so. They go on as they are until they end.
func (h Host) Orphans(ctx context.Context, old, new *gateway.Plan) (Stale, error) {
	was, is := observe.Attribute(old), (*observe.Attribution)(nil)
	if new != nil {
		interfaces, err := host.Interfaces(h.Netns)
		if err != nil {
			return Stale{}, err
		}
		is = observe.Attribute(new).OfNew(&gateway.Facts{Interfaces: interfaces})
	}
	s, err := h.stale(ctx, func(e *conntrack.Entry) (*gateway.Ref, error) {
		source, destination := was.Of(e)
		if source == nil && destination == nil {
			return nil, nil
		}
		var nowSource, nowDestination *gateway.Ref
		if is != nil {
			nowSource, nowDestination = is.Of(e)
		}
		switch {
		case destination != nil && nowDestination == nil:
			return destination, nil
		case source != nil && nowSource == nil:
			return source, nil
		}
		return nil, nil
	})
	if err != nil || len(s.Keys) == 0 || new != nil && len(new.Sources)+len(new.Destinations) > 0 {
		return s, err
	}
	s.Cut, err = h.cut(s.Keys)
	return s, err
}

// cut reports whether no rule translates connections of a family of these.
func (h Host) cut(keys []conntrack.Key) (bool, error) {
	left, err := read.NAT(h.Netns)
	if err != nil {
		return false, err
	}
	translates := map[string]bool{}
	for _, r := range left.Rules {
		translates[r.Family] = true
	}
	return !translates["inet"] && slices.ContainsFunc(keys, func(k conntrack.Key) bool {
		return !translates[map[bool]string{true: "ip", false: "ip6"}[k.Orig.Src.Is4()]]
	}), nil
}

// OthersNAT are the tables of others that have rules of NAT: "ip nat".
func (h Host) OthersNAT() (tables []string, err error) {
	all, err := read.NAT(h.Netns)
	if err != nil {
		return nil, err
	}
	for _, r := range all.Rules {
		name := r.Family + " " + r.Table
		if name != ruleset.GatewayFamily+" "+ruleset.GatewayTable && !slices.Contains(tables, name) {
			tables = append(tables, name)
		}
	}
	return tables, nil
}

// Lost finds the connections that a rule of the plan gave one of the addresses, which
// the host no longer has: nothing that is sent to them arrives.
func (h Host) Lost(ctx context.Context, p *gateway.Plan, addresses []netip.Addr) (Stale, error) {
	was := observe.Attribute(p)
	return h.stale(ctx, func(e *conntrack.Entry) (*gateway.Ref, error) {
		bySource := e.IsSNAT() && slices.Contains(addresses, e.Reply.Dst)
		byDestination := e.IsDNAT() && slices.Contains(addresses, e.Orig.Dst)
		if !bySource && !byDestination {
			return nil, nil
		}
		source, destination := was.Of(e)
		switch {
		case byDestination && destination != nil:
			return destination, nil
		case bySource && source != nil:
			return source, nil
		}
		return nil, nil
	})
}

// OwnUDP finds what programs on the gateway send by UDP by way of an uplink: it has no end that a program would notice,
// and a connection stays on its uplink for as long as packets come.
func (h Host) OwnUDP(ctx context.Context, p *gateway.Plan, facts *gateway.Facts, uplink int) (Stale, error) {
	s := Stale{}
	udp := &conntrack.Filter{Proto: conntrack.Is[uint8](unix.IPPROTO_UDP)}
	_, err := dump.Each(ctx, h.Netns, udp, func(e *conntrack.Entry) error {
		marked, from := p.Marked(e.Mark), e.Orig.Src
		bound := slices.ContainsFunc(facts.AddressesOf(p.Uplinks[uplink].Interface), func(a netip.Prefix) bool { return a.Addr() == from })
		if facts.Has(from) && !e.IsDNAT() && (marked == uplink || marked < 0 && bound) {
			s.Keys = append(s.Keys, e.Key())
		}
		return nil
	})
	return s, err
}

// Untranslated finds the connections that pass as they are although a rule of the plan is
// for them, with the addresses in facts.
func (h Host) Untranslated(ctx context.Context, p *gateway.Plan, facts *gateway.Facts) (Stale, error) {
	routes, err := host.OpenRoutes(h.Netns)
	if err != nil {
		return Stale{}, err
	}
	defer routes.Close()
	is := observe.Attribute(p).Untranslated(facts, routes.Follow, math.MaxInt)
	return h.stale(ctx, is.Of)
}

// maxSweeps bounds how often Translate searches again: a packet that was on its way when the
// rules came enters its connection after the first search.
const maxSweeps = 3

// Outrun finds the connections of rules that programs carry out: they go past the tracker, whose entries would have other
// sequence numbers and windows than the connections when netfilter has these again.
func (h Host) Outrun(ctx context.Context, p *gateway.Plan) (Stale, error) {
	if p.Part(gateway.EngineEBPF) == nil {
		return Stale{}, nil
	}
	mine := map[gateway.Ref]bool{}
	for _, r := range p.Assigned[gateway.EngineEBPF] {
		mine[r] = true
	}
	is := observe.Attribute(p)
	return h.stale(ctx, func(e *conntrack.Entry) (*gateway.Ref, error) {
		source, destination := is.Of(e)
		switch {
		case destination != nil && mine[*destination] && !e.IsSNAT():
			return destination, nil
		case source != nil && mine[*source] && !e.IsDNAT():
			return source, nil
		}
		return nil, nil // hairpins stay the tracker's
	})
}

// Translate deletes the connections that Untranslated finds: their next packets begin
// anew, and are translated.
func (h Host) Translate(ctx context.Context, p *gateway.Plan, facts *gateway.Facts) (all Stale, err error) {
	all.Rules = map[gateway.Ref]int64{}
	for range maxSweeps {
		found, err := h.Untranslated(ctx, p, facts)
		if err != nil || len(found.Keys) == 0 {
			return all, err
		}
		if _, err := h.Flush(ctx, found); err != nil {
			return all, err
		}
		all.Keys = append(all.Keys, found.Keys...)
		for ref, n := range found.Rules {
			all.Rules[ref] += n
		}
	}
	return all, nil
}

// Rezone deletes the connections of hosts whose zone is another one than in a former plan (nil: none): their packets are in
// the conntrack zone of now (nil: none), which does not have them. They go on where the same address and port is free.
func (h Host) Rezone(ctx context.Context, old, new *gateway.Plan) (n int, err error) {
	if (old == nil || len(old.Zones) == 0) && (new == nil || len(new.Zones) == 0) {
		return 0, nil
	}
	facts := gateway.Facts{}
	if facts.Interfaces, err = host.Interfaces(h.Netns); err != nil {
		return 0, err
	}
	if new == nil {
		new = &gateway.Plan{}
	} else if err := host.Policies(h.Netns, &facts, new.Zoned()); err != nil {
		return 0, err
	}
	moved := gateway.Rezoned(old, new, &facts)
	if moved == nil {
		return 0, nil
	}
	var keys []conntrack.Key
	_, err = dump.Each(ctx, h.Netns, &conntrack.Filter{}, func(e *conntrack.Entry) error {
		if moved(e.Zone, e.Orig.Src) {
			keys = append(keys, e.Key())
		}
		return nil
	})
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	_, err = dump.DeleteKeys(ctx, h.Netns, keys)
	return len(keys), err
}

// moved is what Rezone did with each of several changes.
type moved struct {
	n   int
	err error
}

// rezone has connections of interfaces that entered or left a zone begin anew in the zone where they are now. Rules that are
// in force stay so where it fails.
func (m *moved) rezone(ns *netns.Handle, old, new *gateway.Plan) {
	n, err := Host{Netns: ns}.Rezone(context.Background(), old, new)
	m.n, m.err = m.n+n, errors.Join(m.err, err)
}

// note says how many there were; empty for none.
func (m *moved) note() string {
	switch {
	case m.err != nil:
		return fmt.Sprintf("connections that are in another zone than their hosts could not be searched for: %v", m.err)
	case m.n == 0:
		return ""
	}
	return fmt.Sprintf("deleted %s of hosts that entered or left a zone: their next packets begin them anew", units.Plural(int64(m.n), "connection", "connections"))
}

func (h Host) stale(ctx context.Context, ruleOf func(*conntrack.Entry) (*gateway.Ref, error)) (Stale, error) {
	s := Stale{Rules: map[gateway.Ref]int64{}}
	_, err := dump.Each(ctx, h.Netns, &conntrack.Filter{}, func(e *conntrack.Entry) error {
		ref, err := ruleOf(e)
		if ref != nil {
			s.Keys = append(s.Keys, e.Key())
			s.Rules[*ref]++
		}
		return err
	})
	return s, err
}

// Flush deletes stale connections.
func (h Host) Flush(ctx context.Context, s Stale) (dump.Deleted, error) {
	if len(s.Keys) == 0 {
		return dump.Deleted{}, nil
	}
	return dump.DeleteKeys(ctx, h.Netns, s.Keys)
}

// keepPlans is how long an unreferenced plan is kept: a natkit that has just stored it may
// be about to apply it.
const keepPlans = time.Hour

// forget deletes the plans that no transaction of the journal names, nor the table of
// any namespace. Failing is no harm: the next one does it.
func (h Host) forget() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	unlock, err := h.Apply.Journal.Lock(ctx)
	if err != nil {
		return
	}
	defer unlock()
	used, err := h.journaled()
	if err != nil {
		return
	}
	var tables map[string]bool
	_, _ = h.store().Collect(h.now().Add(-keepPlans), func(digest string) bool {
		if used[digest] {
			return true
		}
		if tables == nil { // read only if there is something to delete
			tables = h.inForce()
		}
		return tables[everything] || tables[digest]
	})
}

func (h Host) now() time.Time {
	if h.Apply.Clock != nil {
		return h.Apply.Clock.Now()
	}
	return time.Now()
}

// journaled are the digests that transactions name. A file that cannot be read may
// name any.
func (h Host) journaled() (map[string]bool, error) {
	all, damaged, err := h.Apply.Journal.List()
	if err != nil {
		return nil, err
	}
	if len(damaged) > 0 {
		return nil, damaged[0]
	}
	used := map[string]bool{}
	for _, tx := range all {
		for _, c := range tx.Changes {
			for _, value := range []string{c.Before, c.After} {
				if digest, _ := tune.GatewayDigest(value); digest != "" {
					used[digest] = true
				}
			}
		}
	}
	return used, nil
}

// everything, among the digests, keeps them all.
const everything = "*"

// inForce are the digests that the tables of all network namespaces name. Where one
// cannot be read, nothing is deleted.
func (h Host) inForce() map[string]bool {
	if !netns.SeesAll() {
		return map[string]bool{everything: true}
	}
	err := netns.CheckPrivilege(
		netns.Need{Any: []int{unix.CAP_SYS_ADMIN}, Why: "to enter network namespaces"},
		netns.Need{Any: []int{unix.CAP_SYS_PTRACE}, Why: "to find them"})
	if err != nil {
		return map[string]bool{everything: true}
	}
	found := map[string]bool{}
	err = netns.Each(func(ns *netns.Handle) error {
		state, err := h.Engines.Read(ns, nil, false)
		if err == nil {
			for _, one := range state.Engines {
				found[one.Digest] = true
			}
		}
		return err
	})
	if err != nil {
		found[everything] = true
	}
	return found
}
