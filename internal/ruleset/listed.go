package ruleset

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// RuleID identifies a rule of nf_tables in a namespace.
type RuleID struct {
	Family, Table string
	Handle        uint64
}

// Listed are the destinations that a rule is for where these are several, by sets, maps or lists: single
// addresses and ports.
type Listed struct {
	Addresses []netip.Addr
	Ports     []nat.Ports
}

// MostListed bounds what is returned of one rule.
const MostListed = 64

// ListedBy returns what rules of tables of Judged that translate destinations list.
func ListedBy(tables []*Table) map[RuleID]Listed {
	all := map[RuleID]Listed{}
	for _, t := range tables {
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				if k := r.Target.Kind; r.Handle == 0 || k != DNAT && k != Redirect && k != Netmap {
					continue
				}
				if l := r.Match.listed(); len(l.Addresses)+len(l.Ports) > 0 {
					all[RuleID{t.Family, t.Name, r.Handle}] = l
				}
			}
		}
	}
	return all
}

func (m *Match) listed() (l Listed) {
	l.Ports = slices.Clone(m.Ports)
	for _, s := range m.Sets {
		if s.not {
			continue
		}
		at := 0
		for _, c := range s.fields {
			end := at + c.size()
			for _, e := range s.elements {
				if end > len(e.first) || end > len(e.last) {
					continue
				}
				l.add(c, e.first[at:end], e.last[at:end])
			}
			at += (c.size() + 3) &^ 3
		}
	}
	return l
}

// add is one element of a field.
func (l *Listed) add(c content, first, last []byte) {
	isPort := c.from == payload && c.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && c.offset == 2 && c.length == 2
	switch {
	case c.isAddress() && (c.length == 4 && c.offset == 16 || c.length == 16 && c.offset == 24):
		a, ok := netip.AddrFromSlice(first)
		if ok && bytes.Equal(first, last) && len(l.Addresses) < MostListed && !slices.Contains(l.Addresses, a) {
			l.Addresses = append(l.Addresses, a)
		}
	case isPort && len(l.Ports) < MostListed:
		l.Ports = append(l.Ports, nat.Ports{First: binary.BigEndian.Uint16(first), Last: binary.BigEndian.Uint16(last)})
	}
}
