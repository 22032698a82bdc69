// Package filter reads packet filters in the words of pcap-filter(7), those of them
// that it knows, and tells which packets they match. What it does not know is an
// error: what it accepts means what it means to tcpdump.
package filter

import (
	"fmt"
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
