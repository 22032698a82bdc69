package pair

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/pcap"
)

// Schema names the form of a Report as JSON.
const Schema = "natkit.pcap-pair/1"

// Report compares two captures taken on both sides of a NAT.
type Report struct {
	Schema string `json:"schema"`
	// Inside is the capture on the side whose addresses the NAT hides; Swapped if it was given
	// second.
	Inside  Side    `json:"inside"`
	Outside Side    `json:"outside"`
	Swapped bool    `json:"files_swapped"`
	SidesBy SidesBy `json:"sides_by"`
	Clock   Clock   `json:"clock"`
	// Out is the way from inside to outside, In the way back.
	Out Direction `json:"inside_to_outside"`
	In  Direction `json:"outside_to_inside"`
	// Ambiguous packets of both captures had several possible counterparts: neither matched nor
	// lost.
	Ambiguous int64 `json:"ambiguous_packets"`
	// Translation is what was rewritten in packets that were matched.
	Translation Translation `json:"translation"`
	Flows       Flows       `json:"flows"`
	// Incomplete are flows with lost packets, at most Options.Listed: first those of which no
	// packet came through, then by losses.
	Incomplete []FlowReport `json:"incomplete_flows"`
	// Mappings are the first translated flows, at most Options.Listed.
	Mappings []Mapping `json:"mappings"`
	Limits   Limits    `json:"limits"`
	// Notes are further remarks for the reader.
	Notes []string `json:"notes,omitempty"`
}

// SidesBy is how the inside capture was determined. Its text is stable.
type SidesBy string

// The ways.
const (
	// ByTranslation: packets that go from inside to outside get another source.
	ByTranslation SidesBy = "translation"
	// AsGiven: no translation shows the sides, so the first file is inside.
	AsGiven SidesBy = "as-given"
)

// Side is one of the two captures.
type Side struct {
	// File describes the capture.
	File pcap.Stats `json:"capture"`
	// Compared packets could have a counterpart in the other capture. Of the others, Unreadable
	// were not IP or not parsed; Unforwardable had a multicast, broadcast or link-local address;
	// Local belong to flows answered without the other side, such as the NAT machine's own;
	// Uncovered came before or after the other capture.
	Compared      int64     `json:"compared_packets"`
	Unreadable    int64     `json:"unreadable_packets"`
	Unforwardable int64     `json:"unforwardable_packets"`
	Local         int64     `json:"local_packets"`
	Uncovered     Uncovered `json:"uncovered_packets"`
}

// Uncovered packets have no counterpart, and the other capture does not cover their time.
type Uncovered struct {
	Before int64 `json:"before_the_other"`
	After  int64 `json:"after_the_other"`
}

// ClockBy is how the clocks were compared. Its text is stable.
type ClockBy string

// The ways.
const (
	// SameClock: with no offset at all, no packet comes out before it went in.
	SameClock ClockBy = "same-clock"
	// BothWays: the offset is where the least delays of both directions are equal.
	BothWays ClockBy = "both-directions"
	// OneWay: only one direction has matches. Delays are relative to the least one, unless it is
	// short enough for a single clock.
	OneWay ClockBy = "one-direction"
	// NoMatch: no packet was matched; the clocks are taken for one.
	NoMatch ClockBy = "no-match"
)

// Clock compares the clocks of the captures.
type Clock struct {
	By ClockBy `json:"by"`
	// Offset of the outside capture's clock from the inside one's, in seconds, at the start.
	Offset float64 `json:"offset_seconds"`
	// Lowest and Highest bound the offset; only BothWays and SameClock have both.
	Lowest  *float64 `json:"offset_lowest_seconds,omitempty"`
	Highest *float64 `json:"offset_highest_seconds,omitempty"`
	// Drift is the change of the offset until the end, in seconds, after Corrections corrections.
	Drift       float64 `json:"drift_seconds,omitempty"`
	Corrections int     `json:"corrections,omitempty"`
}

// Direction is one way through the NAT.
type Direction struct {
	// Matched packets went in and came out.
	Matched int64 `json:"matched_packets"`
	// Lost packets went in and never came out; LostBy has the most frequent kind first.
	Lost   int64       `json:"lost_packets"`
	LostBy []KindCount `json:"lost_by_kind"`
	// Twice counts packets that came out once more than they went in.
	Twice int64 `json:"came_out_again_packets"`
	// Appeared packets of known flows came out only: the NAT made them, or the capture missed
	// them.
	Appeared int64 `json:"appeared_packets"`
	// Delay is the time from one capture to the other of matched packets, in milliseconds.
	Delay load.Times `json:"delay_ms"`
}

// Kind is what a packet is. Its text is stable.
type Kind uint8

const (
	SYN Kind = iota
	SYNACK
	RST
	FIN
	Data
	ACK
	UDP
	Echo
	ICMPError
	Fragment
	Other
	kinds
)

var kindNames = [kinds]string{"tcp-syn", "tcp-syn-ack", "tcp-rst", "tcp-fin", "tcp-data", "tcp-ack", "udp", "icmp-echo", "icmp-error", "fragment", "other"}

func (k Kind) String() string               { return kindNames[k] }
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// KindCount is how many packets there were of a kind.
type KindCount struct {
	Kind    Kind  `json:"kind"`
	Packets int64 `json:"packets"`
}

// Translation counts matched packets by each difference between the sides.
type Translation struct {
	None               int64 `json:"unchanged_packets"`
	SourceAddress      int64 `json:"source_address_packets"`
	SourcePort         int64 `json:"source_port_packets"`
	DestinationAddress int64 `json:"destination_address_packets"`
	DestinationPort    int64 `json:"destination_port_packets"`
	// TCPTimestamps were changed or taken out, IPID is the IPv4 identification.
	TCPTimestamps int64 `json:"tcp_timestamps_packets"`
	IPID          int64 `json:"ip_id_packets"`
	// Hops is how much the time to live shrank, for most packets.
	Hops int `json:"hops"`
}

// Flows counts flows; both directions are one.
type Flows struct {
	// Through had packets on both sides; a flow counts again with other addresses or ports.
	Through int64 `json:"through"`
	// Incomplete are those of which packets were lost and others came through.
	Incomplete int64 `json:"incomplete"`
	// NeverOut came from inside, NeverIn from outside, without any packet on the other side.
	NeverOut int64 `json:"never_came_out"`
	NeverIn  int64 `json:"never_came_in"`
	// Translated are those of Through with other addresses or ports outside.
	Translated  int64 `json:"translated"`
	PortKept    int64 `json:"port_kept"`
	PortChanged int64 `json:"port_changed"`
}

// FlowReport is a flow with lost packets. Ports are 0 for none; the ICMP identifier is the port
// of the end that sent the query.
type FlowReport struct {
	Protocol uint8 `json:"protocol"`
	// Inside and Outside are the flow there, in the direction of its first packet; nil if not
	// matched.
	Inside  *frame.Tuple `json:"inside,omitempty"`
	Outside *frame.Tuple `json:"outside,omitempty"`
	// LostOut packets were lost on the way from inside to outside, LostIn on the way back.
	LostOut int64 `json:"lost_inside_to_outside_packets"`
	LostIn  int64 `json:"lost_outside_to_inside_packets"`
	Matched int64 `json:"matched_packets"`
	// FirstLost is the first lost packet.
	FirstLost LostPacket `json:"first_lost"`
}

// LostPacket is a packet that went in and did not come out.
type LostPacket struct {
	// Outside is set if it came from outside.
	Outside bool      `json:"from_outside"`
	Frame   int64     `json:"frame"`
	Time    time.Time `json:"time"`
	Kind    Kind      `json:"kind"`
}

// Mapping is a flow as it is on both sides, in the direction of its first matched packet.
type Mapping struct {
	Protocol uint8       `json:"protocol"`
	Inside   frame.Tuple `json:"inside"`
	Outside  frame.Tuple `json:"outside"`
	// OutsideFirst is set if the first packet came from outside.
	OutsideFirst bool  `json:"from_outside"`
	InsideFrame  int64 `json:"inside_frame"`
	OutsideFrame int64 `json:"outside_frame"`
}

// Limits are what did not fit into the memory.
type Limits struct {
	// Memory is the bound in bytes.
	Memory int64 `json:"memory_bytes"`
	// Early packets were judged before the end of the window to make room; ForgottenFlows before
	// the end.
	Early          int64 `json:"judged_early_packets"`
	ForgottenFlows int64 `json:"forgotten_flows"`
}

// report completes the tally. Only now it is known which capture is the inside one.
func (m *matcher) report() *Report {
	t := &m.tally
	r := &t.Report
	r.Schema, r.SidesBy, r.Limits.Memory = Schema, AsGiven, m.Memory
	r.Clock = m.clock.report()
	for i := range uint8(2) {
		s := m.sources[i]
		side, d := t.side(i), t.direction(i)
		side.File, side.Unreadable, side.Unforwardable = s.stats, s.unreadable, s.unforwardable
		d.Delay, d.LostBy = m.clock.delays[i].times.Times(), []KindCount{}
		for k, n := range t.lost[i] {
			if n > 0 {
				d.Lost += n
				d.LostBy = append(d.LostBy, KindCount{Kind(k), n})
			}
		}
		slices.SortStableFunc(d.LostBy, func(a, b KindCount) int { return cmp.Compare(b.Packets, a.Packets) })
	}
	r.Translation.Hops = commonHops(&t.hops)
	r.Flows.PortChanged = r.Flows.Translated - r.Flows.PortKept
	t.sortLosers(m.Listed)
	r.Incomplete = []FlowReport{}
	for _, l := range t.losers {
		r.Incomplete = append(r.Incomplete, l.FlowReport)
	}
	if t.inside[0] != t.inside[1] {
		r.SidesBy = ByTranslation
		if t.inside[1] > t.inside[0] {
			r.swap()
		}
	}
	r.Notes = notes(r)
	return r
}

// swap makes the first capture the outside one.
func (r *Report) swap() {
	r.Swapped = true
	r.Inside, r.Outside = r.Outside, r.Inside
	r.Out, r.In = r.In, r.Out
	r.Flows.NeverOut, r.Flows.NeverIn = r.Flows.NeverIn, r.Flows.NeverOut
	c := &r.Clock
	c.Offset, c.Drift = 0-c.Offset, 0-c.Drift // no negative zero
	c.Lowest, c.Highest = c.Highest, c.Lowest
	for _, bound := range []*float64{c.Lowest, c.Highest} {
		if bound != nil {
			*bound = 0 - *bound
		}
	}
	for i := range r.Incomplete {
		f := &r.Incomplete[i]
		f.Inside, f.Outside = f.Outside, f.Inside
		f.LostOut, f.LostIn = f.LostIn, f.LostOut
		f.FirstLost.Outside = !f.FirstLost.Outside
	}
	for i := range r.Mappings {
		o := &r.Mappings[i]
		o.Inside, o.Outside = o.Outside, o.Inside
		o.InsideFrame, o.OutsideFrame = o.OutsideFrame, o.InsideFrame
		o.OutsideFirst = !o.OutsideFirst
	}
}

// commonHops is the most frequent difference of times to live; one that grew counts as 0.
func commonHops(hops *[256]int64) (most int) {
	for i, n := range hops[:128] {
		if n > hops[most] {
			most = i
		}
	}
	return most
}

// notes returns what makes the numbers uncertain.
func notes(r *Report) (all []string) {
	note := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if r.Out.Matched+r.In.Matched == 0 {
		note("no packet is in both captures: were they taken at the same time, on both sides of one NAT?")
	}
	if r.Clock.By == OneWay {
		note("packets were matched in one direction only: the offset of the clocks cannot be separated from the delay")
	}
	for _, d := range []*Direction{&r.Out, &r.In} {
		if n := d.lostOf(Data); n > 0 && d.Appeared > 0 {
			note("%d segments with data look lost and %d packets came from nowhere in the same direction: segments may have been joined or split between the captures (GRO, TSO), where these are of two machines", n, d.Appeared)
		}
	}
	for _, side := range []struct {
		name, other string
		s           *Side
	}{{"inside", "outside", &r.Inside}, {"outside", "inside", &r.Outside}} {
		if n := side.s.Uncovered.After; n > 0 {
			note("%d packets of the %s capture came after the last one of the %s capture: they are lost if that one ran on, else their fate is unknown", n, side.name, side.other)
		}
		if n := dropped(side.s); n > 0 {
			note("the %s capture itself lost %d packets: as many may look lost, or as if they had come from nowhere", side.name, n)
		}
	}
	return all
}

func (d *Direction) lostOf(kind Kind) int64 {
	for _, k := range d.LostBy {
		if k.Kind == kind {
			return k.Packets
		}
	}
	return 0
}

func dropped(s *Side) (n int64) {
	for _, i := range s.File.Interfaces {
		n += i.Dropped
	}
	return n
}
