package build

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
)

// natTable is the name of a lab's nftables table.
const natTable = "natkit-lab"

// SetNAT replaces the NAT rules of all nodes by these, each node's in one
// transaction. Without a rule a node's connection tracking is off.
func (l *Lab) SetNAT(ctx context.Context, rules []lab.NAT) error {
	byNode := map[string][]lab.NAT{}
	for _, r := range rules {
		byNode[r.Node] = append(byNode[r.Node], r)
	}
	for _, n := range l.nodes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := n.setNAT(byNode[n.Name], l.scenario.Addresses(n.Name)); err != nil {
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
		return fmt.Errorf("%w (needs NAT for nftables in the kernel: CONFIG_NFT_NAT, CONFIG_NF_NAT)", err)
	}
	return err
}

func (n *Node) setNAT(rules []lab.NAT, own []netip.Addr) error {
	conn, err := nftables.New(nftables.WithNetNSFd(n.Netns.Fd()), nftables.AsLasting())
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	// Deleting needs the table to be there; adding it first makes that certain.
	table := conn.AddTable(&nftables.Table{Name: natTable, Family: nftables.TableFamilyIPv4})
	conn.DelTable(table)
	if len(rules) > 0 {
		table = conn.AddTable(table)
		addRules(conn, table, rules, own)
	}
	return conn.Flush()
}

// addRules makes both NAT chains: before Linux 4.18 answers are translated back
// only where both hooks have one.
func addRules(conn *nftables.Conn, table *nftables.Table, rules []lab.NAT, own []netip.Addr) {
	pre := conn.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	conn.AddChain(&nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	for _, r := range rules {
		for _, addr := range own {
			conn.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: dnat(addr, *r.DNAT)})
		}
	}
}

// Offsets in the IPv4 header (RFC 791) and in those of TCP and UDP.
const (
	ipDaddr   = 16
	l4DstPort = 2
)

// dnat is: ip daddr ADDR meta l4proto PROTO th dport PORT dnat to TO
func dnat(addr netip.Addr, d lab.DNAT) []expr.Any {
	proto := byte(unix.IPPROTO_TCP)
	if d.Port.Protocol == "udp" {
		proto = unix.IPPROTO_UDP
	}
	equals := func(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: ipDaddr, Len: 4},
		equals(addr.AsSlice()),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		equals([]byte{proto}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: l4DstPort, Len: 2},
		equals(binaryutil.BigEndian.PutUint16(d.Port.Number)),
		&expr.Immediate{Register: 1, Data: d.To.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(d.To.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
}
