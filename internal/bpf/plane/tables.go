package plane

import (
	"iter"
	"net"
	"net/netip"

	"github.com/natkit/natkit/internal/nat"
)

// Roles are what an interface is for mappings: one bit for each list of interfaces that some mapping asks for.
type Roles uint32

const (
	// Inside is the role of interfaces that lead inside: what comes in by one and leaves by one is a hairpin.
	Inside Roles = 1 << 31
	// AnyRole is met by every interface that has one.
	AnyRole Roles = ^Roles(0)
)

// Mapping translates addresses of one end of packets, and their port. Each packet is translated by the most specific
// one: by its port before by its protocol before by its address before by the longest prefix.
type Mapping struct {
	// Match are the addresses that it is for, Protocol and Port, of TCP, UDP and SCTP, as far as it is not for all: 0.
	Match    netip.Prefix
	Protocol uint8
	Port     uint16
	// To is what the bits of Match become, those of the host stay; ToPort what the port becomes, where it is not 0.
	To     netip.Prefix
	ToPort uint16
	// Neutral has one word of the address take up the difference, so that checksums stay right (RFC 6296).
	Neutral bool
	// Roles are those of the interface, one of which it has to have: by which packets come in, of Destinations, or go
	// out, of Sources. AnyRole is met by all.
	Roles Roles
	// Rule is the number of its counters.
	Rule uint32
	// Hosts, where it is not nil, are single addresses with what each becomes, of which there may be millions: Match and To
	// have their family then, and no more.
	Hosts *Hosts
}

// Hosts are as many pairs of addresses: one of a packet, and what it becomes.
type Hosts struct {
	Len  int
	Each iter.Seq2[netip.Addr, netip.Addr]
}

// Each returns the mappings of a table, one by one.
func Each(table []Mapping) iter.Seq[Mapping] {
	return func(yield func(Mapping) bool) {
		for _, m := range table {
			if m.Hosts == nil {
				if !yield(m) {
					return
				}
				continue
			}
			one, pairs := m, m.Hosts.Each
			one.Hosts = nil
			for from, to := range pairs {
				one.Match, one.To = nat.Host(from), nat.Host(to)
				if !yield(one) {
					return
				}
			}
		}
	}
}

// lenOf is the number of mappings that Each returns.
func lenOf(table []Mapping) (n int) {
	for i := range table {
		if h := table[i].Hosts; h != nil {
			n += h.Len
		} else {
			n++
		}
	}
	return n
}

// Map is the name of the kernel's map that has it, of Destinations or of Sources.
func (m *Mapping) Map(destination bool) string {
	hosts, services, prefixes := planeMapSources, planeMapSourceServices, planeMapSourcePrefixes
	if destination {
		hosts, services, prefixes = planeMapDestinations, planeMapDestinationServices, planeMapDestinationPrefixes
	}
	switch {
	case m.Protocol != 0:
		return services
	case m.Hosts != nil || m.Match.IsSingleIP():
		return hosts
	}
	return prefixes
}

// Tables are what the programs carry out. A packet's destination is translated by Destinations, then it is routed, and
// its source is translated by Sources. A packet whose destination was translated and that comes in and goes out by
// interfaces with the role Inside (a hairpin) has its source translated by Sources that have this role, which is for
// nothing else; where none is for it the programs leave it, untranslated, to the stack.
type Tables struct {
	Destinations, Sources []Mapping
	// Elsewhere are destinations that something else translates: packets to them that no mapping is for are not touched,
	// whatever mapping there is for their source.
	Elsewhere []netip.Prefix
	// Rules is the number of counters.
	Rules uint32
}

// RPFilter is an interface's net.ipv4.conf.*.rp_filter: the larger of its own and that of all.
type RPFilter uint8

// Interface is one that the programs are attached to, or send packets to.
type Interface struct {
	Index    int
	Roles    Roles
	RPFilter RPFilter
	// NoEthernet has no Ethernet header (PPP, WireGuard, tun).
	NoEthernet bool
	// MAC is the address that frames for this host have.
	MAC net.HardwareAddr
	// Redirect reports whether its driver takes frames that an XDP program redirects (ndo_xdp_xmit).
	Redirect bool
	// WantsXDP is kept for State.Known: whether the programs are to be at XDP, too.
	WantsXDP bool
}
