package packets

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"
)

// Delivery counts what became of the packets of a run.
type Delivery struct {
	Sent int64 `json:"sent"`
	// Received are all that came to where they should, duplicates included.
	Received int64 `json:"received"`
	// Lost were sent and did not come: Sent less those received once.
	Lost int64 `json:"lost"`
	// Reordered came after a newer packet of their flow (RFC 4737).
	Reordered int64 `json:"reordered"`
	// Duplicated came more than once; each further time counts.
	Duplicated int64 `json:"duplicated"`
	// Late came more than Window after the newest of their flow: reordered or duplicated. They
	// count as received only.
	Late int64 `json:"late"`
	// Misdelivered came with unexpected addresses or ports, or to the wrong receiver.
	Misdelivered int64 `json:"misdelivered"`
}

// Config is one run of generated packets.
type Config struct {
	Spec  Spec  `json:"packets_are"`
	Flows Flows `json:"flows"`
	// Packets to send in all; 0 means until Duration ends.
	Packets int64 `json:"packets"`
	// Duration bounds the run.
	Duration time.Duration `json:"duration_ns"`
	// Rate in packets per second; 0 means as fast as one can.
	Rate float64 `json:"rate_per_second"`
	// Even sends each packet of a paced run when it is due, instead of each millisecond those that
	// are, and takes its CPUs whole for it. It sends Packets, however long that takes.
	Even bool `json:"even,omitempty"`
	// Workers is the number of CPUs that send, each with a share of the flows.
	Workers int         `json:"workers"`
	Expect  Expectation `json:"expect,omitzero"`
	// Verify checks the checksums of what arrives.
	Verify bool `json:"verify_checksums"`
	// Bare sends one constant frame and only counts what arrives: the machine's maximum.
	Bare bool `json:"bare,omitempty"`
	// Statistics measures the programs' own time (BPF_ENABLE_STATS), which slows the run.
	Statistics bool `json:"bpf_statistics,omitempty"`
	// OwnNetwork allows public addresses.
	OwnNetwork bool `json:"i_own_this_network,omitempty"`
}

// Result is what became of a run.
type Result struct {
	Config Config `json:"config"`
	// From and To name the sending and the receiving interface.
	From string `json:"from"`
	To   string `json:"to,omitempty"`
	// Seconds is the time from the first packet to the end of sending.
	Seconds float64 `json:"seconds"`
	Delivery
	// SentBytes and ReceivedBytes count frames with FCS.
	SentBytes     int64 `json:"sent_bytes"`
	ReceivedBytes int64 `json:"received_bytes"`
	// MisdeliveredAs are a few of the misdelivered packets.
	MisdeliveredAs []Stray `json:"misdelivered_as,omitempty"`
	// Corrupted packets arrived with a wrong checksum, and count as lost.
	Corrupted Corrupted `json:"corrupted"`
	// OtherPackets were not of this run, and went on to the stack.
	OtherPackets int64 `json:"other_packets"`

	// SentPerSecond and ReceivedPerSecond are 0 if the probe before the clock started was all.
	SentPerSecond     float64 `json:"sent_per_second"`
	ReceivedPerSecond float64 `json:"received_per_second"`
	// GeneratorNanoseconds and SinkNanoseconds are the programs' time per packet, with
	// Config.Statistics.
	GeneratorNanoseconds float64 `json:"generator_ns_per_packet,omitempty"`
	SinkNanoseconds      float64 `json:"sink_ns_per_packet,omitempty"`
	// OtherCPU is the share of the machine's CPUs, 0 to 1, that other processes used.
	OtherCPU float64 `json:"other_cpu_share"`
	// LateSeconds is the longest time by which a packet of an even run left after it was due,
	// BehindSeconds that of the last one.
	LateSeconds   float64 `json:"late_seconds,omitempty"`
	BehindSeconds float64 `json:"behind_seconds,omitempty"`
	// GeneratorLimit is the reason why the generator was the limit; empty if it was not.
	GeneratorLimit string `json:"generator_limit,omitempty"`
	// Notes are further remarks for the reader.
	Notes  []string `json:"notes,omitempty"`
	Course []Second `json:"seconds_of_run,omitempty"`
}

// Stray is a packet that came with other addresses or ports than expected.
type Stray struct {
	Flow uint32 `json:"flow"`
	// Source and Destination are those with which it came.
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// Corrupted counts packets by what is wrong with them.
type Corrupted struct {
	IPChecksum int64 `json:"ip_checksum"`
	Checksum   int64 `json:"transport_checksum"`
	// Partial covers the pseudo header only, to be completed by a network card.
	Partial int64 `json:"partial_checksum"`
}

// Total of all kinds.
func (c Corrupted) Total() int64 { return c.IPChecksum + c.Checksum + c.Partial }

// Second is one point of a run's course.
type Second struct {
	// At is the end of the interval, in seconds since the run's start.
	At       float64 `json:"at_seconds"`
	Sent     int64   `json:"sent"`
	Received int64   `json:"received"`
}

// Progress is how far a run is.
type Progress struct {
	Elapsed        time.Duration
	Sent, Received int64
	// Packets is Config.Packets.
	Packets int64
}

// lineOverhead of a frame, in bytes: preamble, start delimiter and the least gap (IEEE 802.3).
const lineOverhead = 7 + 1 + 12

// BitRates are the rates of one direction.
type BitRates struct {
	// Frames counts the bits of frames, FCS included.
	Frames float64 `json:"frames_bits_per_second"`
	// Line counts preambles and gaps, too: what Ethernet of that speed is full of.
	Line float64 `json:"line_bits_per_second"`
}

// SentBits are the rates at which it was sent.
func (r *Result) SentBits() BitRates { return bitRates(r.SentPerSecond, r.SentBytes, r.Sent) }

// ReceivedBits are the rates at which it arrived.
func (r *Result) ReceivedBits() BitRates {
	return bitRates(r.ReceivedPerSecond, r.ReceivedBytes, r.Received)
}

func bitRates(perSecond float64, bytes, packets int64) BitRates {
	if packets == 0 {
		return BitRates{}
	}
	mean := float64(bytes) / float64(packets)
	return BitRates{Frames: perSecond * mean * 8, Line: perSecond * (mean + lineOverhead) * 8}
}

// Bounds of a run.
const (
	MaxPackets  = 100_000_000_000
	MaxDuration = 24 * time.Hour
	MaxRate     = 1e8
	maxWorkers  = 1024
)

// CheckBounds checks the bounds of a run of packets or datagrams.
func CheckBounds(packets int64, duration time.Duration, rate float64, leastWorkers, workers int) error {
	switch {
	case packets < 0 || packets > MaxPackets:
		return fmt.Errorf("packets %d: must be 0 (until the time expires) to %d", packets, int64(MaxPackets))
	case duration < 0 || duration > MaxDuration:
		return fmt.Errorf("time %v: must be 0 (until all are sent) to %v", duration, MaxDuration)
	case rate < 0 || math.IsNaN(rate) || rate > MaxRate:
		return fmt.Errorf("rate %g: must be 0 (unlimited) to %g packets per second", rate, float64(MaxRate))
	case workers < leastWorkers || workers > maxWorkers:
		return fmt.Errorf("workers %d: must be %d to %d", workers, leastWorkers, maxWorkers)
	}
	return nil
}

// Check reports what cannot be run, or must not.
func (c Config) Check() error {
	for _, check := range []func() error{
		c.Flows.Check, c.checkPublic, c.Spec.Check, c.checkBounds,
		func() error { return c.Expect.Check(c.Flows.IPv6()) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.Spec.IPv6 != c.Flows.IPv6() {
		return errors.New("the packets and their addresses are not of one family")
	}
	return nil
}

func (c Config) checkBounds() error {
	if err := CheckBounds(c.Packets, c.Duration, c.Rate, 1, c.Workers); err != nil {
		return err
	}
	switch {
	case c.Packets == 0 && c.Duration == 0:
		return errors.New("packets and time are both 0: the run would never end; give one of them")
	case c.Workers > c.Flows.Count:
		return fmt.Errorf("workers %d: each needs a flow of its own, and there are %d; give more --flows", c.Workers, c.Flows.Count)
	case c.Packets > 0 && int64(c.Workers) > c.Packets:
		return fmt.Errorf("workers %d: more than the packets to send (%d)", c.Workers, c.Packets)
	case c.Even && (c.Rate == 0 || c.Packets == 0 || c.Duration != 0 || c.Bare):
		return errors.New("an even run has a rate and a number of packets, no duration, and is not bare")
	case c.Bare && (c.Expect.Given() || c.Verify):
		return errors.New("bare frames carry no addresses and no checksum: nothing can be expected of them")
	}
	return nil
}

func (c Config) checkPublic() error {
	if c.OwnNetwork {
		return nil
	}
	for _, d := range c.Flows.Destinations {
		if Public(d.Addr()) {
			return PublicError("destination", d.Addr())
		}
	}
	for _, s := range c.Flows.Sources {
		if Public(s) {
			return PublicError("source", s)
		}
	}
	for _, end := range []End{c.Expect.Source, c.Expect.Destination} {
		if end.Prefix.IsValid() && PublicPrefix(end.Prefix) {
			return PublicError("expected mapping to", end.Prefix)
		}
	}
	return nil
}
