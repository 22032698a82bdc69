package explain

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/prefix"
)

// give is what a Source makes of the packet's source. The kernel chooses as
// nf_nat_core.c does (get_unique_tuple).
func (w *walk) give(s *gateway.Source) Given {
	g := Given{Addresses: w.addresses(s), echo: w.packet.isEcho()}
	g.Port, g.First, g.Last = givenPort(s, w.packet, w.src.port)
	return g
}

func (w *walk) addresses(s *gateway.Source) []gateway.Range {
	switch {
	case s.Masquerade:
		return w.masqueraded()
	case s.Prefix.IsValid():
		a := prefix.Replace(w.src.addr, s.Prefix)
		return []gateway.Range{{First: a, Last: a}}
	}
	return slices.Clone(s.To)
}

// masqueraded is the address that masquerade gives: in IPv4 that of the interface in the
// network of the next hop, otherwise the first one (inet_select_addr); in IPv6 one of
// the global ones, by RFC 6724 (ipv6_dev_get_saddr).
func (w *walk) masqueraded() (all []gateway.Range) {
	next := w.dst.addr
	if w.hop.Gateway.IsValid() {
		next = w.hop.Gateway
	}
	for _, p := range w.facts.AddressesOf(w.e.Out) {
		if p.Addr().BitLen() != next.BitLen() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		r := gateway.Range{First: p.Addr(), Last: p.Addr()}
		if next.Is4() && p.Contains(next) {
			return []gateway.Range{r}
		}
		all = append(all, r)
	}
	if next.Is4() && len(all) > 1 {
		return all[:1]
	}
	return all
}

// givenPort is the port that is given if it is free, and the bounds of what is given
// otherwise.
func givenPort(s *gateway.Source, p Packet, port uint16) (given, first, last uint16) {
	switch {
	case !p.hasPorts() && !p.isEcho():
		return 0, 0, 0
	case s.Ports.Keep:
		return port, 0, 0
	}
	first, last = bounds(s, p, port)
	if s.Random != "" || port < first || port > last {
		return 0, first, last
	}
	return port, first, last
}

// bounds are the rule's, or those of the kernel for the class of the port
// (nf_nat_l4proto_unique_tuple).
func bounds(s *gateway.Source, p Packet, port uint16) (first, last uint16) {
	switch {
	case s.Ports.First > 0:
		return s.Ports.First, max(s.Ports.First, s.Ports.Last)
	case p.isEcho():
		return 0, 65535
	case port < 512:
		return 1, 511
	case port < 1024:
		// From 600 on where another one has to be found; the port itself may be less.
		return min(port, 600), 1023
	}
	return 1024, 65535
}

// words says what is given, and from what where the kernel chooses.
func (w *walk) words(g Given, s *gateway.Source) string {
	if len(g.Addresses) == 0 {
		return "the interface's address, which it does not have yet"
	}
	text, taken, unknown := g.String(), "that "+g.port(), g.echo && g.Port == 0
	if unknown {
		taken = "its " + g.port()
	}
	if len(g.Addresses) > 1 || g.Addresses[0].First != g.Addresses[0].Last {
		text = "one of " + text
	}
	switch stays := g.Port != 0 || unknown && s.Random == "" && s.Ports.First == 0; {
	case s.Ports.Keep && (stays || unknown):
		return text + fmt.Sprintf("; if %s is taken towards this destination the packet is dropped", taken)
	case stays && g.Last > 0:
		return text + fmt.Sprintf("; if %s is taken towards this destination, another of %d-%d", taken, g.First, g.Last)
	case unknown && s.Random == "":
		return text + fmt.Sprintf(" with %s where that is one of %d-%d and free, otherwise another of them", taken, g.First, g.Last)
	case g.Last > 0:
		return text + fmt.Sprintf(" with a free %s of %d-%d, at random", g.port(), g.First, g.Last)
	}
	return text
}
