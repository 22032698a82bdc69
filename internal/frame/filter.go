package frame

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// FilterUsage lists the words of a filter, for the help of a verb.
const FilterUsage = `A FILTER is made of these words of pcap-filter(7); others are an error:
  tcp udp icmp ip ip6                      the protocol
  [ip|ip6] [src|dst] host ADDRESS          no names
  [ip|ip6] [src|dst] net PREFIX            198.18.0.0/15, 10.1, 2001:db8::/32
  [tcp|udp] [src|dst] port NUMBER          of TCP, UDP or SCTP, which fragments
  [tcp|udp] [src|dst] portrange FROM-TO    behind the first do not have
  and or not ( )                           and, or bind equally, from the left
"src and dst" asks for both, "src or dst" is the same as neither word. "port 80
or 443" is "port 80 or port 443". Parentheses have to be quoted for the shell.
  tcp port 443
  src net 198.18.0.0/15 and not icmp
  host 203.0.113.7 or 203.0.113.8
  'udp and (port 53 or portrange 10000-20000)'`

// Filter is a Term, or one or two Filters combined, with the meaning of pcap-filter(7); words
// that it does not support are an error. Nil matches every packet.
type Filter struct {
	Op Op
	// Left is an operand of and, or and not; Right one of and and or.
	Left, Right *Filter
	// Term is the question where Op is OpTerm.
	Term Term
}

// Op combines Filters.
type Op string

const (
	OpTerm Op = ""
	OpAnd  Op = "and"
	OpOr   Op = "or"
	OpNot  Op = "not"
)

// Term is one question about a packet.
type Term struct {
	Kind Kind
	// Protocol qualifies hosts and nets by ip or ip6, and ports by tcp or udp; it is the
	// whole question of OfProtocol.
	Protocol Protocol
	// Direction selects the address or port in question.
	Direction Direction
	// Net is the prefix; of a host with all bits.
	Net   netip.Prefix
	Ports nat.Ports
}

// Kind is what a Term asks for.
type Kind string

const (
	OfProtocol Kind = ""
	// OfHost asks for an address, OfNet for the prefix of one. IPv4 addresses may also be in
	// ARP and RARP.
	OfHost Kind = "host"
	OfNet  Kind = "net"
	// OfPort and OfPortRange ask for ports of TCP, UDP or SCTP.
	OfPort      Kind = "port"
	OfPortRange Kind = "portrange"
)

// Protocol restricts a Term.
type Protocol string

const (
	AnyProtocol Protocol = ""
	OnlyIPv4    Protocol = "ip"
	OnlyIPv6    Protocol = "ip6"
	OnlyTCP     Protocol = "tcp"
	OnlyUDP     Protocol = "udp"
	OnlyICMP    Protocol = "icmp" // of IPv4
)

// Direction is the side that an address or port may be on.
type Direction string

const (
	Either      Direction = ""
	Source      Direction = "src"
	Destination Direction = "dst"
	Both        Direction = "src and dst"
)

// qualifying are the protocols that libpcap accepts before the word of a kind.
var qualifying = map[Kind][]Protocol{
	OfHost: {OnlyIPv4, OnlyIPv6}, OfNet: {OnlyIPv4, OnlyIPv6}, OfPort: {OnlyTCP, OnlyUDP}, OfPortRange: {OnlyTCP, OnlyUDP},
}

// String returns the filter in words of pcap-filter(7), with all qualifiers.
func (f *Filter) String() string {
	switch {
	case f == nil:
		return ""
	case f.Op == OpNot:
		return "not " + f.Left.operand()
	case f.Op == OpTerm:
		return f.Term.String()
	}
	return f.Left.String() + " " + string(f.Op) + " " + f.Right.operand()
}

// operand adds parentheses where the order of evaluation would change without: and and or
// bind equally, from the left.
func (f *Filter) operand() string {
	if f.Op == OpAnd || f.Op == OpOr {
		return "(" + f.String() + ")"
	}
	return f.String()
}

func (t Term) String() string {
	words := []string{string(t.Protocol), string(t.Direction), string(t.Kind), ""}
	switch t.Kind {
	case OfHost:
		words[3] = t.Net.Addr().String()
	case OfNet:
		words[3] = t.Net.String()
	case OfPort:
		words[3] = fmt.Sprint(t.Ports.First)
	case OfPortRange:
		words[3] = fmt.Sprintf("%d-%d", t.Ports.First, t.Ports.Last)
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

const (
	// maxFilterWords bounds the words and parentheses of a filter, and so the program that
	// is made of it; maxFilterDepth how deep parentheses and nots nest.
	maxFilterWords = 256
	maxFilterDepth = 32
)

// FilterWords are the words of a filter but for addresses, numbers and parentheses.
var FilterWords = []string{"host", "net", "port", "portrange", "src", "dst", "tcp", "udp", "icmp", "ip", "ip6", "and", "or", "not"}

var keywords = append(slices.Clone(FilterWords), "(", ")")

// token is a word or a parenthesis, the n-th; empty behind the last one.
type token struct {
	n    int
	text string
}

func (t token) keyword() bool { return slices.Contains(keywords, t.text) }

func (t token) fail(format string, args ...any) error {
	return fmt.Errorf("filter: word %d %.64q: %s", t.n, t.text, fmt.Sprintf(format, args...))
}

// want is the error for another token than what belongs here.
func (t token) want(what string) error {
	if t.text == "" {
		return fmt.Errorf("filter: ends after word %d: want %s", t.n-1, what)
	}
	return t.fail("want %s", what)
}

// ParseFilter parses a filter. An argument may hold several words, or parentheses that touch
// them. Without any words the filter is nil.
func ParseFilter(words []string) (*Filter, error) {
	spaced := strings.NewReplacer("(", " ( ", ")", " ) ").Replace(strings.Join(words, " "))
	p := &filterParser{words: strings.Fields(spaced)}
	if len(p.words) == 0 {
		return nil, nil
	}
	if len(p.words) > maxFilterWords {
		return nil, fmt.Errorf("filter: %d words and parentheses: at most %d; use nets and port ranges", len(p.words), maxFilterWords)
	}
	f, _, err := p.expression(Term{})
	if err == nil && p.next < len(p.words) {
		err = p.peek(0).want(`"and" or "or" before it`)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// filterParser follows the grammar of libpcap (grammar.y): a value without qualifiers has
// those of the value before it. Qualifiers are a Term without a value.
type filterParser struct {
	words []string
	next  int
	depth int
}

func (p *filterParser) peek(n int) token {
	if n += p.next; n < len(p.words) {
		return token{n + 1, p.words[n]}
	}
	return token{n: len(p.words) + 1}
}

// accept takes the next word if it is one of texts; it returns "" if not.
func (p *filterParser) accept(texts ...string) string {
	t := p.peek(0)
	if !slices.Contains(texts, t.text) {
		return ""
	}
	p.next++
	return t.text
}

// expression is terms with and, or between.
func (p *filterParser) expression(q Term) (*Filter, Term, error) {
	f, q, err := p.term(q)
	for err == nil {
		op := p.accept("and", "or")
		if op == "" {
			return f, q, nil
		}
		var right *Filter
		if p.valueFollows() {
			right, err = p.values(q)
		} else {
			right, q, err = p.term(q)
		}
		f = &Filter{Op: Op(op), Left: f, Right: right}
	}
	return nil, q, err
}

// valueFollows reports whether an address or number follows after parentheses and nots.
func (p *filterParser) valueFollows() bool {
	n := 0
	for p.peek(n).text == "not" || p.peek(n).text == "(" {
		n++
	}
	return p.peek(n).text != "" && !p.peek(n).keyword()
}

// prefixed parses "not" with what operand parses, or parentheses around what inner parses;
// ok is false if neither begins.
func (p *filterParser) prefixed(operand, inner func() (*Filter, error)) (f *Filter, ok bool, err error) {
	t := p.peek(0)
	word := p.accept("not", "(")
	if word == "" {
		return nil, false, nil
	}
	if p.depth++; p.depth > maxFilterDepth {
		return nil, true, t.fail("nested more than %d deep", maxFilterDepth)
	}
	defer func() { p.depth-- }()
	if word == "not" {
		f, err = operand()
		return &Filter{Op: OpNot, Left: f}, true, err
	}
	if f, err = inner(); err == nil && p.accept(")") == "" {
		err = p.peek(0).want(`")", "and" or "or"`)
	}
	return f, true, err
}

// term parses a term that does not begin with a value. The next one inherits the qualifiers it
// returns.
func (p *filterParser) term(q Term) (f *Filter, after Term, err error) {
	after = q
	f, ok, err := p.prefixed(
		func() (f *Filter, err error) {
			f, after, err = p.term(q)
			return f, err
		},
		func() (f *Filter, err error) {
			f, _, err = p.expression(q)
			return f, err
		})
	if ok {
		return f, after, err
	}
	own, err := p.qualifiers()
	if err != nil {
		return nil, own, err
	}
	if own.Kind == OfProtocol {
		return &Filter{Term: own}, Term{}, nil
	}
	f, err = p.values(own)
	return f, own, err
}

// values is one value, or several in parentheses, all with the same qualifiers.
func (p *filterParser) values(q Term) (*Filter, error) {
	f, ok, err := p.prefixed(
		func() (*Filter, error) { return p.values(q) },
		func() (*Filter, error) { return p.list(q) })
	if ok {
		return f, err
	}
	t := p.peek(0)
	if t.text == "" || t.keyword() {
		return nil, t.want(values[q.Kind])
	}
	p.next++
	if q, err = q.with(t); err != nil {
		return nil, err
	}
	return &Filter{Term: q}, nil
}

// list is the inside of parentheses around values. libpcap accepts another parenthesis at
// its beginning only around a single number.
func (p *filterParser) list(q Term) (*Filter, error) {
	if t := p.peek(0); t.text == "(" {
		return nil, t.fail("values are in parentheses already")
	}
	f, err := p.values(q)
	for err == nil {
		op := p.accept("and", "or")
		if op == "" {
			return f, nil
		}
		var right *Filter
		right, err = p.values(q)
		f = &Filter{Op: Op(op), Left: f, Right: right}
	}
	return nil, err
}

// qualifiers parses those of one term. A protocol that qualifies nothing is a term on its own.
func (p *filterParser) qualifiers() (q Term, err error) {
	first, begin := p.peek(0), p.next
	q.Protocol = Protocol(p.accept("ip", "ip6", "tcp", "udp", "icmp"))
	at := p.next
	q.Direction = p.direction()
	directed := p.next > at
	q.Kind = Kind(p.accept("host", "net", "port", "portrange"))
	switch {
	case q.Kind != OfProtocol:
	case directed:
		q.Kind = OfHost
	case p.next == begin:
		return q, first.want("one of " + strings.Join(FilterWords, " "))
	default:
		return q, nil
	}
	if q.Protocol != AnyProtocol && !slices.Contains(qualifying[q.Kind], q.Protocol) {
		return q, first.fail("does not go with %s; write \"%s and %s …\"", q.Kind, first.text, q.Kind)
	}
	return q, nil
}

// direction parses src, dst, or both with and, or between.
func (p *filterParser) direction() Direction {
	first := p.accept("src", "dst")
	second, op := p.peek(1).text, p.peek(0).text
	if first != "" && first != second && (second == "src" || second == "dst") && (op == "and" || op == "or") {
		p.next += 2
		return map[string]Direction{"and": Both, "or": Either}[op]
	}
	return Direction(first)
}

// values describes the value of a kind; names are not resolved.
var values = map[Kind]string{
	OfProtocol:  "host, net, port or portrange before it",
	OfHost:      "an address such as 198.18.0.1 or 2001:db8::1; net is for prefixes",
	OfNet:       "a prefix such as 198.18.0.0/15 or 2001:db8::/32, without bits behind it",
	OfPort:      "a number from 0 to 65535 without leading zeros; portrange is for ranges",
	OfPortRange: "two numbers from 0 to 65535 without leading zeros, such as 1024-2047",
}

// with returns the term of a value with these qualifiers.
func (q Term) with(t token) (_ Term, err error) {
	ok := false
	switch q.Kind {
	case OfHost:
		a, err := netip.ParseAddr(t.text)
		ok = err == nil && a.Zone() == ""
		q.Net = netip.PrefixFrom(a, a.BitLen())
	case OfNet:
		q.Net, ok = network(t.text)
	case OfPort:
		q.Ports.First, ok = number(t.text)
		q.Ports.Last = q.Ports.First
	case OfPortRange:
		q.Ports, ok = portRange(t.text)
	}
	if !ok {
		return Term{}, t.want(values[q.Kind])
	}
	if a := q.Net.Addr(); q.Protocol == OnlyIPv4 && a.Is6() || q.Protocol == OnlyIPv6 && a.Is4() {
		return Term{}, t.fail("is no address of the protocol %s", q.Protocol)
	}
	return q, nil
}

// network parses an address with or without a prefix length. IPv4 octets may be left out at
// the end; the length is then that of those given. libpcap takes no length behind one number.
func network(text string) (netip.Prefix, bool) {
	text, length, hasLength := strings.Cut(text, "/")
	missing := 3 - strings.Count(text, ".")
	// libpcap takes a single 0 for the address 0.0.0.0, not 0.0.0.0/8.
	if strings.Contains(text, ":") || missing <= 0 || text == "0" {
		missing = 0
	}
	a, err := netip.ParseAddr(text + strings.Repeat(".0", missing))
	if err != nil || a.Zone() != "" || hasLength && missing == 3 {
		return netip.Prefix{}, false
	}
	if !hasLength {
		return netip.PrefixFrom(a, a.BitLen()-8*missing), true
	}
	n, ok := number(length)
	prefix := netip.PrefixFrom(a, int(n))
	return prefix, ok && prefix.IsValid() && prefix == prefix.Masked()
}

// number parses a decimal number without sign and without leading zero, which libpcap takes
// for octal.
func number(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && strconv.Itoa(int(n)) == text
}

// portRange parses two ports in either order, or one.
func portRange(text string) (nat.Ports, bool) {
	from, to, two := strings.Cut(text, "-")
	if !two {
		to = from
	}
	a, okA := number(from)
	b, okB := number(to)
	return nat.Ports{First: min(a, b), Last: max(a, b)}, okA && okB
}

// Match reports whether the filter matches an IP packet. Fragments after the first one have no
// ports, nor has any fragment of IPv6.
func (f *Filter) Match(p *Frame) bool {
	switch {
	case f == nil:
		return true
	case f.Op == OpNot:
		return !f.Left.Match(p)
	case f.Op == OpAnd:
		return f.Left.Match(p) && f.Right.Match(p)
	case f.Op == OpOr:
		return f.Left.Match(p) || f.Right.Match(p)
	}
	return f.Term.Protocol.match(p) && f.Term.match(p)
}

func (t *Term) match(p *Frame) bool {
	switch {
	case t.Kind == OfProtocol:
		return true
	case t.Kind == OfHost || t.Kind == OfNet:
		return t.Direction.match(t.contains(p.Source), t.contains(p.Destination))
	case p.Version == 6 && p.Fragment.Is() || p.Transport != unix.IPPROTO_TCP && p.Transport != unix.IPPROTO_UDP:
		return false
	}
	source, destination := p.ports()
	return t.Direction.match(t.Ports.Contains(source), t.Ports.Contains(destination))
}

func (proto Protocol) match(p *Frame) bool {
	switch proto {
	case OnlyIPv4:
		return p.Version == 4
	case OnlyIPv6:
		return p.Version == 6
	case OnlyTCP:
		return p.Protocol == unix.IPPROTO_TCP
	case OnlyUDP:
		return p.Protocol == unix.IPPROTO_UDP
	case OnlyICMP:
		return p.Version == 4 && p.Protocol == unix.IPPROTO_ICMP
	}
	return true
}

// contains, other than netip.Prefix.Contains, takes an IPv4 address mapped into IPv6 for one of
// IPv6.
func (t *Term) contains(a netip.Addr) bool {
	prefix, err := a.Prefix(t.Net.Bits())
	return err == nil && prefix == t.Net
}

func (d Direction) match(source, destination bool) bool {
	switch d {
	case Source:
		return source
	case Destination:
		return destination
	case Both:
		return source && destination
	}
	return source || destination
}
