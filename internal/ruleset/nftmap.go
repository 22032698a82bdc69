package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// selectors are the fields that nft looks up in maps and, several together, in sets, as far as rules of NAT have them.
var selectors = map[string]bool{
	"iifname": true, "oifname": true, "iif": true, "oif": true, "meta iifname": true, "meta oifname": true,
	"ip saddr": true, "ip daddr": true, "ip6 saddr": true, "ip6 daddr": true, "ip protocol": true, "meta l4proto": true,
	"meta mark": true, "ip dscp": true, "ip6 dscp": true, "meta skuid": true, "meta skgid": true,
	"th dport": true, "th sport": true, "tcp dport": true, "tcp sport": true, "udp dport": true, "udp sport": true, "sctp dport": true, "sctp sport": true,
}

// lookups is a place in a rule where fields are looked up in the elements of a map or a set.
type lookups struct {
	// fields are the words from start on, of each field; the elements end before end.
	fields     [][]string
	start, end int
	elements   []string
	// verdict is true of a verdict map, value of one whose values are addresses and ports.
	verdict, value bool
}

// expand writes a rule that looks several fields up, or one in a map, as a rule for each element.
func (p *nftReader) expand(words []string) ([][]string, error) {
	l, err := p.lookups(words)
	if err != nil || l == nil {
		return [][]string{words}, err
	}
	if len(l.elements) == 0 {
		return nil, errors.New(NoWord + "a map or set without elements, which nothing is in")
	}
	if !p.budget.Makes(len(l.elements)) {
		return nil, errSets
	}
	var all [][]string
	for _, e := range l.elements {
		one, err := l.with(words, e)
		if err != nil {
			return nil, err
		}
		some, err := p.expand(one)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// lookups finds the first place; nil if there is none that is understood.
func (p *nftReader) lookups(words []string) (*lookups, error) {
	for i, w := range words {
		l := lookups{start: i, verdict: w == "vmap", value: w == "map"}
		set := w == "{" || strings.HasPrefix(w, "@")
		if !l.verdict && !l.value && !set {
			continue
		}
		for before := i; ; {
			n := 2
			if before < 2 || !selectors[strings.Join(words[before-2:before], " ")] {
				if n = 1; before < 1 || !selectors[words[before-1]] {
					break
				}
			}
			l.start = before - n
			l.fields = slices.Insert(l.fields, 0, words[l.start:before])
			if l.start == 0 || words[l.start-1] != "." {
				break
			}
			before = l.start - 1
		}
		if set && len(l.fields) < 2 || len(l.fields) == 0 {
			continue
		}
		at := i
		if !set {
			at++
		}
		var known bool
		if l.elements, l.end, known = p.elementsAt(words, at); !known {
			return nil, fmt.Errorf("%sthe map or set %s: its elements are not in the text, or come and go", NoWord, strings.Join(words[at:min(at+1, len(words))], ""))
		}
		return &l, nil
	}
	return nil, nil
}

// elementsAt are those of the set that begins at a word, or that is named there.
func (p *nftReader) elementsAt(words []string, at int) (list []string, end int, known bool) {
	switch {
	case at >= len(words):
		return nil, 0, false
	case words[at] != "{":
		list, known = p.sets[words[at]]
		return list, at + 1, known
	}
	n := slices.Index(words[at:], "}")
	if n < 0 {
		return nil, 0, false
	}
	return elements(words[at : at+n+1]), at + n + 1, true
}

// with is the rule for one element.
func (l *lookups) with(words []string, element string) ([]string, error) {
	key, value, mapped := strings.Cut(element, " : ")
	for _, more := range []string{" counter ", " timeout ", " expires ", " comment "} { // of the key
		key, _, _ = strings.Cut(key, more)
	}
	parts := strings.Split(key, " . ")
	if len(parts) != len(l.fields) || mapped != (l.verdict || l.value) {
		return nil, errMap
	}
	var conditions []string
	for i, f := range l.fields {
		if parts[i] = strings.Trim(strings.TrimSpace(parts[i]), `"`); parts[i] == "*" {
			return nil, errors.New(NoWord + "an element of a map for all that is no other one")
		}
		conditions = append(append(conditions, f...), parts[i])
	}
	switch {
	case l.verdict:
		return slices.Concat(words[:l.start], conditions, strings.Fields(value), words[l.end:]), nil
	case !l.value:
		return slices.Concat(words[:l.start], conditions, words[l.end:]), nil
	}
	first := l.start - 1
	for first >= 0 && words[first] != "dnat" && words[first] != "snat" {
		first--
	}
	if first < 0 {
		return nil, errMap
	}
	return slices.Concat(words[:first], conditions, words[first:l.start], []string{endpoint(value)}, words[l.end:]), nil
}

// endpoint is an address, and a port behind a dot, as a rule has them.
func endpoint(value string) string {
	address, port, both := strings.Cut(strings.TrimSpace(value), " . ")
	if !both {
		return address
	}
	if strings.Contains(address, ":") {
		return "[" + address + "]:" + port
	}
	return address + ":" + port
}

// chances begin what chooses one of several destinations.
var chances = []string{"numgen", "jhash", "symhash"}

// drawn reads one of several destinations, which a number chooses that is counted, drawn or a hash: numgen inc mod 2
// map { 0 : 10.0.0.1, 1 : 10.0.0.2 }.
func (r *nftRule) drawn(t *Target) error {
	at := slices.Index(r.words, "map")
	if at < 0 || at+1 >= len(r.words) {
		return errMap
	}
	p := nftReader{r.sets, r.budget}
	list, end, known := p.elementsAt(r.words, at+1)
	if !known {
		return errMap
	}
	t.Hashed = r.words[1] == "jhash"
	first, modulus, total := uint32(0), numberBehind(r.words[:at], "mod"), uint64(0)
	if slices.Contains(r.words[:at], "offset") {
		first = numberBehind(r.words[:at], "offset")
	}
	for _, e := range list {
		key, value, ok := strings.Cut(e, " : ")
		numbers, good := parseIDs(strings.TrimSpace(key))
		if !ok || !good || numbers.First < first || uint64(numbers.Last) >= uint64(first)+uint64(modulus) {
			return errMap
		}
		total += uint64(numbers.Last-numbers.First) + 1
		address, port, err := drawnEndpoint(value, r.version)
		if err != nil {
			return err
		}
		t.Drawn = append(t.Drawn, snapshot.Drawn{Address: address, Port: port, Numbers: numbers.Last - numbers.First + 1})
	}
	if total != uint64(modulus) {
		return errors.New(NoWord + "a map without a destination for each number that is drawn")
	}
	r.words = r.words[end:]
	return nil
}

// numberBehind is the number behind a word; 0 where there is none.
func numberBehind(words []string, word string) uint32 {
	i := slices.Index(words, word)
	if i < 0 || i+1 >= len(words) {
		return 0
	}
	n, ok := parseIDs(words[i+1])
	if !ok || n.First != n.Last {
		return 0
	}
	return n.First
}

func drawnEndpoint(value string, version int) (netip.Addr, uint16, error) {
	var t Target
	err := t.addresses(endpoint(value), version)
	if err == nil && (t.First != t.Last || t.Ports.First != t.Ports.Last) {
		err = errMap
	}
	return t.First, t.Ports.First, err
}

// marked, owned and classed are conditions on what no field of textRule has.
func (r *nftRule) marked() error {
	mask, masked := "", false
	if len(r.words) > 2 && (r.words[0] == "&" || r.words[0] == "and") {
		mask, masked, r.words = r.words[1], true, r.words[2:]
	}
	if len(r.words) > 0 && r.words[0] == "set" {
		r.unknown("meta mark " + r.markSet())
		return nil
	}
	list, not, err := r.values()
	if err != nil || len(list) != 1 {
		r.unknown("meta mark " + strings.Join(list, ", "))
		return err
	}
	text := list[0]
	if masked {
		text += "/" + mask
	}
	k, err := parseMark(text)
	r.rule.Match.asks(MarkCondition{Value: k.Value, Mask: k.Mask, Not: not}, "meta mark "+notText(not)+text)
	return err
}

// markSet is what a mark is set to, which may be the other one.
func (r *nftRule) markSet() string {
	for at, w := range r.words {
		if w == "mark" {
			text := strings.Join(r.words[:at+1], " ")
			r.words = r.words[at+1:]
			return text
		}
		if at == 2 {
			break
		}
	}
	return r.rest()
}

// marksConnection is a condition on the connection's mark, or what sets that.
func (r *nftRule) marksConnection() error {
	if slices.Contains(r.words, "vmap") {
		return r.verdictMap()
	}
	if len(r.words) > 0 && r.words[0] == "set" {
		r.unknown("ct mark " + r.markSet())
		return nil
	}
	r.unknown("ct mark " + r.rest())
	return nil
}

func owned(group bool) func(r *nftRule) error {
	return func(r *nftRule) error {
		list, not, err := r.values()
		c := OwnerCondition{Group: group, Not: not}
		text := "meta skuid " + notText(not) + strings.Join(list, ", ")
		for _, one := range list {
			ids, ok := parseIDs(one)
			if !ok {
				r.unknown(text)
				return err
			}
			c.Of = append(c.Of, ids)
		}
		r.rule.Match.asks(c, text)
		return err
	}
}

func classed(version int) func(r *nftRule) error {
	return func(r *nftRule) error {
		if err := r.only(version); err != nil {
			return err
		}
		list, not, err := r.values()
		c := DSCPCondition{Not: not}
		for _, one := range list {
			point, e := nat.ParseDSCP(one)
			c.Points, err = append(c.Points, point), errors.Join(err, e)
		}
		r.rule.Match.asks(c, "dscp "+notText(not)+strings.Join(list, ", "))
		return err
	}
}

// state is that of the connection: new, or new,related.
func (r *nftRule) state() error {
	if len(r.words) > 0 && r.words[0] == "vmap" {
		return r.verdictMap()
	}
	list, not, err := r.values()
	var names []string
	for _, one := range list {
		names = append(names, strings.Split(one, ",")...)
	}
	return errors.Join(err, r.states(names, not, "ct state "+notText(not)+strings.Join(names, ",")))
}
