package drops

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
)

// Event is one drop.
type Event = snapshot.DropEvent

// ring hands events on.
type ring struct {
	reader *ringbuf.Reader
	done   chan struct{}
	links  lasting
	// boot is what CLOCK_MONOTONIC counts from.
	boot time.Time
}

func (t *Tracer) openRing() error {
	reader, err := ringbuf.NewReader(t.maps[dropsMapEvents])
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return errors.Join(fmt.Errorf("read the clock: %w", err), reader.Close())
	}
	t.ring = &ring{reader: reader, done: make(chan struct{}), boot: time.Now().Add(-time.Duration(now.Nano()))}
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

// Flags of struct flow.
const flowAddresses = 1 << 0

func (t *Tracer) event(e *dropsEvent) Event {
	at := t.names.place(e.Site.Location)
	event := Event{
		Time:     t.ring.boot.Add(time.Duration(e.TimeNs)),
		Function: at.Name, Offset: at.Offset, Module: at.Module,
		Reason: t.names.reasons.Name(e.Site.Reason), Protocol: protocolName(e.Site.Protocol), Cause: causes[e.Site.Cause].name,
		Length: e.Length, Interface: t.ring.links.name(e.Site.Netns, e.Ifindex), Netns: uint64(e.Site.Netns),
	}
	if e.Flow.Length > 0 {
		event.Length = uint32(e.Flow.Length) // the skb's depends on how far it got: without its headers, or with Ethernet's
	}
	if e.Flow.Flags&flowAddresses != 0 {
		event.Source = end(address(e.Flow.Saddr, e.Site.Protocol), e.Flow.Sport)
		event.Destination = end(address(e.Flow.Daddr, e.Site.Protocol), e.Flow.Dport)
	}
	if uint8(e.Site.Protocol) == unix.IPPROTO_TCP && e.Site.Protocol&protocolKnown != 0 {
		event.TCPFlags = tcpFlags(e.Flow.TcpFlags)
	}
	return event
}

// tcpFlags names the bits of a TCP header's byte 13 (RFC 9293).
func tcpFlags(bits uint8) string {
	var text []byte
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if bits&(1<<i) != 0 {
			text = append(append(text, ','), name...)
		}
	}
	return string(bytes.TrimPrefix(text, []byte{','}))
}
