package pktgen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/permit"
)

// Learned are the connections of a run, as its receiver saw them behind a translation: the state
// table of RFC 9693's Responder.
type Learned struct {
	cfg    packets.Config
	tables *tables
}

// Learn is Run that also keeps of each flow with what tuple its last packet arrived. Learned is nil
// after an error. The caller closes it.
func Learn(ctx context.Context, cfg packets.Config, from Egress, sink Port, progress func(packets.Progress)) (*packets.Result, *Learned, error) {
	if err := permit.Change("send packets"); err != nil {
		return nil, nil, err
	}
	t, err := newTables(cfg.Flows)
	if err != nil {
		return nil, nil, err
	}
	var result *packets.Result
	if t.learned, err = t.makeFlows(cfg.Flows, nil); err == nil {
		result, err = runWith(ctx, t, cfg, from, &sink, progress)
	}
	if err != nil {
		return result, nil, errors.Join(err, t.close())
	}
	return result, &Learned{cfg, t}, nil
}

// Close releases the tables.
func (l *Learned) Close() error { return l.tables.close() }

// First returns the ends of a reply to the first flow; they are invalid where none of it arrived.
func (l *Learned) First() (src, dst netip.AddrPort, err error) {
	value, err := l.tables.learned.LookupBytes(uint32(0))
	if err != nil {
		return src, dst, fmt.Errorf("read what was learned of the flows: %w", err)
	}
	t := flowOf(value)
	if t.Src.Port() == 0 {
		return src, dst, nil
	}
	return t.Src, t.Dst, nil
}

// Reply sends one packet in each of the connections back from where they arrived, at a rate. It
// expects each to arrive at the port that its flow was sent from. A packet of a flow that did not
// arrive goes nowhere, and counts as lost.
func (l *Learned) Reply(ctx context.Context, rate float64, from Egress, sink Port, progress func(packets.Progress)) (result *packets.Result, err error) {
	cfg := l.cfg
	cfg.Rate, cfg.Packets, cfg.Verify = rate, int64(cfg.Flows.Count), true
	same := packets.End{Address: packets.Same, Port: packets.Same}
	cfg.Expect = packets.Expectation{Source: same, Destination: same}
	t, err := newReplies(cfg.Flows, l.tables.learned)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	return runWith(ctx, t, cfg, from, &sink, progress)
}

// newReplies makes the tables of replies to flows, which leave with learned tuples and arrive with
// those of the flows, with source and destination exchanged.
func newReplies(flows packets.Flows, learned *ebpf.Map) (*tables, error) {
	spec, err := programs()
	if err != nil {
		return nil, err
	}
	t := &tables{spec: spec, runID: rand.Uint32()}
	t.expected, err = t.makeFlows(flows, func(b []byte, tuple frame.Tuple) {
		putFlow(b, frame.Tuple{Src: tuple.Dst, Dst: tuple.Src})
	})
	if err != nil {
		return nil, err
	}
	if t.flows, err = learned.Clone(); err != nil {
		return nil, errors.Join(err, t.expected.Close())
	}
	return t, nil
}

// flowOf reads struct flow4 or struct flow6.
func flowOf(b []byte) (t frame.Tuple) {
	half := (len(b) - 4) / 2
	src, _ := netip.AddrFromSlice(b[:half])
	dst, _ := netip.AddrFromSlice(b[half : 2*half])
	ports := b[2*half:]
	return frame.Tuple{
		Src: netip.AddrPortFrom(src, binary.BigEndian.Uint16(ports)),
		Dst: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ports[2:])),
	}
}
