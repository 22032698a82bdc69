package packet

import (
	"net/netip"
	"time"
)

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
	// Workers is the number of CPUs that send, each with a share of the flows.
	Workers int         `json:"workers"`
	Expect  Expectation `json:"expect,omitzero"`
	// Verify checks the checksums of what arrives.
	Verify bool `json:"verify_checksums"`
	// Bare sends one unchanging frame and only counts what arrives: the most that
	// this machine can do, to compare with.
	Bare bool `json:"bare,omitempty"`
	// Statistics measures the programs' own time (BPF_ENABLE_STATS), which slows
	// the run.
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
	// OtherPackets came to the receiver and were not of this run; they went on to
	// the stack.
	OtherPackets int64 `json:"other_packets"`

	// SentPerSecond and ReceivedPerSecond are 0 of a run flat out so short that all of
	// its packets went to find the receiver, before the clock started.
	SentPerSecond     float64 `json:"sent_per_second"`
	ReceivedPerSecond float64 `json:"received_per_second"`
	// GeneratorNanoseconds and SinkNanoseconds are the programs' own time per
	// packet, where Config.Statistics asked for it.
	GeneratorNanoseconds float64 `json:"generator_ns_per_packet,omitempty"`
	SinkNanoseconds      float64 `json:"sink_ns_per_packet,omitempty"`
	// OtherCPU is the share of the machine's CPUs, 0 to 1, that other processes used.
	OtherCPU float64 `json:"other_cpu_share"`
	// GeneratorLimit says why the generator was the limit; empty where it was not.
	GeneratorLimit string `json:"generator_limit,omitempty"`
	// Notes say what else the reader has to know.
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
	// Partial is a transport checksum that only covers the pseudo header, as a
	// stack leaves it to a network card that completes it.
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
