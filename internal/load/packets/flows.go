package packets

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
)

// MaxFlows bounds the table of flows: 16 million take 0.4 GiB with IPv4.
const MaxFlows = 1 << 24

// Flows are the tuples of a run: Count of all combinations of source address, source port and
// destination, chosen and ordered by Seed.
type Flows struct {
	Count        int              `json:"count"`
	Sources      []netip.Addr     `json:"sources"`
	SourcePorts  nat.Ports        `json:"source_ports"`
	Destinations []netip.AddrPort `json:"destinations"`
	Seed         uint64           `json:"seed"`
}

// Combinations returns the number of different tuples.
func (f Flows) Combinations() uint64 {
	return uint64(len(f.Sources)) * uint64(f.SourcePorts.Len()) * uint64(len(f.Destinations))
}

// Check finds what makes no flows.
func (f Flows) Check() error {
	switch {
	case f.Count < 1 || f.Count > MaxFlows:
		return fmt.Errorf("%d flows: must be 1 to %d", f.Count, MaxFlows)
	case len(f.Sources) == 0 || len(f.Destinations) == 0 || f.SourcePorts.Len() < 1:
		return fmt.Errorf("flows need source addresses, source ports and a destination")
	case f.Combinations() >= 1<<32:
		return fmt.Errorf("%d source addresses × %d ports × %d destinations: fewer than 2^32 combinations are supported",
			len(f.Sources), f.SourcePorts.Len(), len(f.Destinations))
	case uint64(f.Count) > f.Combinations():
		return fmt.Errorf("%d flows: %d source addresses × %d source ports × %d destinations make only %d; give more source addresses or ports",
			f.Count, len(f.Sources), f.SourcePorts.Len(), len(f.Destinations), f.Combinations())
	}
	return f.checkAddresses()
}

func (f Flows) checkAddresses() error {
	v4 := f.Destinations[0].Addr().Is4()
	for _, d := range f.Destinations {
		if err := checkHost(d.Addr(), v4); err != nil {
			return fmt.Errorf("destination %v: %w", d, err)
		}
		if d.Port() == 0 {
			return fmt.Errorf("destination %v: the port must be 1 to 65535", d)
		}
	}
	for _, s := range f.Sources {
		if err := checkHost(s, v4); err != nil {
			return fmt.Errorf("source address %v: %w", s, err)
		}
	}
	if a, twice := firstTwice(f.Sources); twice {
		return fmt.Errorf("source address %v is given twice: its flows would not be distinct", a)
	}
	if d, twice := firstTwice(f.Destinations); twice {
		return fmt.Errorf("destination %v is given twice: its flows would not be distinct", d)
	}
	return nil
}

// firstTwice finds the first element that came before.
func firstTwice[T comparable](list []T) (T, bool) {
	seen := make(map[T]bool, len(list))
	for _, e := range list {
		if seen[e] {
			return e, true
		}
		seen[e] = true
	}
	var none T
	return none, false
}

func checkHost(a netip.Addr, v4 bool) error {
	switch {
	case !load.IsHost(a):
		return fmt.Errorf("not an address of a host")
	case a.Is4In6():
		return fmt.Errorf("write it as %v", a.Unmap())
	case a.Zone() != "":
		return fmt.Errorf("packets carry no zone; write it as %v", a.WithZone(""))
	case a.Is4() != v4:
		return fmt.Errorf("all addresses must be of one family")
	}
	return nil
}

// IPv6 reports the family of all tuples.
func (f Flows) IPv6() bool { return !f.Destinations[0].Addr().Is4() }

// All yields the tuples from the first to the last.
func (f Flows) All(yield func(int, frame.Tuple) bool) {
	order := load.NewPermutation(f.Combinations(), f.Seed)
	for i := range f.Count {
		if !yield(i, f.tuple(order.At(uint64(i)))) {
			return
		}
	}
}

func (f Flows) tuple(k uint64) frame.Tuple {
	sources, ports := uint64(len(f.Sources)), uint64(f.SourcePorts.Len())
	port := f.SourcePorts.First + uint16(k/sources%ports)
	return frame.Tuple{
		Src: netip.AddrPortFrom(f.Sources[k%sources], port),
		Dst: f.Destinations[k/sources/ports],
	}
}

// Window is the number of sequence numbers that a Track remembers.
const Window = 64

// Track follows one flow's sequence numbers. The zero value expects sequence 0.
type Track struct {
	// Next is one more than the greatest sequence seen (NextExp in RFC 4737).
	Next uint32
	// Seen has bit i set where Next-1-i has come.
	Seen uint64
}

// Arrival is the result of one packet's sequence number.
type Arrival int

const (
	// InOrder is a packet that is newer than all before, after a gap or not.
	InOrder Arrival = iota
	// Reordered arrives for the first time, after a newer packet (RFC 4737, section 3.3).
	Reordered
	// Duplicated is a packet that came before (RFC 5560).
	Duplicated
	// Late is more than Window before the newest: reordered or duplicated.
	Late
)

// Observe processes the next packet's sequence number, which may wrap (RFC 1982).
func (t *Track) Observe(sequence uint32) Arrival {
	if ahead := sequence - t.Next; int32(ahead) >= 0 {
		if ahead+1 >= Window {
			t.Seen = 1
		} else {
			t.Seen = t.Seen<<(ahead+1) | 1
		}
		t.Next = sequence + 1
		return InOrder
	}
	age := t.Next - 1 - sequence
	if age >= Window {
		return Late
	}
	bit := uint64(1) << age
	if t.Seen&bit != 0 {
		return Duplicated
	}
	t.Seen |= bit
	return Reordered
}
