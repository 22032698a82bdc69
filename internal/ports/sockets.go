package ports

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"
)

// Socket is one of this machine.
type Socket struct {
	Proto  uint8
	Local  netip.AddrPort
	Remote netip.AddrPort
}

// SharedWith tells which of the addresses that pools have are also those of sockets.
// Sockets that listen on all addresses are counted with each.
func SharedWith(pools []snapshot.PortPool, sockets []Socket) []snapshot.SharedAddress {
	type place struct{ address, protocol string }
	shared := map[place]*snapshot.SharedAddress{}
	for i := range pools {
		p := place{pools[i].Address, pools[i].Protocol}
		shared[p] = &snapshot.SharedAddress{Address: p.address, Protocol: p.protocol}
	}
	wild := map[string]int64{}
	for _, s := range sockets {
		protocol, local := conntrack.ProtocolName(s.Proto), s.Local.Addr().Unmap()
		if local.IsUnspecified() {
			wild[protocol]++
			continue
		}
		at := shared[place{local.String(), protocol}]
		switch {
		case at == nil:
		case s.Remote.Port() == 0:
			at.Listening++
		default:
			at.Connected++
		}
	}
	var out []snapshot.SharedAddress
	for p, s := range shared {
		// Whether the address is this machine's is told by sockets that have it.
		s.Wildcard = wild[p.protocol]
		if s.Listening+s.Connected+s.Wildcard > 0 {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b snapshot.SharedAddress) int {
		return cmp.Or(cmp.Compare(b.Connected, a.Connected), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}
