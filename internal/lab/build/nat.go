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
	"github.com/google/nftables/userdata"
	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// natTable is the name of a lab's nftables tables. They are not natkit's own table: doctor
// is to find the rules of another program there, and its remedies change them. Hence plain
// rules without maps, in one table for each family.
const natTable = "natkit-lab"

// SetNAT replaces the rules of all nodes by these, each node's in one transaction.
// Without a rule that needs it a node's connection tracking is off.
func (l *Lab) SetNAT(ctx context.Context, rules []lab.NAT) error {
	for _, n := range l.nodes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.setNAT(n, rules); err != nil {
			return fmt.Errorf("set NAT rules of %s: %w", n.Name, natCause(err))
		}
	}
	return nil
}

// natCause explains the answers of a kernel without nftables.
func natCause(err error) error {
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (needs nftables in the kernel: CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4)", err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w (needs NAT for nftables in the kernel: CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NF_NAT)", err)
	}
	return err
}

func (l *Lab) setNAT(n *Node, rules []lab.NAT) error {
	if err := permit.Change("write NAT rules"); err != nil {
		return err
	}
	plan, err := gateway.Compile(l.scenario.Translations(n.Name, rules), gateway.Facts{})
	if err != nil {
		return err
	}
	conn, err := nftables.New(nftables.WithNetNSFd(n.Netns.Fd()), nftables.AsLasting())
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	own := l.scenario.Addresses(n.Name)
	for _, v6 := range []bool{false, true} {
		if v6 && !slices.ContainsFunc(own, netip.Addr.Is6) {
			continue // the kernel may have no tables of it
		}
		w := &ruleWriter{conn: conn, v6: v6, counted: map[uint16]bool{}}
		for _, r := range rules {
			if r.Node == n.Name && r.DNAT != nil && r.DNAT.Counted {
				w.counted[r.DNAT.Port.First] = true
			}
		}
		w.begin()
		w.translate(plan)
		for _, r := range rules {
			switch {
			case r.Node != n.Name || own[0].Is6() != v6:
			case r.Drop != nil:
				w.drop(r.Drop)
			case r.Notrack != nil:
				w.notrack(r.Notrack)
			}
		}
		if w.err != nil {
			return w.err
		}
	}
	return conn.Flush()
}

// ruleWriter writes the rules of one node and family.
type ruleWriter struct {
	conn   *nftables.Conn
	v6     bool
	table  nftables.Table
	chains map[string]*nftables.Chain
	// counted are the ports whose DNAT counts.
	counted map[uint16]bool
	err     error
}

// begin removes the rules of before. Deleting needs the table to be there; adding it
// first makes that certain.
func (w *ruleWriter) begin() {
	w.table = nftables.Table{Name: natTable, Family: nftables.TableFamilyIPv4}
	if w.v6 {
		w.table.Family = nftables.TableFamilyIPv6
	}
	w.conn.DelTable(w.conn.AddTable(&w.table))
	w.chains = map[string]*nftables.Chain{}
}

func (w *ruleWriter) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) {
	if len(w.chains) == 0 {
		w.conn.AddTable(&w.table)
	}
	if w.chains[name] == nil {
		w.chains[name] = w.conn.AddChain(&nftables.Chain{Name: name, Table: &w.table, Type: kind, Hooknum: hook, Priority: priority})
	}
}

func (w *ruleWriter) add(chain string, exprs ...[]expr.Any) {
	w.commented(chain, "", exprs...)
}

func (w *ruleWriter) commented(chain, comment string, exprs ...[]expr.Any) {
	r := &nftables.Rule{Table: &w.table, Chain: w.chains[chain], Exprs: slices.Concat(exprs...)}
	if comment != "" {
		r.UserData = userdata.AppendString(nil, userdata.TypeComment, comment)
	}
	w.conn.AddRule(r)
}

// translate writes what of a plan is of the family.
func (w *ruleWriter) translate(p *gateway.Plan) {
	to := slices.DeleteFunc(slices.Clone(p.Destinations), func(d gateway.Entry) bool { return d.On().Addr().Is6() != w.v6 })
	from := slices.DeleteFunc(slices.Clone(p.Sources), func(s gateway.Entry) bool { return s.From[0].Addr().Is6() != w.v6 })
	if len(to)+len(from) == 0 {
		return
	}
	// Before Linux 4.18 answers are translated back only where both hooks have a chain.
	w.chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	w.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, d := range to {
		to := d.Action.Backends[0]
		var count []expr.Any
		if w.counted[d.Ports[0].First] {
			count = append(count, &expr.Counter{})
		}
		w.add("prerouting", w.daddr(d.On().Addr()), dport(d.Protocol, d.Ports[0].First), count, []expr.Any{load(1, to.Address.AsSlice()), load(2, port(to.Port)),
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: w.nfproto(), RegAddrMin: 1, RegProtoMin: 2}})
	}
	for _, s := range from {
		w.source(s)
	}
}

// source writes one rule, or, where ports are given, one for each protocol that has
// ports, as nft does.
func (w *ruleWriter) source(s gateway.Entry) {
	does := s.Action
	out := []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, equals(append([]byte(s.Out[0]), make([]byte, unix.IFNAMSIZ-len(s.Out[0]))...))}
	fully := does.Random == nat.RandomFully
	if does.Kind == nat.Masquerade {
		w.add("postrouting", out, []expr.Any{&expr.Masq{FullyRandom: fully}})
		return
	}
	x := expr.NAT{Type: expr.NATTypeSourceNAT, Family: w.nfproto(), RegAddrMin: 1, FullyRandom: fully}
	to := []expr.Any{load(1, does.To[0].First.AsSlice())}
	if does.To[0].First != does.To[0].Last {
		to, x.RegAddrMax = append(to, load(4, does.To[0].Last.AsSlice())), 4
	}
	if does.Ports == (nat.Ports{}) {
		w.add("postrouting", out, to, []expr.Any{&x})
		return
	}
	x.RegProtoMin, x.RegProtoMax = 2, 3
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		w.add("postrouting", out, l4proto(protocol), to, []expr.Any{load(2, port(does.Ports.First)), load(3, port(does.Ports.Last)), &x})
	}
}

var dropHooks = map[string]*nftables.ChainHook{
	lab.HookInput: nftables.ChainHookInput, lab.HookForward: nftables.ChainHookForward, lab.HookOutput: nftables.ChainHookOutput,
	lab.HookPostrouting: nftables.ChainHookPostrouting,
}

// rulesAtOnce fit into the buffer of a socket.
const rulesAtOnce = 50

func (w *ruleWriter) drop(d *lab.Drop) {
	at, priority := cmp.Or(d.At, lab.HookForward), nftables.ChainPriorityFilter
	hook := dropHooks[at]
	if at == lab.HookPostrouting {
		at, priority = "translated", nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource+1)
	}
	w.chain(at, nftables.ChainTypeFilter, hook, priority)
	match := ctInvalid
	switch {
	case d.ICMP && w.v6:
		match = l4proto(unix.IPPROTO_ICMPV6)
	case d.ICMP:
		match = l4proto(unix.IPPROTO_ICMP)
	case !d.Invalid:
		protocol, _ := d.Port.Number()
		match = dport(protocol, d.Port.First)
	}
	then := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	if d.Damage { // the checksum follows the ports and the length (RFC 768)
		then = []expr.Any{load(1, port(1)), &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 6, Len: 2}}
	}
	if d.Reject {
		portUnreachable := map[bool]uint8{false: 3, true: 4}[w.v6] // of RFC 792 and RFC 4443
		then = []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: portUnreachable}}
	}
	if d.Above > 0 {
		then = slices.Concat(ctNew, []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(d.Above), Unit: expr.LimitTimeSecond, Burst: 1, Over: true}, &expr.Counter{}}, then)
	}
	for i := range max(1, d.Rules) {
		w.commented(at, d.Comment, match, then)
		if i%rulesAtOnce == rulesAtOnce-1 && w.err == nil {
			w.err = w.conn.Flush()
		}
	}
}

func (w *ruleWriter) notrack(n *lab.Notrack) {
	w.chain("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	protocol, _ := n.FromPort.Number()
	from := append(l4proto(protocol),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}, equals(port(n.FromPort.First)))
	w.add("raw", from, []expr.Any{&expr.Notrack{}})
}

func (w *ruleWriter) nfproto() uint32 {
	if w.v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// daddr is: ip daddr ADDR. Its place in the header is of RFC 791 and RFC 8200.
func (w *ruleWriter) daddr(addr netip.Addr) []expr.Any {
	offset := uint32(16)
	if w.v6 {
		offset = 24
	}
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(addr.BitLen() / 8)}, equals(addr.AsSlice())}
}

// dport is: meta l4proto PROTO th dport PORT, which headers of TCP and UDP have as their
// second word.
func dport(protocol uint8, number uint16) []expr.Any {
	return append(l4proto(protocol),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, equals(port(number)))
}

// l4proto is: meta l4proto PROTO
func l4proto(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{number})}
}

// ctInvalid is: ct state invalid, ctNew is: ct state new
var ctInvalid, ctNew = ctState(expr.CtStateBitINVALID), ctState(expr.CtStateBitNEW)

func ctState(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bit), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func load(register uint32, data []byte) expr.Any {
	return &expr.Immediate{Register: register, Data: data}
}

func port(number uint16) []byte { return binaryutil.BigEndian.PutUint16(number) }

// SetGateway puts a gateway file in force in its node, and takes away what a call before
// has put in force in any. Nil is none.
func (l *Lab) SetGateway(ctx context.Context, g *lab.Gateway) error {
	if l.gateway != "" {
		if err := l.engines.Remove(l.Node(l.gateway).Netns); err != nil {
			return fmt.Errorf("remove the gateway of %s: %w", l.gateway, err)
		}
		l.gateway, l.carriers = "", nil
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
	var notes []gateway.Note
	if err == nil {
		plan, notes, err = l.engines.Assign(plan, facts)
	}
	if err == nil {
		l.gateway, l.carriers = g.Node, plan.Carriers(notes)
		err = l.engines.Apply(node.Netns, plan, nil)
	}
	for _, name := range g.Detach {
		var pins plane.Pins
		if err == nil {
			pins, err = plane.PinsIn(node.Netns)
		}
		if err == nil {
			err = node.Netns.Do(func() error { return pins.Detach(name) })
		}
	}
	if err != nil {
		return fmt.Errorf("put a gateway file in force in %s: %w", g.Node, err)
	}
	return nil
}

// SetRedirect attaches the programs of a redirect, and detaches those of a call before. Nil is none.
func (l *Lab) SetRedirect(r *lab.Redirect) error {
	var errs []error
	for _, a := range l.redirects {
		errs = append(errs, a.Close())
	}
	if l.redirects = nil; r == nil || errors.Join(errs...) != nil {
		return errors.Join(errs...)
	}
	ends, ns := l.scenario.Ends(r), l.Node(r.Node).Netns
	for i, end := range ends {
		to, err := pktgen.ReadEgress(pktgen.Route{Netns: ns}, ends[1-i].Neighbour)
		if err != nil {
			return err
		}
		a, err := pktgen.Forward(end.Interface, to)
		if err != nil {
			return err
		}
		l.redirects = append(l.redirects, a)
	}
	return nil
}

// Carriers are the engines that carry out the rules of the file in force, where there are several.
func (l *Lab) Carriers() []gateway.Carrier { return l.carriers }

// byFill chooses the entries of a fill, byLoad those that the load left.
var (
	byFill = conntrack.Filter{Mark: lab.FillMark, MarkMask: ^uint32(0)}
	byLoad = conntrack.Filter{Mark: 0, MarkMask: ^uint32(0)}
)

// ClearLoad removes the entries that the load left in the nodes' connection
// tables, and leaves those of a fill.
func (l *Lab) ClearLoad(ctx context.Context) error {
	for _, n := range l.nodes {
		if _, err := dump.Delete(ctx, n.Netns, &byLoad); err != nil {
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

// SetFill fills the connection table of f.Node, by entries of f's mix, where limit is
// nf_conntrack_max. It keeps those that are there already. A nil f removes all that were
// made.
func (l *Lab) SetFill(ctx context.Context, f *lab.Fill, limit int64) error {
	var next filled
	if f != nil {
		filler, err := f.Filler()
		if err != nil {
			return err
		}
		next = filled{node: f.Node, filler: filler}
	}
	if now := l.filled; now.node != "" && !now.same(next) {
		if _, err := dump.Delete(ctx, l.Node(now.node).Netns, &byFill); err != nil {
			return fmt.Errorf("empty the connection table of %s: %w", now.node, err)
		}
		l.filled = filled{}
	}
	if f == nil {
		return nil
	}
	available, err := collect.AvailableMemory()
	if err != nil {
		return err
	}
	target, err := f.Target(limit, available)
	if err != nil {
		return err
	}
	if l.filled.node == "" {
		l.filled = next
	}
	made, err := InsertFill(ctx, l.Node(f.Node).Netns, l.filled.filler, l.filled.made, target, nil)
	l.filled.made += made
	if err != nil {
		return fmt.Errorf("fill the connection table of %s: %w", f.Node, err)
	}
	return nil
}

func (f filled) same(o filled) bool {
	return f.node == o.node && o.filler != nil && f.filler.Seed() == o.filler.Seed() && reflect.DeepEqual(f.filler.Mix(), o.filler.Mix())
}
