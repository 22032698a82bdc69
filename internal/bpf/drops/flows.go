package drops

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/natkit/natkit/internal/snapshot"
)

func isAborted(err error) bool { return errors.Is(err, ebpf.ErrIterationAborted) }

// addFlows reads the flows, and how many were evicted.
func (t *Tracer) addFlows(d *snapshot.Drops, cpu dropsCpu) error {
	if t.opt.FlowSample <= 0 {
		return nil
	}
	links := newInterfaces()
	defer links.close()
	flows := map[snapshot.DropFlow]uint64{}
	var key dropsDropFlow
	var packets, present uint64
	it := t.maps[dropsMapFlows].Iterate()
	for it.Next(&key, &packets) {
		present++
		if address(key.Saddr, key.Site.Protocol).IsValid() {
			flows[t.flow(key, links)] += packets
		}
	}
	for flow, packets := range flows {
		flow.Packets = packets
		d.Flows = append(d.Flows, flow)
	}
	slices.SortFunc(d.Flows, func(a, b snapshot.DropFlow) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.Function, b.Function), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Netns, b.Netns))
	})
	d.LostFlows = cpu.LostFlows + cpu.NewFlows - min(present, cpu.NewFlows)
	return iterated("the flows dropped", it)
}

func (t *Tracer) flow(k dropsDropFlow, links *interfaces) snapshot.DropFlow {
	at := t.names.place(k.Site.Location)
	return snapshot.DropFlow{
		Function: at.Name, Reason: t.names.reasons.Name(k.Site.Reason), Protocol: protocolName(k.Site.Protocol),
		Source:      end(address(k.Saddr, k.Site.Protocol), k.Sport),
		Destination: end(address(k.Daddr, k.Site.Protocol), k.Dport),
		Interface:   links.name(k.Site.Netns, k.Ifindex), Netns: uint64(k.Site.Netns),
	}
}

// address is none where there is neither IP nor ARP.
func address(words [4]uint32, protocol uint32) netip.Addr {
	var b [16]byte
	for i, word := range words {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	switch protocol >> 16 {
	case 0x86dd:
		return netip.AddrFrom16(b)
	case 0x0800, 0x0806, 0x8035:
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.Addr{}
}

// end is an address, and a port where there is one.
func end(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}
