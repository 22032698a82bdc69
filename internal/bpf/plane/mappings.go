package plane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
)

// Mappings reads the kernel's maps of the programs in force.
type Mappings struct {
	destinations, sources side
	interfaces            *ebpf.Map
}

// side are the maps of one end of packets, by address, by protocol and port of one, by prefix.
type side struct{ hosts, services, prefixes *ebpf.Map }

// Mappings opens the maps of the last Load; the caller closes them. It returns nil where there are none, or where another
// version pinned them.
func (p Pins) Mappings() (*Mappings, error) {
	s, err := p.open(false)
	if err != nil {
		return nil, err
	}
	defer s.close()
	_, loads, err := s.list()
	if err != nil || len(loads) == 0 {
		return nil, err
	}
	load, m := strconv.Itoa(loads[len(loads)-1]), &Mappings{}
	for name, to := range map[string]**ebpf.Map{
		planeMapInterfaces:   &m.interfaces,
		planeMapDestinations: &m.destinations.hosts, planeMapDestinationServices: &m.destinations.services, planeMapDestinationPrefixes: &m.destinations.prefixes,
		planeMapSources: &m.sources.hosts, planeMapSourceServices: &m.sources.services, planeMapSourcePrefixes: &m.sources.prefixes,
	} {
		if *to, err = ebpf.LoadPinnedMap(s.at(load, name), &ebpf.LoadPinOptions{ReadOnly: true}); errors.Is(err, fs.ErrNotExist) {
			return nil, m.Close()
		} else if err != nil {
			return nil, errors.Join(fmt.Errorf("open the maps that are pinned in %s: %w", filepath.Join(s.path, load), netns.Denied(err, netns.BPF, netns.WriteAll)), m.Close())
		}
	}
	return m, nil
}

// Close closes the maps.
func (m *Mappings) Close() error {
	var errs []error
	for _, is := range []*ebpf.Map{m.interfaces, m.destinations.hosts, m.destinations.services, m.destinations.prefixes, m.sources.hosts, m.sources.services, m.sources.prefixes} {
		if is != nil {
			errs = append(errs, is.Close())
		}
	}
	return errors.Join(errs...)
}

// Destination is what the destination of packets that come in by an interface (0: by any) becomes; false where no mapping is
// for it. Port 0 is one that no mapping names.
func (m *Mappings) Destination(in int, protocol uint8, to netip.AddrPort) (netip.AddrPort, bool) {
	return m.destinations.find(m.roles(in), protocol, to)
}

// Destinations returns mappings of single addresses, ordered by address: at most this many of services, and as many of whole
// addresses.
func (m *Mappings) Destinations(most int) (all []nat.Mapped, err error) {
	var is planeMapping
	var service planeService
	services := m.destinations.services.Iterate()
	for len(all) < most && services.Next(&service, &is) {
		on := netip.AddrPortFrom(service.Address.addr(), swapped(service.Port))
		all = append(all, nat.Mapped{Protocol: service.Protocol, On: on, To: is.of(on)})
	}
	var a planeAddress
	hosts := m.destinations.hosts.Iterate()
	for most += len(all); len(all) < most && hosts.Next(&a, &is); {
		if is.Flags&maps != 0 {
			on := netip.AddrPortFrom(a.addr(), 0)
			all = append(all, nat.Mapped{On: on, To: is.of(on)})
		}
	}
	slices.SortFunc(all, func(a, b nat.Mapped) int { return cmp.Or(a.On.Compare(b.On), cmp.Compare(a.Protocol, b.Protocol)) })
	return all, errors.Join(services.Err(), hosts.Err())
}

// addr undoes addressOf.
func (a *planeAddress) addr() netip.Addr {
	var bytes [16]byte
	for i, word := range a.W {
		binary.NativeEndian.PutUint32(bytes[4*i:], word)
	}
	return netip.AddrFrom16(bytes).Unmap()
}

// Source is Destination for the source of packets that leave by an interface.
func (m *Mappings) Source(out int, protocol uint8, from netip.AddrPort) (netip.AddrPort, bool) {
	return m.sources.find(m.roles(out)&^Inside, protocol, from)
}

// roles returns the roles of an interface, 0 where the programs do not know it.
func (m *Mappings) roles(index int) Roles {
	if index == 0 {
		return AnyRole
	}
	var is planeInterface
	if m.interfaces.Lookup(uint32(index), &is) != nil {
		return 0
	}
	return Roles(is.Roles)
}

// find looks an address up as find in decide.h does.
func (s *side) find(has Roles, protocol uint8, end netip.AddrPort) (netip.AddrPort, bool) {
	a := addressOf(end.Addr())
	for _, m := range []struct {
		in  *ebpf.Map
		key any
	}{
		{s.services, planeService{Address: a, Port: swapped(end.Port()), Protocol: protocol}},
		{s.services, planeService{Address: a, Protocol: protocol}},
		{s.hosts, a},
		{s.prefixes, planePrefix{Length: 128, Address: a}},
	} {
		var v planeMapping
		if m.in.Lookup(m.key, &v) == nil && v.Flags&maps != 0 && Roles(v.Roles)&has != 0 {
			return v.of(end), true
		}
	}
	return end, false
}

// of is what an end of packets becomes. Of RFC 6296 it is without the word that changes.
func (m *planeMapping) of(end netip.AddrPort) netip.AddrPort {
	was, to := end.Addr().As16(), [16]byte{}
	for i := range m.To.W {
		word := binary.NativeEndian.Uint32(was[4*i:])
		binary.NativeEndian.PutUint32(to[4*i:], m.To.W[i]|word&m.Stay.W[i])
	}
	port := end.Port()
	if m.Port != 0 {
		port = swapped(m.Port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(to).Unmap(), port)
}
