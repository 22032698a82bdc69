package pcap

import (
	"net/netip"
	"sort"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
)

// Schema names the form of a Report as JSON.
const Schema = "natkit.pcap/1"

// Report is the analysis of a capture.
type Report struct {
	Schema string `json:"schema"`
	Stats
	Connections Connections `json:"connections"`
	Reuse       Reuse       `json:"reuse"`
	// Kinds counts all incidents, the most serious kind first.
	Kinds []KindCount `json:"incident_kinds"`
	// RejectedByPAWS and RejectedBySequence count SYNs, retransmitted ones included, that a
	// TIME_WAIT socket answered with the ACK of the former connection. On the server's own
	// interface RejectedByPAWS equals the growth of PAWSTimewait (PAWSEstab before Linux 6.16).
	RejectedByPAWS     int64 `json:"syns_rejected_by_paws"`
	RejectedBySequence int64 `json:"syns_rejected_by_sequence"`
	// Incidents are those kept, the most serious first, then by time.
	Incidents []Incident `json:"incidents"`
	// Clocks are the TCP timestamp clocks, the pairs with most of them first.
	Clocks []PairClocks `json:"clocks"`
	// ClocksMore pairs of addresses are not in Clocks.
	ClocksMore      int64           `json:"clocks_more_pairs,omitempty"`
	Retransmissions Retransmissions `json:"retransmissions"`
	ICMPErrors      []ICMPError     `json:"icmp_errors"`
	// Limits reports what could not be kept in the given memory, and the consequences.
	Limits Limits `json:"limits"`
	// Notes are further remarks, such as that only one direction was captured.
	Notes []string `json:"notes,omitempty"`
}

// Connections counts TCP connections: packets of one tuple between two SYNs.
type Connections struct {
	Total int64 `json:"total"`
	// Begun have their SYN in the capture, Established their SYN-ACK, too.
	Begun       int64 `json:"begun"`
	Established int64 `json:"established"`
	// Refused SYNs were answered by RST, Unanswered ones not at all. Pending were too young to
	// say when the capture ended or they were evicted.
	Refused    int64 `json:"refused"`
	Unanswered int64 `json:"unanswered"`
	Pending    int64 `json:"pending_at_end"`
	// NotAccepted SYNs have neither SYN-ACK nor RST in a file that has no ACKs (see HeadersAlone).
	NotAccepted int64 `json:"not_accepted,omitempty"`
	// ServerClosedFirst and ClientClosedFirst determine who holds TIME_WAIT.
	ServerClosedFirst int64 `json:"server_closed_first"`
	ClientClosedFirst int64 `json:"client_closed_first"`
	Reset             int64 `json:"reset"`
	// Duplicates are captured twice, usually on several interfaces, or are SYNs that came and were dropped (see
	// Packet.Dropped); they count once.
	Duplicates int64 `json:"duplicate_packets"`
}

// Reuse counts tuples used again by a SYN with another initial sequence number.
type Reuse struct {
	Tuples int64 `json:"tuples_reused"`
	// TimestampsBack have a SYN timestamp before the former connection's last one, SequenceBack
	// an initial sequence number not after the former one's end; Rejected counts first SYNs.
	TimestampsBack int64 `json:"timestamps_went_back"`
	SequenceBack   int64 `json:"sequence_not_after"`
	Rejected       int64 `json:"rejected"`
	// After is the time from the former connection's last packet to the SYN.
	After *Distribution `json:"after,omitempty"`
}

// Distribution of times.
type Distribution struct {
	Count   int64    `json:"count"`
	Min     float64  `json:"min_seconds"`
	P1      float64  `json:"p1_seconds"`
	Median  float64  `json:"median_seconds"`
	P90     float64  `json:"p90_seconds"`
	P99     float64  `json:"p99_seconds"`
	Max     float64  `json:"max_seconds"`
	Buckets []Bucket `json:"buckets"`
}

// Bucket is how many values were below a limit and not below the former one's.
type Bucket struct {
	Below float64 `json:"below_seconds"` // 0 in the last one: no limit
	Count int64   `json:"count"`
}

// KindCount is how many incidents of a kind there were.
type KindCount struct {
	Kind  Kind  `json:"kind"`
	Count int64 `json:"count"`
	Kept  int64 `json:"kept"` // in Report.Incidents
}

// Incident is one thing that went wrong, with the packets that show it.
type Incident struct {
	Kind Kind `json:"kind"`
	// Client sent the SYN, or the packet in question if the capture has no SYN.
	Client netip.AddrPort `json:"client"`
	Server netip.AddrPort `json:"server"`
	// Frame and Time are those of the incident's first packet (the SYN, the RST …).
	Frame int64     `json:"frame"`
	Time  time.Time `json:"time"`
	// SYNs are those of the attempt, at most MaxSYNs.
	SYNs []SYN `json:"syns,omitempty"`
	// Former is the tuple's connection before this one, where the capture has it.
	Former *Former `json:"former,omitempty"`
	// Outcome is how the attempt went on.
	Outcome Outcome `json:"outcome,omitempty"`
	// Continued is where the attempt went on, if a NAT gave it another port.
	Continued *Continued `json:"continued,omitempty"`
	// ConnectSeconds is from the first SYN to the accepted SYN-ACK, on whatever port; 0 for none.
	ConnectSeconds float64 `json:"connect_seconds,omitempty"`
	// Intervals are the times between the transmissions of one segment.
	Intervals []float64 `json:"intervals_seconds,omitempty"`
	// ICMP is the error message, in incidents of the kind icmp-error.
	ICMP *ICMPError `json:"icmp,omitempty"`
	// Window of the receiver of an out-of-window RST: first sequence number, and last plus one.
	Window *[2]uint32 `json:"window,omitempty"`
	Ladder []Step     `json:"ladder"`
	// LadderMore packets of the attempt are not in Ladder.
	LadderMore int64 `json:"ladder_more,omitempty"`
}

// Continued is the last port to which the SYN of an attempt moved.
type Continued struct {
	Client netip.AddrPort `json:"client"`
	Frame  int64          `json:"frame"` // of the SYN from there
	// Connected reports whether it was accepted then.
	Connected bool `json:"connected"`
}

// MaxSYNs bounds Incident.SYNs.
const MaxSYNs = 16

// SYN is one transmission of a SYN, and what came of it.
type SYN struct {
	Frame int64     `json:"frame"`
	Time  time.Time `json:"time"`
	// Verdict is "" where nothing is known.
	Verdict Verdict `json:"verdict,omitempty"`
	// Inferred is set if no answer was captured and the verdict follows from the former
	// connection: a kernel answers at most every 500 ms (net.ipv4.tcp_invalid_ratelimit).
	Inferred bool `json:"inferred,omitempty"`
	// Answer is the frame of the former connection's ACK; 0 for none.
	Answer int64 `json:"answer_frame,omitempty"`
	// AnswerID is the answer's IPv4 identification, where the end of the former connection may
	// have been before the capture: Linux sends 0 from TIME_WAIT (4.19 and later), and counts
	// the packets of a connection that is open.
	AnswerID *uint16 `json:"answer_ip_id,omitempty"`
	// Reset is the frame of the client's RST to it; 0 for none.
	Reset int64 `json:"reset_frame,omitempty"`
	// TSVal is the SYN's timestamp, TSRecent the server's last one of the former connection:
	// TSecr of its answer, or else the last one captured.
	TSVal    *uint32 `json:"tsval,omitempty"`
	TSRecent *uint32 `json:"ts_recent,omitempty"`
	// Seq is the SYN's sequence number, RcvNxt the one that the server expects: the
	// acknowledgement number of its answer, or else of its last segment.
	Seq    uint32  `json:"seq"`
	RcvNxt *uint32 `json:"rcv_nxt,omitempty"`
}

// Former is the connection that a tuple had before.
type Former struct {
	// LastFrame and LastTime are those of its last packet before the SYN.
	LastFrame int64     `json:"last_frame"`
	LastTime  time.Time `json:"last_time"`
	// After is the time from there to the SYN.
	After float64 `json:"after_seconds"`
	// Closed is how far it was closed, and by whom first.
	Closed Closed `json:"closed"`
	// LastTSVal is the client's last timestamp.
	LastTSVal *uint32 `json:"last_tsval,omitempty"`
	// RcvNxt is the server's last acknowledgement number, SndNxt its next sequence number.
	RcvNxt uint32 `json:"rcv_nxt"`
	SndNxt uint32 `json:"snd_nxt"`
}

// Step is one packet of a ladder.
type Step struct {
	Frame int64     `json:"frame"`
	Time  time.Time `json:"time"`
	// FromClient is the direction.
	FromClient bool           `json:"from_client"`
	Flags      frame.TCPFlags `json:"flags"`
	Seq        uint32         `json:"seq"`
	Ack        uint32         `json:"ack"`
	Length     int            `json:"payload_bytes"`
	Window     uint16         `json:"window"` // as in the header, not scaled
	TSVal      *uint32        `json:"tsval,omitempty"`
	TSEcr      *uint32        `json:"tsecr,omitempty"`
	// Role is what the packet is to the incident; empty for the others.
	Role Role `json:"role,omitempty"`
}

// PairClocks are the clocks whose timestamps come from one address to another. Linux
// adds an offset of its own for each pair of addresses (4.10 and later): one machine
// has one clock per pair, two machines behind one address have two. Kernels of 2026,
// and Windows and FreeBSD, choose an offset for each tuple, ports included: then even
// one machine behind a NAT that changes ports shows a clock per port.
type PairClocks struct {
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	// Connections that gave timestamps.
	Connections int64 `json:"connections"`
	// Count is the number of clocks; Clocks has at most MaxClocks, none if PerConnection.
	Count  int64   `json:"clocks_count"`
	Clocks []Clock `json:"clocks,omitempty"`
	More   bool    `json:"more,omitempty"`
	// PerConnection is set for about as many clocks as tuples (8 or more): offsets are chosen for
	// each tuple, and say nothing about machines.
	PerConnection bool `json:"offset_per_connection,omitempty"`
}

// Clock is a line through timestamps.
type Clock struct {
	// Hz is the slope; Exact if it was measured over a second or more, else the usual 1000.
	Hz    float64 `json:"hz"`
	Exact bool    `json:"exact"`
	// Offset is the timestamp at the capture's first packet.
	Offset      uint32    `json:"tsval_at_start"`
	Connections int64     `json:"connections"`
	Points      int64     `json:"points"`
	First       time.Time `json:"first_time"`
	Last        time.Time `json:"last_time"`
}

// Retransmissions of TCP segments.
type Retransmissions struct {
	SYN    int64 `json:"syn"`
	SYNACK int64 `json:"syn_ack"`
	Data   int64 `json:"data"` // segments with payload or FIN
	// OutOfOrder segments came shortly after a later one: the network's doing.
	OutOfOrder int64 `json:"out_of_order"`
	// Backoffs are the times before the first, second … retransmission of SYNs.
	Backoffs []Backoff `json:"syn_backoff"`
}

// Backoff is the time before the n-th retransmission.
type Backoff struct {
	Nth    int     `json:"nth"`
	Count  int64   `json:"count"`
	Min    float64 `json:"min_seconds"`
	Median float64 `json:"median_seconds"`
	Max    float64 `json:"max_seconds"`
}

// ICMPError counts error messages of a kind from one sender.
type ICMPError struct {
	From    netip.Addr `json:"from"`
	Version uint8      `json:"version"` // of IP: 4 or 6
	Type    uint8      `json:"type"`
	Code    uint8      `json:"code"`
	Name    string     `json:"name"` // "fragmentation needed" …
	// MTU is that of a message about a packet too big.
	MTU   int   `json:"mtu,omitempty"`
	Count int64 `json:"count"`
	Flows int64 `json:"flows,omitempty"` // TCP connections of the capture that they are about
	First int64 `json:"first_frame"`
}

// Limits are what did not fit into Options.Memory.
type Limits struct {
	// Memory is the bound in bytes, Peak what was used of it.
	Memory int64 `json:"memory_bytes"`
	Peak   int64 `json:"peak_bytes"`
	// Forgotten connections were evicted, the longest silent first; Youngest is the silence of
	// the last one: reuse after that time or longer may be missed.
	Forgotten int64   `json:"connections_forgotten"`
	Youngest  float64 `json:"shortest_silence_of_forgotten_seconds,omitempty"`
}

// spread is a distribution of times, within 0.1 %, in bounded memory.
type spread struct {
	times   *load.Histogram
	buckets [len(bucketLimits) + 1]int64
}

// bucketLimits, in seconds: around the lifetimes of TIME_WAIT (60 s, 112.5 s on old
// kernels) and of what balancers and NATs keep (120 s, 240 s).
var bucketLimits = [...]float64{0.001, 0.01, 0.1, 1, 5, 15, 30, 60, 112.5, 120, 240, 600}

// longest is what a histogram can hold.
const longest = int64(10 * 24 * time.Hour)

// add takes nanoseconds; time that goes back counts as none.
func (s *spread) add(ns int64) {
	if s.times == nil {
		s.times = load.NewHistogramOf(int64(time.Microsecond), longest, 3)
	}
	s.times.Record(ns)
	s.buckets[sort.Search(len(bucketLimits), func(i int) bool { return seconds(ns) < bucketLimits[i] })]++
}

func (s *spread) count() (n int64) {
	for _, b := range s.buckets {
		n += b
	}
	return n
}

// at returns a quantile in seconds.
func (s *spread) at(quantile float64) float64 { return s.times.Quantile(quantile) / 1e3 }

func (s *spread) distribution() *Distribution {
	if s.times == nil {
		return nil
	}
	d := &Distribution{Count: s.count(), Min: s.at(0), P1: s.at(0.01), Median: s.at(0.5), P90: s.at(0.9), P99: s.at(0.99), Max: s.at(1)}
	for i, n := range s.buckets {
		b := Bucket{Count: n}
		if i < len(bucketLimits) {
			b.Below = bucketLimits[i]
		}
		d.Buckets = append(d.Buckets, b)
	}
	return d
}
