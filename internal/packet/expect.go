package packet

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// Rule says how an address or a port must look when it arrives.
type Rule string

const (
	// Any is not looked at.
	Any Rule = ""
	// Same is as it was sent.
	Same Rule = "same"
	// Inside is within a prefix or a range.
	Inside Rule = "inside"
	// Netmap is a prefix's bits, and behind them those that were sent (NETMAP).
	Netmap Rule = "netmap"
)

// End is what is expected of a packet's source or destination.
type End struct {
	Address Rule         `json:"address,omitempty"`
	Prefix  netip.Prefix `json:"prefix,omitzero"`
	Port    Rule         `json:"port,omitempty"` // Any, Same or Inside
	// Ports is the range of Inside.
	Ports nat.Ports `json:"ports,omitzero"`
}

// Expectation is the mapping that a NAT on the way should do.
type Expectation struct {
	Source      End `json:"source,omitzero"`
	Destination End `json:"destination,omitzero"`
}

// Given reports whether anything is expected.
func (e Expectation) Given() bool { return e != Expectation{} }

// ParseEnd reads "same", "ADDRESS", "PREFIX" or "netmap:PREFIX", each with
// ":PORT", ":FIRST-LAST" or ":same" after it if the port matters, and IPv6 in
// brackets then. The word same alone means the port, too.
func ParseEnd(text string) (End, error) {
	end, err := parseEnd(text)
	if err != nil {
		return End{}, fmt.Errorf("read expected mapping %q: %w (same, ADDRESS, PREFIX or netmap:PREFIX, with :PORTS or :same)", text, err)
	}
	return end, nil
}

func parseEnd(text string) (end End, err error) {
	rest, netmap := strings.CutPrefix(text, "netmap:")
	address, ports, given, err := splitPorts(rest)
	if err != nil {
		return End{}, err
	}
	if end, err = parseAddressRule(address); err != nil {
		return End{}, err
	}
	if netmap {
		if !strings.Contains(address, "/") {
			return End{}, fmt.Errorf("netmap needs a prefix")
		}
		end.Address = Netmap
	}
	switch {
	case given:
		return parsePortRule(end, ports)
	case end.Address == Same:
		end.Port = Same
	}
	return end, nil
}

func parsePortRule(end End, ports string) (_ End, err error) {
	if ports == string(Same) {
		end.Port = Same
		return end, nil
	}
	end.Port = Inside
	if end.Ports, err = nat.ParsePorts(ports); err != nil {
		return End{}, fmt.Errorf("ports %q: want PORT, FIRST-LAST or same, from 1 to 65535", ports)
	}
	return end, nil
}

// splitPorts cuts at the colon behind the address, if there is one.
func splitPorts(text string) (address, ports string, given bool, err error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		address, rest, closed := strings.Cut(inner, "]")
		ports, given = strings.CutPrefix(rest, ":")
		switch {
		case !closed:
			return "", "", false, fmt.Errorf("the bracket is not closed")
		case rest != "" && !given:
			return "", "", false, fmt.Errorf("%q behind the bracket: want :PORTS or :same", rest)
		case !strings.Contains(address, ":"):
			return "", "", false, fmt.Errorf("%q in brackets is not IPv6", address)
		}
		return address, ports, given, nil
	}
	if strings.Count(text, ":") > 1 { // IPv6 without a port
		return text, "", false, nil
	}
	address, ports, given = strings.Cut(text, ":")
	return address, ports, given, nil
}

func parseAddressRule(text string) (End, error) {
	if text == string(Same) {
		return End{Address: Same}, nil
	}
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return End{}, fmt.Errorf("%q is not a prefix", text)
		}
		return End{Address: Inside, Prefix: p.Masked()}, nil
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return End{}, fmt.Errorf("%q is not an address", text)
	case a.Zone() != "" || a.Is4In6():
		return End{}, fmt.Errorf("packets carry it as %v", a.WithZone("").Unmap())
	}
	return End{Address: Inside, Prefix: netip.PrefixFrom(a, a.BitLen())}, nil
}

// Check finds expectations of the other address family.
func (e Expectation) Check(ipv6 bool) error {
	for _, end := range []End{e.Source, e.Destination} {
		if end.Prefix.IsValid() && end.Prefix.Addr().Is6() != ipv6 {
			return fmt.Errorf("expected mapping to %v: not of the same family as the packets", end.Prefix)
		}
	}
	return nil
}

// Fits reports whether an address and port that arrived are as expected of what was
// sent.
func (e End) Fits(sent, got netip.AddrPort) bool {
	return e.addressFits(sent.Addr(), got.Addr()) && e.portFits(sent.Port(), got.Port())
}

func (e End) addressFits(sent, got netip.Addr) bool {
	switch e.Address {
	case Same:
		return got == sent
	case Inside:
		return e.Prefix.Contains(got)
	case Netmap:
		return e.Prefix.Contains(got) && hostBits(got, e.Prefix.Bits()) == hostBits(sent, e.Prefix.Bits())
	}
	return true
}

func (e End) portFits(sent, got uint16) bool {
	switch e.Port {
	case Same:
		return got == sent
	case Inside:
		return e.Ports.First <= got && got <= e.Ports.Last
	}
	return true
}

// hostBits is the address with its first bits cleared.
func hostBits(a netip.Addr, bits int) netip.Addr {
	b := a.AsSlice()
	for i := range min(bits, len(b)*8) {
		b[i/8] &^= 0x80 >> (i % 8)
	}
	cleared, _ := netip.AddrFromSlice(b)
	return cleared
}

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
	// Late came so far behind the newest of their flow (Window) that nobody can
	// tell whether they are reordered or duplicated. They count as reordered
	// nowhere, and as received.
	Late int64 `json:"late"`
	// Misdelivered came with other addresses or ports than were expected, or to
	// the wrong receiver.
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
