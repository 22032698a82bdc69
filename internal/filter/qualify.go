package filter

import (
	"maps"
	"slices"
)

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
