package filter

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// term makes a value with its qualifiers a Term.
func (q qualifiers) term(t token) (Term, error) {
	term := Term{Kind: q.kind, Proto: q.proto, Direction: q.direction}
	var err error
	switch q.kind {
	case Host:
		term.Net, err = q.host(t)
	case Network:
		term.Net, err = network(t)
	case Port:
		term.FirstPort, err = port(t, t.text)
		term.LastPort = term.FirstPort
	case PortRange:
		term.FirstPort, term.LastPort, err = portRange(t)
	default:
		err = t.noTerm()
	}
	if err != nil {
		return Term{}, err
	}
	if a := term.Net.Addr(); q.proto == IPv4 && a.Is6() || q.proto == IPv6 && a.Is4() {
		return Term{}, t.fail("is no address of the protocol %s; leave %[1]s out, or give another", protocolWords[q.proto])
	}
	return term, nil
}

// host reads a whole address.
func (q qualifiers) host(t token) (netip.Prefix, error) {
	a, err := netip.ParseAddr(t.text)
	if err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if _, err := network(t); err == nil || strings.Contains(t.text, "/") {
		if q.implied {
			return netip.Prefix{}, t.fail("is no whole address; write net before a prefix, port before a number")
		}
		return netip.Prefix{}, t.fail("is no whole address; write net instead of host before a prefix")
	}
	return netip.Prefix{}, t.fail("is no address; names and zones are not looked up: give an address such as 198.18.0.1 or 2001:db8::1")
}

// network reads an address with or without a prefix length. Of IPv4 octets may be
// left out at the end; then the length is that of those that are there.
func network(t token) (netip.Prefix, error) {
	text, length, hasLength := strings.Cut(t.text, "/")
	a, bits, ok := partial(text)
	if !ok {
		return netip.Prefix{}, t.fail("is no net; names are not looked up: give a prefix such as 198.18.0.0/15 or 2001:db8::/32")
	}
	if !hasLength {
		return netip.PrefixFrom(a, bits), nil
	}
	if bits == 8 {
		return netip.Prefix{}, t.fail("libpcap takes no length behind one number: write %s/%s", a, length)
	}
	n, ok := number(length, a.BitLen())
	if !ok {
		return netip.Prefix{}, t.fail("the prefix length has to be a number from 0 to %d", a.BitLen())
	}
	prefix := netip.PrefixFrom(a, n)
	if prefix != prefix.Masked() {
		return netip.Prefix{}, t.fail("has bits set behind the prefix: write %s", prefix.Masked())
	}
	return prefix, nil
}

// partial reads an address of which the last octets may be missing, and how many
// bits are there.
func partial(text string) (netip.Addr, int, bool) {
	missing := 3 - strings.Count(text, ".")
	// A lone 0 is the address 0.0.0.0 to libpcap, not 0.0.0.0/8.
	if strings.Contains(text, ":") || missing <= 0 || text == "0" {
		a, err := netip.ParseAddr(text)
		return a, a.BitLen(), err == nil && a.Zone() == ""
	}
	a, err := netip.ParseAddr(text + strings.Repeat(".0", missing))
	return a, 32 - 8*missing, err == nil
}

// number reads a decimal number without sign and without leading zero, which would
// make it octal to libpcap.
func number(text string, most int) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || int(n) > most || strconv.Itoa(int(n)) != text {
		return 0, false
	}
	return int(n), true
}

func port(t token, text string) (uint16, error) {
	if n, ok := number(text, 65535); ok {
		return uint16(n), nil
	}
	hint := ""
	if strings.Contains(text, "-") {
		hint = "; write portrange before a range"
	}
	return 0, t.fail("is no port; names of services are not looked up: give a number from 0 to 65535, without leading zeros%s", hint)
}

// portRange reads two ports in either order, or a single one.
func portRange(t token) (first, last uint16, err error) {
	from, to, two := strings.Cut(t.text, "-")
	if first, err = port(t, from); err != nil {
		return 0, 0, rangeError(t)
	}
	if !two {
		return first, first, nil
	}
	if last, err = port(t, to); err != nil {
		return 0, 0, rangeError(t)
	}
	return min(first, last), max(first, last), nil
}

func rangeError(t token) error {
	return t.fail("is no range of ports; names of services are not looked up: give two numbers from 0 to 65535 such as 1024-2047, without leading zeros")
}

// qualifiers are what stands before a value. The zero value is none.
type qualifiers struct {
	proto     Protocol
	direction Direction
	kind      Kind
	// implied: there is src or dst, and no word for the kind. Then it is Host.
	implied bool
}

// word looks a word up in one of the tables of words.
func word[K comparable](words map[K]string, text string) (K, bool) {
	for k, w := range words {
		if w == text {
			return k, true
		}
	}
	var none K
	return none, false
}

// qualifiers reads those of one term. A protocol that qualifies nothing is a term
// itself: then the kind is OfProtocol.
func (p *parser) qualifiers() (qualifiers, error) {
	var q qualifiers
	first, ok := p.peek()
	if !ok {
		return q, p.missing("what to match")
	}
	begin := p.next
	if proto, ok := word(protocolWords, first.text); ok {
		q.proto = proto
		p.next++
	}
	var directed bool
	q.direction, directed = p.direction()
	kind, ok := p.accept(slices.Collect(maps.Values(kindWords))...)
	switch {
	case ok:
		q.kind, _ = word(kindWords, kind.text)
	case directed:
		q.kind, q.implied = Host, true
	case p.next == begin:
		return q, first.noTerm()
	default:
		return q, nil
	}
	return q, q.check(first)
}

// noTerm says why a word begins nothing.
func (t token) noTerm() error {
	if t.keyword() {
		return t.fail("something to match is missing before it")
	}
	return t.fail("does not say what it is; write host, net, port or portrange before it")
}

// direction reads src, dst, or both with and, or between.
func (p *parser) direction() (d Direction, ok bool) {
	first, ok := p.accept("src", "dst")
	if !ok {
		return Either, false
	}
	op, _ := p.peek()
	second, _ := p.peekAt(1)
	if second.text == map[string]string{"src": "dst", "dst": "src"}[first.text] {
		if d, ok := map[string]Direction{"and": Both, "or": Either}[op.text]; ok {
			p.next += 2
			return d, true
		}
	}
	return map[string]Direction{"src": Source, "dst": Destination}[first.text], true
}

// check refuses what libpcap refuses: ports of IP, addresses of TCP.
func (q qualifiers) check(first token) error {
	good := map[Kind][]Protocol{Host: {IPv4, IPv6}, Network: {IPv4, IPv6}, Port: {TCP, UDP}, PortRange: {TCP, UDP}}
	if q.proto == AnyProtocol || slices.Contains(good[q.kind], q.proto) {
		return nil
	}
	return first.fail("does not go with %s; write \"%s and %s …\"", kindWords[q.kind], first.text, kindWords[q.kind])
}

// wants says which value belongs to the qualifiers.
func (q qualifiers) wants() string {
	switch q.kind {
	case Host:
		return "an address"
	case Network:
		return "a net"
	case Port:
		return "a port number"
	case PortRange:
		return "a range of port numbers"
	}
	return "host, net, port or portrange with a value"
}
