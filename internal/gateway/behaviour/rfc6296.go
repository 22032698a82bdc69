package behaviour

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// rfc6296 is IPv6-to-IPv6 Network Prefix Translation (NPTv6).
func rfc6296() []Case {
	cases := []Case{
		{ID: "rfc6296-neutral-48", Requirement: "3.4", Level: Must,
			Asks:    "with a prefix of 48 bits or less the subnet takes what keeps checksums right, and transport headers stay as they are",
			Gateway: rules6("  - netmap: {inside: \"fd03::/48\", outside: \"2001:db8:3::/48\", stateless: true}"),
			Run:     neutralTo("fd03::/48", "2001:db8:3::/48", 3), Want: []Outcome{"checksum-neutral, both ways"}},
		{ID: "rfc6296-example", Requirement: "3.4", Level: Must,
			Asks:    "so it is in the RFC's own example (3.6): fd01:203:405:1::1234 is 2001:db8:1:d550::1234 outside, for flows that either side begins, without state",
			Gateway: rules6("  - netmap: {inside: \"fd01:203:405::/48\", outside: \"2001:db8:1::/48\", stateless: true}"),
			Run: allSteps(outTo(at(A, "[fd01:203:405:1::1234]:4000"), outsideX6, "[2001:db8:1:d550::1234]:4000"),
				inFrom(outsideX6, "[2001:db8:1:d550::1234]:77", at(A, "[fd01:203:405:1::1234]:77")), untracked),
			Want: []Outcome{bothWays}},
		{ID: "rfc6296-neutral-64", Requirement: "3.5", Level: Must,
			Asks:    "with a longer prefix the first word of the interface identifier that is not ffff takes it",
			Gateway: rules6("  - netmap: {inside: \"fd03::/64\", outside: \"2001:db8:3:4::/64\", stateless: true}"),
			Run:     neutralTo("fd03::/64", "2001:db8:3:4::/64", 4), Want: []Outcome{"checksum-neutral, both ways"}},
	}
	cases = append(cases, Case{ID: "rfc6296-all-ones", Requirement: "3.5", Level: Natkit,
		Asks:    "an address in which no word can take the difference is not translated, nor let out",
		Gateway: rules6("  - netmap: {inside: \"fd03::/64\", outside: \"2001:db8:3:4::/64\", stateless: true}"),
		Run:     neutralAllOnes, Want: []Outcome{Dropped}})
	cases = append(cases, neutralHairpins()...)
	for i := range cases {
		cases[i].RFC = 6296
	}
	return cases
}

// words are the eight of an address.
type words [8]uint16

func wordsOf(a netip.Addr) (w words) {
	b := a.As16()
	for i := range w {
		w[i] = binary.BigEndian.Uint16(b[2*i:])
	}
	return w
}

func (w words) addr() netip.Addr {
	var b [16]byte
	for i := range w {
		binary.BigEndian.PutUint16(b[2*i:], w[i])
	}
	return netip.AddrFrom16(b)
}

// sum is what a checksum sees of an address: the sum modulo 2^16 - 1, in which a word of
// ones is nothing.
func (w words) sum() (n uint32) {
	for _, word := range w {
		n += uint32(word)
	}
	return n % 0xffff
}

// neutral says what is wrong with a translation, by what RFC 6296 wants of it rather
// than by its arithmetic: the prefix is the other one, one word takes the difference,
// all others are as they were, and the sum is the same. That word is never ffff, which
// the sum does not distinguish from 0.
func neutral(inside, outside netip.Addr, prefix netip.Prefix, word int) error {
	in, out, front := wordsOf(inside), wordsOf(outside), wordsOf(prefix.Addr())
	for i := range out {
		switch {
		case i < prefix.Bits()/16 && out[i] != front[i]:
			return fmt.Errorf("%v is %v outside, which is not in %v", inside, outside, prefix)
		case i >= prefix.Bits()/16 && i != word && out[i] != in[i]:
			return fmt.Errorf("%v is %v outside: word %d changes", inside, outside, i)
		}
	}
	if in.sum() != out.sum() || out[word] == 0xffff {
		return fmt.Errorf("%v is %v outside: not checksum-neutral (%#x, %#x)", inside, outside, in.sum(), out.sum())
	}
	return nil
}

// neutralAddresses are some in a prefix, with words that carry, that are 0 and that
// are nearly ffff.
func neutralAddresses(prefix netip.Prefix) []netip.Addr {
	var all []netip.Addr
	for _, rest := range []words{
		{3: 0, 7: 1}, {3: 1, 7: 2}, {3: 0x1234, 4: 0xffff, 7: 3}, {3: 0xfffe, 4: 0xffff, 5: 0xffff, 7: 4}, {3: 0x8000, 4: 0xfffe, 7: 5},
		{3: 0xabcd, 4: 0x0216, 5: 0x3eff, 6: 0xfe00, 7: 0x6006}, {3: 0x2e1a, 4: 0xd1e5, 7: 7}, {3: 0xd1e5, 4: 0x2e1a, 7: 8},
	} {
		w := wordsOf(prefix.Addr())
		for i := prefix.Bits() / 16; i < len(w); i++ {
			w[i] = rest[i]
		}
		all = append(all, w.addr())
	}
	return all
}

// neutralTo has addresses of A in a prefix go out and come back. word is the one that
// takes the difference, the next one where that is ffff.
func neutralTo(inside, outside string, word int) step {
	in, out := netip.MustParsePrefix(inside), netip.MustParsePrefix(outside)
	return func(p *Play) (Outcome, error) {
		for _, a := range neutralAddresses(in) {
			at := word
			for wordsOf(a)[at] == 0xffff {
				at++
			}
			if got, err := p.neutralBothWays(end{A, netip.AddrPortFrom(a, 4000)}, out, at); err != nil || got != "" {
				return got, err
			}
		}
		return "checksum-neutral, both ways", nil
	}
}

// neutralBothWays is empty where all is well.
func (p *Play) neutralBothWays(from end, outside netip.Prefix, word int) (Outcome, error) {
	sent := UDPPacket(from.AddrPort, outsideX6.AddrPort, "")
	got, err := p.Exchange(A, X, sent)
	if err != nil {
		return "", err
	}
	if err := neutral(from.Addr(), got.Frame.Source, outside, word); err != nil {
		return Outcome(err.Error()), nil
	}
	const header = 40
	if string(sent[header:]) != string(got.Packet[header:]) {
		return Outcome(fmt.Sprintf("the datagram of %v changes: %x became %x", from, sent[header:], got.Packet[header:])), nil
	}
	came, err := p.in(outsideX6, got.Frame.Tuple().Src, from)
	return yes(came, "", Outcome(fmt.Sprintf("%v leads elsewhere than back to %v", got.Frame.Source, from.Addr()))), err
}

func neutralAllOnes(p *Play) (Outcome, error) {
	arrivals, err := p.Send(A, UDPPacket(ap("[fd03::ffff:ffff:ffff:ffff]:4000"), outsideX6.AddrPort, ""))
	return yes(len(arrivals) == 0, Dropped, Outcome("arrived: "+arrivals.String())), err
}
