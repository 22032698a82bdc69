package frame

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
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

// Direction says where the address or port may be.
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

// keywords are FilterWords with parentheses; foreign are the other words of pcap-filter(7).
var (
	keywords = append(slices.Clone(FilterWords), "(", ")")
	foreign  = strings.Fields("ether fddi tr wlan arp rarp decnet sctp icmp6 igmp igrp pim vrrp carp ah esp atalk aarp lat " +
		"moprc mopdl iso esis isis clnp stp ipx netbeui proto protochain gateway broadcast multicast mask less greater len " +
		"inbound outbound ifname on ifindex rnr rulenum reason rset ruleset srnr subrulenum action vlan mpls pppoed pppoes " +
		"geneve vxlan link type subtype dir direction addr1 addr2 addr3 addr4 ra ta lane vpi vci byte")
	// operators are what C and pcap-filter(7) write, and the words for it.
	operators = []struct{ sign, word string }{{"&&", "and"}, {"||", "or"}, {"!", "not"}}
)

// token is a word or a parenthesis. The n-th is called word n in errors.
type token struct {
	n    int
	text string
}

func (t token) fail(format string, args ...any) error {
	return fmt.Errorf("filter: word %d %.64q: %s", t.n, t.text, fmt.Sprintf(format, args...))
}

func (t token) keyword() bool { return slices.Contains(keywords, t.text) }

// tokens splits words: an argument of the command line may hold several, or parentheses that
// touch them.
func tokens(words []string) ([]token, error) {
	spaced := strings.NewReplacer("(", " ( ", ")", " ) ")
	var ts []token
	for _, text := range strings.Fields(spaced.Replace(strings.Join(words, " "))) {
		t := token{len(ts) + 1, text}
		if len(ts) == maxFilterWords {
			return nil, t.fail("a filter has at most %d words and parentheses: use nets and port ranges", maxFilterWords)
		}
		if err := t.check(); err != nil {
			return nil, err
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// check rejects words that no filter has.
func (t token) check() error {
	if t.keyword() {
		return nil
	}
	for _, operator := range operators {
		if strings.Contains(t.text, operator.sign) {
			return t.fail("write %q instead of %q", operator.word, operator.sign)
		}
	}
	switch lower := strings.ToLower(t.text); {
	case lower != t.text && slices.Contains(keywords, lower):
		return t.fail("write %q", lower)
	case slices.Contains(foreign, lower):
		return t.fail("not supported; there are %s", strings.Join(keywords, " "))
	case strings.ContainsAny(t.text, "[]<>=&|+*\\"):
		return t.fail("bytes of a packet and arithmetic are not supported; there are %s", strings.Join(keywords, " "))
	}
	return nil
}

// ParseFilter parses a filter. An argument may hold several words. Without any the filter is
// nil.
func ParseFilter(words []string) (*Filter, error) {
	ts, err := tokens(words)
	if err != nil || len(ts) == 0 {
		return nil, err
	}
	p := &filterParser{tokens: ts}
	f, _, err := p.expression(qualifiers{})
	if err != nil {
		return nil, err
	}
	if t, more := p.peek(0); more {
		return nil, t.unexpected()
	}
	return f, nil
}

// unexpected is the error for a word after a complete expression.
func (t token) unexpected() error {
	if t.text == ")" {
		return t.fail("no parenthesis is open; write one ( before it, or leave it out")
	}
	return t.fail("an \"and\" or an \"or\" is missing before it")
}

// filterParser follows the grammar of libpcap (grammar.y): a value without qualifiers has
// those of the value before it.
type filterParser struct {
	tokens []token
	next   int
	depth  int
}

// qualifiers are the words before a value: a Term without one.
type qualifiers struct {
	Term
	// implied is set for a host that has src or dst, and not the word.
	implied bool
}

func (p *filterParser) peek(n int) (token, bool) {
	if p.next+n >= len(p.tokens) {
		return token{}, false
	}
	return p.tokens[p.next+n], true
}

// accept takes the next word if it is one of texts.
func (p *filterParser) accept(texts ...string) (token, bool) {
	t, ok := p.peek(0)
	if ok = ok && slices.Contains(texts, t.text); !ok {
		return token{}, false
	}
	p.next++
	return t, true
}

// missing is the error for an end where something has to follow.
func (p *filterParser) missing(what string) error {
	last := p.tokens[len(p.tokens)-1]
	return fmt.Errorf("filter: ends after word %d %.64q: %s is missing", last.n, last.text, what)
}

// expression is terms with and, or between.
func (p *filterParser) expression(q qualifiers) (*Filter, qualifiers, error) {
	f, q, err := p.term(q)
	for err == nil {
		op, ok := p.accept("and", "or")
		if !ok {
			return f, q, nil
		}
		var right *Filter
		if p.valueFollows() {
			right, err = p.values(q)
		} else {
			right, q, err = p.term(q)
		}
		f = &Filter{Op: Op(op.text), Left: f, Right: right}
	}
	return nil, q, err
}

// valueFollows reports whether an address or number follows after parentheses and nots.
func (p *filterParser) valueFollows() bool {
	for n := 0; ; n++ {
		t, ok := p.peek(n)
		if !ok || t.text != "not" && t.text != "(" {
			return ok && !t.keyword()
		}
	}
}

// nested calls parse one level deeper.
func (p *filterParser) nested(t token, parse func() error) error {
	if p.depth == maxFilterDepth {
		return t.fail("parentheses and nots lie in each other more than %d deep: write it with fewer", maxFilterDepth)
	}
	p.depth++
	defer func() { p.depth-- }()
	return parse()
}

// prefixed parses "not" with what operand parses, or parentheses around what inner parses;
// ok is false where neither begins.
func (p *filterParser) prefixed(operand, inner func() (*Filter, error)) (f *Filter, ok bool, err error) {
	if t, not := p.accept("not"); not {
		err = p.nested(t, func() error {
			f, err = operand()
			return err
		})
		return &Filter{Op: OpNot, Left: f}, true, err
	}
	t, ok := p.accept("(")
	if !ok {
		return nil, false, nil
	}
	err = p.nested(t, func() error {
		if f, err = inner(); err != nil {
			return err
		}
		return p.closeParenthesis(t)
	})
	return f, true, err
}

func (p *filterParser) closeParenthesis(open token) error {
	if _, ok := p.accept(")"); ok {
		return nil
	}
	if t, more := p.peek(0); more {
		return t.unexpected()
	}
	return p.missing(fmt.Sprintf("the ) to the ( that is word %d", open.n))
}

// term is what does not begin with a value. What follows inherits the qualifiers that it
// returns.
func (p *filterParser) term(q qualifiers) (f *Filter, after qualifiers, err error) {
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
		return &Filter{Term: own.Term}, qualifiers{}, nil
	}
	f, err = p.values(own)
	return f, own, err
}

// values is one value, or several in parentheses, all with the same qualifiers.
func (p *filterParser) values(q qualifiers) (*Filter, error) {
	f, ok, err := p.prefixed(
		func() (*Filter, error) { return p.values(q) },
		func() (*Filter, error) { return p.list(q) })
	if ok {
		return f, err
	}
	return p.value(q)
}

// list is the inside of parentheses around values. libpcap accepts another parenthesis at
// its beginning only around a single number.
func (p *filterParser) list(q qualifiers) (*Filter, error) {
	if t, ok := p.accept("("); ok {
		return nil, t.fail("values are in parentheses already; leave these out")
	}
	f, err := p.values(q)
	for err == nil {
		op, ok := p.accept("and", "or")
		if !ok {
			return f, nil
		}
		var right *Filter
		right, err = p.values(q)
		f = &Filter{Op: Op(op.text), Left: f, Right: right}
	}
	return nil, err
}

func (p *filterParser) value(q qualifiers) (*Filter, error) {
	t, ok := p.peek(0)
	if !ok {
		return nil, p.missing(q.wants())
	}
	if t.keyword() {
		return nil, t.fail("here should be %s", q.wants())
	}
	p.next++
	term, err := q.with(t)
	if err != nil {
		return nil, err
	}
	return &Filter{Term: term}, nil
}

// wants describes the value that belongs to the qualifiers.
func (q qualifiers) wants() string {
	switch q.Kind {
	case OfHost:
		return "an address"
	case OfNet:
		return "a net"
	case OfPort:
		return "a port number"
	case OfPortRange:
		return "a range of port numbers"
	}
	return "host, net, port or portrange with a value"
}

// qualifiers parses those of one term. A protocol that qualifies nothing is a term on its own.
func (p *filterParser) qualifiers() (q qualifiers, err error) {
	first, ok := p.peek(0)
	if !ok {
		return q, p.missing("what to match")
	}
	begin := p.next
	if t, ok := p.accept("ip", "ip6", "tcp", "udp", "icmp"); ok {
		q.Protocol = Protocol(t.text)
	}
	var directed bool
	q.Direction, directed = p.direction()
	kind, ok := p.accept("host", "net", "port", "portrange")
	switch {
	case ok:
		q.Kind = Kind(kind.text)
	case directed:
		q.Kind, q.implied = OfHost, true
	case p.next == begin:
		return q, first.noTerm()
	default:
		return q, nil
	}
	if q.Protocol != AnyProtocol && !slices.Contains(qualifying[q.Kind], q.Protocol) {
		return q, first.fail("does not go with %s; write \"%s and %s …\"", q.Kind, first.text, q.Kind)
	}
	return q, nil
}

// noTerm is the error for a word that begins no term.
func (t token) noTerm() error {
	if t.keyword() {
		return t.fail("something to match is missing before it")
	}
	return t.fail("does not say what it is; write host, net, port or portrange before it")
}

// direction parses src, dst, or both with and, or between.
func (p *filterParser) direction() (d Direction, ok bool) {
	first, ok := p.accept("src", "dst")
	if !ok {
		return Either, false
	}
	op, _ := p.peek(0)
	second, _ := p.peek(1)
	if second.text == map[string]string{"src": "dst", "dst": "src"}[first.text] {
		if d, ok := map[string]Direction{"and": Both, "or": Either}[op.text]; ok {
			p.next += 2
			return d, true
		}
	}
	return Direction(first.text), true
}

// with returns the Term of a value with these qualifiers.
func (q qualifiers) with(t token) (term Term, err error) {
	term = q.Term
	switch q.Kind {
	case OfHost:
		term.Net, err = q.host(t)
	case OfNet:
		term.Net, err = network(t)
	case OfPort:
		term.Ports.First, err = port(t, t.text)
		term.Ports.Last = term.Ports.First
	case OfPortRange:
		term.Ports, err = portRange(t)
	default:
		err = t.noTerm()
	}
	if err != nil {
		return Term{}, err
	}
	if a := term.Net.Addr(); q.Protocol == OnlyIPv4 && a.Is6() || q.Protocol == OnlyIPv6 && a.Is4() {
		return Term{}, t.fail("is no address of the protocol %s; leave %[1]s out, or give another", q.Protocol)
	}
	return term, nil
}

// host parses a complete address.
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

// network parses an address with or without a prefix length. IPv4 octets may be left out at
// the end; the length is then that of those given.
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

// partial parses an address whose last octets may be missing, and returns how many bits are
// there.
func partial(text string) (netip.Addr, int, bool) {
	missing := 3 - strings.Count(text, ".")
	// libpcap takes a single 0 for the address 0.0.0.0, not 0.0.0.0/8.
	if strings.Contains(text, ":") || missing <= 0 || text == "0" {
		a, err := netip.ParseAddr(text)
		return a, a.BitLen(), err == nil && a.Zone() == ""
	}
	a, err := netip.ParseAddr(text + strings.Repeat(".0", missing))
	return a, 32 - 8*missing, err == nil
}

// number parses a decimal number without sign and without leading zero, which libpcap takes
// for octal.
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

// portRange parses two ports in either order, or one.
func portRange(t token) (nat.Ports, error) {
	from, to, two := strings.Cut(t.text, "-")
	if !two {
		to = from
	}
	a, okA := number(from, 65535)
	b, okB := number(to, 65535)
	if !okA || !okB {
		return nat.Ports{}, t.fail("is no range of ports; names of services are not looked up: give two numbers from 0 to 65535 such as 1024-2047, without leading zeros")
	}
	return nat.Ports{First: uint16(min(a, b)), Last: uint16(max(a, b))}, nil
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
