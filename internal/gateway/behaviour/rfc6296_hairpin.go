package behaviour

import (
	"net/netip"

	"github.com/natkit/natkit/internal/frame"
)

const twoPrefixes = `
interfaces: {wan: wan, lan: [lan, dmz]}
ipv6:
  - netmap: {inside: "fd03::/64", outside: "2001:db8:3:4::/64", stateless: true}
  - netmap: {inside: "fd01:203:405::/48", outside: "2001:db8:1::/48", stateless: true}
`

func neutralHairpins() []Case {
	want := []Outcome{"delivered, both ends translated"}
	return []Case{
		{ID: "rfc6296-hairpin", Requirement: "4.3", Level: Must, Want: want, Gateway: statelessPrefix,
			Asks: "hosts inside reach each other by their outside addresses (hairpinning), and are seen under theirs",
			Run:  hairpin6296{client: at(A, "[fd03::5]:4000"), outside: netip.MustParsePrefix("2001:db8:3::/48"), word: 3}.play},
		{ID: "rfc6296-hairpin-prefixes", Requirement: "4.3", Level: Must, Want: want, Gateway: twoPrefixes,
			Asks: "so they do from one of the site's prefixes to another",
			Run:  hairpin6296{client: at(A, "[fd01:203:405:6::5]:4000"), outside: netip.MustParsePrefix("2001:db8:1::/48"), word: 3}.play},
		{ID: "rfc6296-hairpin-64", Requirement: "4.3", Level: Must, Want: want, Gateway: twoPrefixes,
			Asks: "so they do with a prefix of 64 bits",
			Run:  hairpin6296{client: at(A, "[fd03::ffff:0:0:5]:4000"), outside: netip.MustParsePrefix("2001:db8:3:4::/64"), word: 5}.play},
	}
}

// hairpin6296 is a host inside that asks another, what it is outside, and the word of
// its address that takes the difference.
type hairpin6296 struct {
	client  end
	outside netip.Prefix
	word    int
}

// play finds out what a server is outside, asks it under that and has it answer by a
// datagram and by an error.
func (h hairpin6296) play(p *Play) (Outcome, error) {
	server := at(A, "[fd03::7:0:0:2]:80")
	known, err := p.both(server, outsideX6)
	if err != nil {
		return "", err
	}
	ask, err := carry(p, h.client, server, udpData(h.client.AddrPort, known))
	if err != nil {
		return lostOr("not delivered", err)
	}
	seen := ask.got.Frame.Tuple()
	if err := neutral(h.client.Addr(), seen.Src.Addr(), h.outside, h.word); err != nil {
		return Outcome(err.Error()), nil
	}
	answer, err := carry(p, server, h.client, udpData(server.AddrPort, seen.Src))
	if err != nil {
		return lostOr("the answer is lost", err)
	}
	if got := answer.got.Frame.Tuple(); seen.Dst != server.AddrPort || got.Src != known || got.Dst != h.client.AddrPort {
		return Outcome("asked " + line(&ask.got.Frame) + ", answered " + line(&answer.got.Frame)), nil
	}
	if err := (report{by: server, kind: frame.ICMP{Type: unreachable6, Code: 4}}).translated(p, ask, known.Addr()); err != nil {
		return verdict("", err)
	}
	if got, err := untracked(p); err != nil || got != bothWays {
		return got, err
	}
	return "delivered, both ends translated", nil
}
