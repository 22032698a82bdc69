// Package filter reads packet filters in the words of pcap-filter(7), those of them
// that it knows, and tells which packets they match. What it does not know is an
// error: what it accepts means what it means to tcpdump.
package filter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Usage lists the words of a filter, for the help of a verb.
const Usage = `A FILTER is made of these words of pcap-filter(7); others are an error:
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

// Parse reads a filter. An argument may hold several words. No word at all is no
// filter: nil, which matches every packet.
func Parse(words []string) (*Expr, error) {
	ts, err := tokens(words)
	if err != nil || len(ts) == 0 {
		return nil, err
	}
	p := &parser{tokens: ts}
	e, _, err := p.expression(qualifiers{})
	if err != nil {
		return nil, err
	}
	if t, more := p.peek(); more {
		return nil, t.unexpected()
	}
	return e, nil
}

// unexpected says what is wrong with a word behind a whole expression.
func (t token) unexpected() error {
	if t.text == ")" {
		return t.fail("no parenthesis is open; write one ( before it, or leave it out")
	}
	return t.fail("an \"and\" or an \"or\" is missing before it")
}

// parser follows the grammar of libpcap (grammar.y): a value that has no qualifiers
// of its own has those of the value before.
type parser struct {
	tokens []token
	next   int
	depth  int
}

func (p *parser) peek() (token, bool) { return p.peekAt(0) }

func (p *parser) peekAt(n int) (token, bool) {
	if p.next+n >= len(p.tokens) {
		return token{}, false
	}
	return p.tokens[p.next+n], true
}

// accept takes the next word if it is one of texts.
func (p *parser) accept(texts ...string) (token, bool) {
	t, ok := p.peek()
	for _, text := range texts {
		if ok && t.text == text {
			p.next++
			return t, true
		}
	}
	return token{}, false
}

// missing is the error for an end where something has to follow.
func (p *parser) missing(what string) error {
	last := p.tokens[len(p.tokens)-1]
	return fmt.Errorf("filter: ends after word %d %.64q: %s is missing", last.n, last.text, what)
}

// expression is terms with and, or between.
func (p *parser) expression(q qualifiers) (*Expr, qualifiers, error) {
	e, q, err := p.term(q)
	for err == nil {
		op, ok := p.accept("and", "or")
		if !ok {
			return e, q, nil
		}
		var right *Expr
		if p.valueFollows() {
			right, err = p.values(q)
		} else {
			right, q, err = p.term(q)
		}
		e = join(e, op, right)
	}
	return nil, q, err
}

func join(left *Expr, op token, right *Expr) *Expr {
	if op.text == "and" {
		return &Expr{Op: And, Left: left, Right: right}
	}
	return &Expr{Op: Or, Left: left, Right: right}
}

// valueFollows reports whether an address or number is next, behind parentheses and
// nots.
func (p *parser) valueFollows() bool {
	for n := 0; ; n++ {
		t, ok := p.peekAt(n)
		if !ok || t.text != "not" && t.text != "(" {
			return ok && !t.keyword()
		}
	}
}

// nested calls parse one level deeper.
func (p *parser) nested(t token, parse func() error) error {
	if p.depth == MaxDepth {
		return t.fail("parentheses and nots lie in each other more than %d deep: write it with fewer", MaxDepth)
	}
	p.depth++
	defer func() { p.depth-- }()
	return parse()
}

func (p *parser) closeParenthesis(open token) error {
	if _, ok := p.accept(")"); ok {
		return nil
	}
	if t, more := p.peek(); more {
		return t.unexpected()
	}
	return p.missing(fmt.Sprintf("the ) to the ( that is word %d", open.n))
}

// term is what does not begin with a value. What follows inherits the qualifiers
// that it returns.
func (p *parser) term(q qualifiers) (e *Expr, after qualifiers, err error) {
	if t, ok := p.accept("not"); ok {
		err = p.nested(t, func() error {
			e, after, err = p.term(q)
			return err
		})
		return &Expr{Op: Not, Left: e}, after, err
	}
	if t, ok := p.accept("("); ok {
		err = p.nested(t, func() error {
			if e, _, err = p.expression(q); err != nil {
				return err
			}
			return p.closeParenthesis(t)
		})
		return e, q, err
	}
	own, err := p.qualifiers()
	if err != nil {
		return nil, own, err
	}
	if own.kind == OfProtocol {
		return &Expr{Term: Term{Proto: own.proto}}, qualifiers{}, nil
	}
	e, err = p.values(own)
	return e, own, err
}

// values is one value, or several in parentheses, all with the same qualifiers.
func (p *parser) values(q qualifiers) (e *Expr, err error) {
	if t, ok := p.accept("not"); ok {
		err = p.nested(t, func() error {
			e, err = p.values(q)
			return err
		})
		return &Expr{Op: Not, Left: e}, err
	}
	if t, ok := p.accept("("); ok {
		err = p.nested(t, func() error {
			if e, err = p.list(q); err != nil {
				return err
			}
			return p.closeParenthesis(t)
		})
		return e, err
	}
	return p.value(q)
}

// list is what stands in parentheses around values. To libpcap it may begin with
// another one only if that has a lone number.
func (p *parser) list(q qualifiers) (*Expr, error) {
	if t, ok := p.accept("("); ok {
		return nil, t.fail("values are in parentheses already; leave these out")
	}
	e, err := p.values(q)
	for err == nil {
		op, ok := p.accept("and", "or")
		if !ok {
			return e, nil
		}
		var right *Expr
		right, err = p.values(q)
		e = join(e, op, right)
	}
	return nil, err
}

func (p *parser) value(q qualifiers) (*Expr, error) {
	t, ok := p.peek()
	if !ok {
		return nil, p.missing(q.wants())
	}
	if t.keyword() {
		return nil, t.fail("here should be %s", q.wants())
	}
	p.next++
	term, err := q.term(t)
	if err != nil {
		return nil, err
	}
	return &Expr{Term: term}, nil
}

// Expr is a filter: a Term, or two or one Expr combined. Nil matches every packet.
type Expr struct {
	Op Op
	// Left is an operand of And, Or and Not, Right one of And and Or.
	Left, Right *Expr
	// Term is what to ask where Op is Is.
	Term Term
}

// Op says how an Expr is combined.
type Op uint8

const (
	Is Op = iota
	And
	Or
	Not
)

// Term is one question about a packet.
type Term struct {
	Kind Kind
	// Proto qualifies Hosts and Nets by IPv4 or IPv6, and Ports by TCP or UDP; it is
	// all that a Protocol asks.
	Proto Protocol
	// Direction tells which address or port is asked.
	Direction Direction
	// Net has the address of a Host as well, with all of its bits.
	Net netip.Prefix
	// FirstPort and LastPort are inclusive.
	FirstPort, LastPort uint16
}

// Kind is what a Term asks.
type Kind uint8

const (
	// OfProtocol asks for Proto alone.
	OfProtocol Kind = iota
	// Host asks for an address. That of IPv4 may also be in ARP and RARP.
	Host
	// Network asks for the prefix of an address.
	Network
	// Port asks for a port of TCP, UDP or SCTP.
	Port
	// PortRange asks for several.
	PortRange
)

// Protocol restricts a Term.
type Protocol uint8

const (
	AnyProtocol Protocol = iota
	IPv4
	IPv6
	TCP
	UDP
	// ICMP is that of IPv4.
	ICMP
)

// Direction says where the address or port may be.
type Direction uint8

const (
	Either Direction = iota
	Source
	Destination
	Both
)

var (
	kindWords      = map[Kind]string{Host: "host", Network: "net", Port: "port", PortRange: "portrange"}
	protocolWords  = map[Protocol]string{IPv4: "ip", IPv6: "ip6", TCP: "tcp", UDP: "udp", ICMP: "icmp"}
	directionWords = map[Direction]string{Source: "src", Destination: "dst", Both: "src and dst"}
)

// String is the filter in words that Parse reads, and pcap-filter(7) too, each with
// its qualifiers.
func (e *Expr) String() string {
	switch {
	case e == nil:
		return ""
	case e.Op == Not:
		return "not " + e.Left.operand()
	case e.Op == And:
		return e.Left.String() + " and " + e.Right.operand()
	case e.Op == Or:
		return e.Left.String() + " or " + e.Right.operand()
	}
	return e.Term.String()
}

// operand puts into parentheses what would else be combined in another order: and
// and or bind equally, from the left.
func (e *Expr) operand() string {
	if e.Op == And || e.Op == Or {
		return "(" + e.String() + ")"
	}
	return e.String()
}

func (t Term) String() string {
	if t.Kind == OfProtocol {
		return protocolWords[t.Proto]
	}
	text := ""
	if t.Proto != AnyProtocol {
		text = protocolWords[t.Proto] + " "
	}
	if t.Direction != Either {
		text += directionWords[t.Direction] + " "
	}
	return text + kindWords[t.Kind] + " " + t.value()
}

func (t Term) value() string {
	switch t.Kind {
	case Host:
		return t.Net.Addr().String()
	case Network:
		return t.Net.String()
	case Port:
		return fmt.Sprint(t.FirstPort)
	}
	return fmt.Sprintf("%d-%d", t.FirstPort, t.LastPort)
}

// MaxWords is the most words and parentheses of a filter, which bounds the program
// that is made of it.
const MaxWords = 256

// MaxDepth is how deep parentheses and nots may lie in each other.
const MaxDepth = 32

// token is a word or a parenthesis. The n-th is called word n in errors.
type token struct {
	n    int
	text string
}

// fail says what is wrong with a word.
func (t token) fail(format string, args ...any) error {
	return fmt.Errorf("filter: word %d %.64q: %s", t.n, t.text, fmt.Sprintf(format, args...))
}

// tokens takes words apart: an argument of the command line may hold several, or
// parentheses that touch them.
func tokens(words []string) ([]token, error) {
	spaced := strings.NewReplacer("(", " ( ", ")", " ) ")
	var ts []token
	for _, word := range words {
		for _, text := range strings.Fields(spaced.Replace(word)) {
			t := token{len(ts) + 1, text}
			if len(ts) == MaxWords {
				return nil, t.fail("a filter has at most %d words and parentheses: use nets and port ranges", MaxWords)
			}
			if err := t.check(); err != nil {
				return nil, err
			}
			ts = append(ts, t)
		}
	}
	return ts, nil
}

var (
	// keywords are all that a filter is made of, but for addresses and numbers.
	keywords = []string{"host", "net", "port", "portrange", "src", "dst", "tcp", "udp", "icmp", "ip", "ip6", "and", "or", "not", "(", ")"}
	// foreign are the words of pcap-filter(7) that natkit does not know.
	foreign = strings.Fields("ether fddi tr wlan arp rarp decnet sctp icmp6 igmp igrp pim vrrp carp ah esp atalk aarp lat " +
		"moprc mopdl iso esis isis clnp stp ipx netbeui proto protochain gateway broadcast multicast mask less greater len " +
		"inbound outbound ifname on ifindex rnr rulenum reason rset ruleset srnr subrulenum action vlan mpls pppoed pppoes " +
		"geneve vxlan link type subtype dir direction addr1 addr2 addr3 addr4 ra ta lane vpi vci byte")
)

// operators maps what C and pcap-filter(7) write to the words for it.
var operators = []struct{ sign, word string }{{"&&", "and"}, {"||", "or"}, {"!", "not"}}

// Words are those that a filter is made of, but for addresses, numbers and parentheses.
func Words() []string { return slices.Clone(keywords[:len(keywords)-2]) }

func (t token) keyword() bool { return slices.Contains(keywords, t.text) }

// check refuses words that can be nothing in a filter, whatever is around them.
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
