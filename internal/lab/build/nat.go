package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/fill"
	"golang.org/x/sys/unix"
)

// natTable is the name of a lab's nftables table.
const natTable = "natkit-lab"

// SetNAT replaces the rules of all nodes by these, each node's in one transaction.
// Without a rule that needs it a node's connection tracking is off.
func (l *Lab) SetNAT(ctx context.Context, rules []lab.NAT) error {
	byNode := map[string][]lab.NAT{}
	for _, r := range rules {
		byNode[r.Node] = append(byNode[r.Node], r)
	}
	for _, n := range l.nodes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.setNAT(n, byNode[n.Name]); err != nil {
			return fmt.Errorf("set NAT rules of %s: %w", n.Name, natCause(err))
		}
	}
	return nil
}

// natCause says what a kernel without nftables answers with.
func natCause(err error) error {
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (needs nftables in the kernel: CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4)", err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w (needs NAT for nftables in the kernel: CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NF_NAT)", err)
	}
	return err
}

// ruleFamily is a family of addresses with what rules of it are made of.
type ruleFamily struct {
	table nftables.TableFamily
	// nf is its number in expressions; daddr and length place the destination
	// address in the header (RFC 791, RFC 8200).
	nf            uint32
	daddr, length uint32
}

var (
	family4 = ruleFamily{nftables.TableFamilyIPv4, unix.NFPROTO_IPV4, 16, 4}
	family6 = ruleFamily{nftables.TableFamilyIPv6, unix.NFPROTO_IPV6, 24, 16}
)

func (l *Lab) setNAT(n *Node, rules []lab.NAT) error {
	conn, err := nftables.New(nftables.WithNetNSFd(n.Netns.Fd()), nftables.AsLasting())
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	for _, family := range []ruleFamily{family4, family6} {
		own := slices.DeleteFunc(l.scenario.Addresses(n.Name), func(a netip.Addr) bool { return a.Is6() != (family == family6) })
		if family == family6 && len(own) == 0 {
			continue // the kernel may have no tables of it
		}
		of := slices.DeleteFunc(slices.Clone(rules), func(r lab.NAT) bool { return l.scenario.IPv6(r) != (family == family6) })
		w := &ruleWriter{conn: conn, family: family, scenario: l.scenario, own: own}
		if w.replace(of); w.err != nil {
			return w.err
		}
	}
	return conn.Flush()
}

// ruleWriter writes the rules of one node and family.
type ruleWriter struct {
	conn     *nftables.Conn
	family   ruleFamily
	scenario *lab.Scenario
	own      []netip.Addr
	table    *nftables.Table
	chains   map[string]*nftables.Chain
	err      error
}

// rulesAtOnce fit into the buffer of a socket.
const rulesAtOnce = 50

// replace puts the rules in place of those of before. Deleting needs the table to be
// there; adding it first makes that certain.
func (w *ruleWriter) replace(rules []lab.NAT) {
	w.table = w.conn.AddTable(&nftables.Table{Name: natTable, Family: w.family.table})
	w.conn.DelTable(w.table)
	if len(rules) == 0 {
		return
	}
	w.table, w.chains = w.conn.AddTable(w.table), map[string]*nftables.Chain{}
	if slices.ContainsFunc(rules, lab.NAT.Translates) {
		// Before Linux 4.18 answers are translated back only where both hooks have a chain.
		w.chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
		w.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	}
	for _, r := range rules {
		w.rule(r)
	}
}

func (w *ruleWriter) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	if w.chains[name] == nil {
		w.chains[name] = w.conn.AddChain(&nftables.Chain{Name: name, Table: w.table, Type: kind, Hooknum: hook, Priority: priority})
	}
	return w.chains[name]
}

func (w *ruleWriter) add(chain string, exprs ...[]expr.Any) {
	w.conn.AddRule(&nftables.Rule{Table: w.table, Chain: w.chains[chain], Exprs: slices.Concat(exprs...)})
}

func (w *ruleWriter) rule(r lab.NAT) {
	switch {
	case r.DNAT != nil:
		for _, addr := range w.own {
			w.add("prerouting", w.to(addr), port(r.DNAT.Port), w.dnat(r.DNAT.To))
		}
	case r.Masquerade != nil:
		m := r.Masquerade
		w.sourceNAT(r.Node, m.Toward, lab.Ports{}, func(bool) expr.Any { return &expr.Masq{FullyRandom: m.FullyRandom} })
	case r.SNAT != nil:
		w.snat(r)
	default:
		w.drop(r.Drop)
	}
}

var dropHooks = map[string]*nftables.ChainHook{
	lab.HookInput: nftables.ChainHookInput, lab.HookForward: nftables.ChainHookForward, lab.HookOutput: nftables.ChainHookOutput,
	lab.HookPostrouting: nftables.ChainHookPostrouting,
}

func (w *ruleWriter) drop(d *lab.Drop) {
	at, priority := cmp.Or(d.At, lab.HookForward), nftables.ChainPriorityFilter
	hook := dropHooks[at]
	if at == lab.HookPostrouting {
		at, priority = "translated", nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource+1)
	}
	w.chain(at, nftables.ChainTypeFilter, hook, priority)
	match := ctInvalid
	if !d.Invalid {
		match = port(d.Port)
	}
	for i := range max(1, d.Rules) {
		w.add(at, match, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
		if i%rulesAtOnce == rulesAtOnce-1 && w.err == nil {
			w.err = w.conn.Flush()
		}
	}
}

func (w *ruleWriter) snat(r lab.NAT) {
	s := r.SNAT
	to := []expr.Any{&expr.Immediate{Register: 1, Data: s.To[0].AsSlice()}}
	if last := len(s.To) - 1; last > 0 {
		to = append(to, &expr.Immediate{Register: 4, Data: s.To[last].AsSlice()})
	}
	w.sourceNAT(r.Node, s.Toward, s.Ports, func(ported bool) expr.Any {
		nat := &expr.NAT{Type: expr.NATTypeSourceNAT, Family: w.family.nf, RegAddrMin: 1, FullyRandom: s.FullyRandom}
		if len(s.To) > 1 {
			nat.RegAddrMax = 4
		}
		if ported {
			nat.RegProtoMin, nat.RegProtoMax = 2, 3
		}
		return nat
	}, to...)
}

// sourceNAT writes one rule for what leaves toward a neighbour, or, where ports are
// given, one for each protocol that has ports, as nft does.
func (w *ruleWriter) sourceNAT(node, toward string, ports lab.Ports, translate func(ported bool) expr.Any, before ...expr.Any) {
	out := outInterface(w.scenario.InterfaceToward(node, toward))
	if ports == (lab.Ports{}) {
		w.add("postrouting", out, before, []expr.Any{translate(false)})
		return
	}
	for _, protocol := range []string{"tcp", "udp"} {
		w.add("postrouting", out, l4proto(protocol), before, []expr.Any{
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(ports.First)},
			&expr.Immediate{Register: 3, Data: binaryutil.BigEndian.PutUint16(ports.Last)},
			translate(true),
		})
	}
}

func (w *ruleWriter) dnat(to lab.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: w.family.nf, RegAddrMin: 1, RegProtoMin: 2},
	}
}

// to is: ip daddr ADDR
func (w *ruleWriter) to(addr netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: w.family.daddr, Len: w.family.length},
		equals(addr.AsSlice()),
	}
}

// SetGateway puts a gateway file in force in its node, and takes away what a call before
// has put in force in any. Nil is none.
func (l *Lab) SetGateway(ctx context.Context, g *lab.Gateway) error {
	if l.gateway != "" {
		if err := l.engines.Remove(l.Node(l.gateway).Netns); err != nil {
			return fmt.Errorf("remove the gateway of %s: %w", l.gateway, err)
		}
		l.gateway = ""
	}
	if g == nil {
		return nil
	}
	node := l.Node(g.Node)
	facts, err := host.Read(ctx, node.Netns, host.Options{})
	if err != nil {
		return fmt.Errorf("put a gateway file in force in %s: %w", g.Node, err)
	}
	plan, err := gateway.Compile(&g.Config, facts)
	if err == nil {
		plan, _, err = l.engines.Assign(plan, facts)
	}
	if err == nil {
		l.gateway = g.Node
		err = l.engines.Apply(node.Netns, plan, nil)
	}
	if err != nil {
		return fmt.Errorf("put a gateway file in force in %s: %w", g.Node, err)
	}
	return nil
}

// byFill chooses the entries of a fill, byLoad those that the load left.
var (
	byFill = match.Filter{Mark: lab.FillMark, MarkMask: ^uint32(0)}
	byLoad = match.Filter{Mark: 0, MarkMask: ^uint32(0)}
)

// ClearLoad removes the entries that the load left in the nodes' connection
// tables, and leaves those of a fill.
func (l *Lab) ClearLoad(ctx context.Context) error {
	for _, n := range l.nodes {
		if err := dump.Delete(ctx, n.Netns, byLoad); err != nil {
			return fmt.Errorf("clear the connection table of %s: %w", n.Name, err)
		}
	}
	return nil
}

// filled is the fill that a lab has.
type filled struct {
	node   string
	filler *lab.Filler
	// made is how many of its entries were made.
	made int64
}

// SetFill brings the connection table of f.Node to so many entries in all (see
// lab.Fill.Target), by entries of f's mix. It keeps those that are there already.
// A nil f removes all that were made.
func (l *Lab) SetFill(ctx context.Context, f *lab.Fill, entries int64) error {
	var next filled
	if f != nil {
		filler, err := f.Filler()
		if err != nil {
			return err
		}
		next = filled{node: f.Node, filler: filler}
	}
	if now := l.filled; now.node != "" && !now.same(next) {
		if err := dump.Delete(ctx, l.Node(now.node).Netns, byFill); err != nil {
			return fmt.Errorf("empty the connection table of %s: %w", now.node, err)
		}
		l.filled = filled{}
	}
	if f == nil {
		return nil
	}
	if l.filled.node == "" {
		l.filled = next
	}
	made, err := fill.Insert(ctx, l.Node(f.Node).Netns, l.filled.filler, l.filled.made, entries, nil)
	l.filled.made += made
	if err != nil {
		return fmt.Errorf("fill the connection table of %s: %w", f.Node, err)
	}
	return nil
}

func (f filled) same(o filled) bool {
	return f.node == o.node && o.filler != nil && f.filler.Seed() == o.filler.Seed() && reflect.DeepEqual(f.filler.Mix(), o.filler.Mix())
}

// FillTarget is how many entries a table must hold for a fill, with the maximum that
// the host has now.
func FillTarget(f *lab.Fill) (int64, error) {
	limit, err := fill.Max()
	if err != nil {
		return 0, err
	}
	available, err := collect.AvailableMemory()
	if err != nil {
		return 0, err
	}
	return f.Target(limit, available)
}
