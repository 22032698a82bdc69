package drops

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// Event is one drop.
type Event = snapshot.DropEvent

// ring hands events on.
type ring struct {
	reader *ringbuf.Reader
	done   chan struct{}
	// boot is what CLOCK_MONOTONIC counts from.
	boot time.Time
}

func (t *Tracer) openRing() error {
	reader, err := ringbuf.NewReader(t.maps[dropsMapEvents])
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	_, boot, err := bpf.Monotonic()
	if err != nil {
		return errors.Join(err, reader.Close())
	}
	t.ring = &ring{reader: reader, done: make(chan struct{}), boot: boot}
	go t.readEvents()
	t.closers = append(t.closers, func() error {
		err := reader.Close()
		<-t.ring.done
		return err
	})
	return nil
}

// readEvents ends when the reader is closed.
func (t *Tracer) readEvents() {
	defer close(t.ring.done)
	var record ringbuf.Record
	var e dropsEvent
	for {
		if err := t.ring.reader.ReadInto(&record); err != nil {
			return
		}
		if err := binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e); err == nil {
			t.opt.Events(t.event(&e))
		}
	}
}

func (t *Tracer) event(e *dropsEvent) Event {
	at := t.names.place(e.Site.Location)
	event := Event{
		Time:     t.ring.boot.Add(time.Duration(e.TimeNs)),
		Function: at.Name, Offset: at.Offset, Module: at.Module,
		Reason: t.names.reasons.Name(e.Site.Reason), Protocol: protocolName(e.Site.Protocol), Cause: causes[e.Site.Cause].name,
		Length: e.Length, Interface: t.links.name(e.Site.Netns, e.Ifindex), Netns: uint64(e.Site.Netns),
	}
	if e.Flow.Length > 0 {
		event.Length = uint32(e.Flow.Length) // the skb's depends on how far it got: without its headers, or with Ethernet's
	}
	if e.Flow.Flags&bpf.HasAddresses != 0 {
		event.Source = bpf.End(address(e.Flow.Saddr, e.Site.Protocol), e.Flow.Sport)
		event.Destination = bpf.End(address(e.Flow.Daddr, e.Site.Protocol), e.Flow.Dport)
	}
	if uint8(e.Site.Protocol) == unix.IPPROTO_TCP && e.Site.Protocol&protocolKnown != 0 {
		event.TCPFlags = bpf.TCPFlags(e.Flow.TcpFlags)
	}
	return event
}

// addFlows reads the flows, and how many were evicted.
func (t *Tracer) addFlows(d *snapshot.Drops, cpu dropsCpu) error {
	if t.opt.FlowSample <= 0 {
		return nil
	}
	flows := map[snapshot.DropFlow]uint64{}
	var key dropsDropFlow
	var packets, present uint64
	it := t.maps[dropsMapFlows].Iterate()
	for it.Next(&key, &packets) {
		present++
		if address(key.Saddr, key.Site.Protocol).IsValid() {
			flows[t.flow(key)] += packets
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

func (t *Tracer) flow(k dropsDropFlow) snapshot.DropFlow {
	at := t.names.place(k.Site.Location)
	return snapshot.DropFlow{
		Function: at.Name, Reason: t.names.reasons.Name(k.Site.Reason), Protocol: protocolName(k.Site.Protocol),
		Source:      bpf.End(address(k.Saddr, k.Site.Protocol), k.Sport),
		Destination: bpf.End(address(k.Daddr, k.Site.Protocol), k.Dport),
		Interface:   t.links.name(k.Site.Netns, k.Ifindex), Netns: uint64(k.Site.Netns),
	}
}

// address is not valid where there is neither IP nor ARP.
func address(words [4]uint32, protocol uint32) netip.Addr {
	return bpf.Address(uint16(protocol>>16), words)
}
