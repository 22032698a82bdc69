package ruleset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// textRule is one rule of a text while it is read, by iptables' words or nft's. A list of
// addresses, interfaces or protocols makes several rules of it, at the end.
type textRule struct {
	words     []string
	version   int
	budget    *Budget
	rule      Rule
	from, to  []netip.Prefix
	in, out   []string
	protocols []uint8
}

func (r *textRule) next() string {
	w := r.words[0]
	r.words = r.words[1:]
	return w
}

var errSets = errors.New("has lists or sets that make too many rules of it to follow")

// all are the rules for each of its addresses, interfaces and protocols.
func (r *textRule) all() (rules []*Rule, err error) {
	from, to, in, out, protocols := orAny(r.from), orAny(r.to), orAny(r.in), orAny(r.out), orAny(r.protocols)
	n := float64(len(from)) * float64(len(to)) * float64(len(in)) * float64(len(out)) * float64(len(protocols))
	if n > mostRules || !r.budget.Makes(int(n)-1) {
		return nil, errSets
	}
	for i := range int(n) {
		one, at := r.rule, i
		one.Match.Protocol, at = protocols[at%len(protocols)], at/len(protocols)
		one.Match.Out, at = Some(out[at%len(out)]), at/len(out)
		one.Match.In, at = Some(in[at%len(in)]), at/len(in)
		one.Match.To, at = Some(to[at%len(to)]), at/len(to)
		one.Match.From = Some(from[at])
		if len(one.Match.Ports)+len(one.Match.SourcePorts) > 0 && !nat.HasPorts(one.Match.Protocol) {
			one.Match.Unknown, one.Match.Opaque = append(slices.Clip(one.Match.Unknown), "ports of several protocols"), true
		}
		rules = append(rules, &one)
	}
	return rules, nil
}

// orAny is a list, or one zero value, which stands for any.
func orAny[T any](list []T) []T {
	if len(list) == 0 {
		return make([]T, 1)
	}
	return list
}

func (r *textRule) unknown(condition string) {
	r.rule.Match.Unknown, r.rule.Match.Opaque = append(r.rule.Match.Unknown, condition), true
}

// takeList is the condition that a value is in a list, or in none of it.
func takeList[T any](is, isNot *[]T, list []T, not bool) error {
	switch {
	case not:
		*isNot = append(*isNot, list...)
	case len(*is) > 0:
		return errors.New("has two conditions on the same field")
	default:
		*is = list
	}
	return nil
}

// source and destination take addresses, prefixes and ranges, inward and outward names of
// interfaces.
func (r *textRule) source(texts []string, not bool) error {
	return r.addresses(&r.from, &r.rule.Match.NotFrom, texts, not)
}

func (r *textRule) destination(texts []string, not bool) error {
	return r.addresses(&r.to, &r.rule.Match.NotTo, texts, not)
}

func (r *textRule) inward(names []string, not bool) error {
	return takeList(&r.in, &r.rule.Match.NotIn, names, not)
}

func (r *textRule) outward(names []string, not bool) error {
	return takeList(&r.out, &r.rule.Match.NotOut, names, not)
}

func (r *textRule) addresses(is, isNot *[]netip.Prefix, texts []string, not bool) error {
	var all []netip.Prefix
	for _, one := range texts {
		some, err := prefixesIn(one, r.version)
		switch {
		case err != nil:
			return err
		case !r.budget.Makes(len(some) - 1):
			return errSets
		}
		all = append(all, some...)
	}
	if !not && len(all) == 1 && all[0].Bits() == 0 { // any
		return nil
	}
	return takeList(is, isNot, all, not)
}

// states is the condition that a connection has one of them, or none.
func (r *textRule) states(names []string, not bool, text string) error {
	c := ConnCondition{Not: not}
	for _, name := range names {
		bit, known := states[strings.ToUpper(name)]
		if !known {
			r.unknown(text)
			return nil
		}
		c.Any |= bit
	}
	r.rule.Match.note(text)
	r.rule.Match.Conn = append(r.rule.Match.Conn, c)
	return nil
}

// parseIDs reads 33 and 1000-1999.
func parseIDs(v string) (nat.IDs, bool) {
	first, last, ranged := strings.Cut(v, "-")
	if !ranged {
		last = first
	}
	a, errA := nat.ParseNumber(first)
	b, errB := nat.ParseNumber(last)
	return nat.IDs{First: a, Last: b}, errA == nil && errB == nil && a <= b
}

// parseMark reads 16, 0x10 and 0x10/0xf0.
func parseMark(v string) (k nat.Mark, err error) {
	value, mask, masked := strings.Cut(v, "/")
	k.Mask = math.MaxUint32
	if k.Value, err = nat.ParseNumber(value); err == nil && masked {
		k.Mask, err = nat.ParseNumber(mask)
	}
	return k, err
}

func (r *textRule) protocol(texts []string, not bool) error {
	if not {
		for _, one := range texts {
			protocol, err := protocolNumber(one)
			if err != nil {
				return err
			}
			r.rule.Match.asks(ProtocolCondition{protocol}, "protocols other than "+one)
		}
		return nil
	}
	var all []uint8
	for _, one := range texts {
		protocol, err := protocolNumber(one)
		if err != nil {
			return err
		}
		all = append(all, protocol)
	}
	return r.protocolsAre(all...)
}

func (r *textRule) protocolsAre(all ...uint8) error {
	if len(r.protocols) > 0 && !slices.Equal(r.protocols, all) {
		return errors.New(NoWord + "two conditions on the protocol")
	}
	r.protocols = all
	return nil
}

func (r *textRule) ports(texts []string, not bool) error {
	if not {
		c := PortsCondition{Not: true}
		for _, one := range texts {
			ports, err := parsePorts(one)
			if err != nil {
				return err
			}
			c.Ports = append(c.Ports, ports)
		}
		r.rule.Match.asks(c, "ports other than "+strings.Join(texts, ", "))
		return nil
	}
	return r.portList(&r.rule.Match.Ports, texts, not)
}

func (r *textRule) sourcePorts(texts []string, not bool) error {
	return r.portList(&r.rule.Match.SourcePorts, texts, not)
}

func (r *textRule) portList(list *[]nat.Ports, texts []string, not bool) error {
	if not || len(*list) > 0 {
		r.unknown("ports other than " + strings.Join(texts, ", "))
		return nil
	}
	for _, one := range texts {
		ports, err := parsePorts(one)
		if err != nil {
			return err
		}
		*list = append(*list, ports)
	}
	return nil
}

// netmap reads the prefix that NETMAP gives.
func (t *Target) netmap(to string, version int) error {
	p, err := parsePrefix(to, version)
	t.First, t.Last = p.Addr(), nat.LastAddr(p)
	return err
}

// addresses reads 203.0.113.7, 203.0.113.7-203.0.113.9:1024-65535, :80, [fd00::1]:80.
func (t *Target) addresses(v string, version int) (err error) {
	addrs, ports := v, ""
	if version == 4 {
		addrs, ports, _ = strings.Cut(v, ":")
	} else if inner, ok := strings.CutPrefix(v, "["); ok {
		addrs, ports, ok = strings.Cut(inner, "]")
		if !ok {
			return fmt.Errorf("%q: the bracket is not closed", v)
		}
		ports = strings.TrimPrefix(ports, ":")
	}
	if addrs != "" {
		r, err := parseRange(addrs, version)
		if err != nil {
			return err
		}
		t.First, t.Last = r.First, r.Last
	}
	if ports == "" {
		return nil
	}
	ports, base, shifted := strings.Cut(ports, "/")
	if shifted { // by as much as the port asked for differs from the base
		if t.Base, err = parsePort(base); err != nil {
			return err
		}
	}
	t.Ports, err = givenPorts(ports)
	return err
}

// givenPorts reads 80 and 1024-65535.
func givenPorts(s string) (nat.Ports, error) {
	p, err := parsePorts(s)
	if err == nil && (p.First == 0 || strings.Contains(s, ":") || strings.HasSuffix(s, "-")) {
		err = fmt.Errorf("the ports %s are no range", s)
	}
	return p, err
}

func parseAddress(s string, version int) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Is4() != (version == 4) || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an address of IPv%d", s, version)
	}
	return a, nil
}

// parseRange reads an address or FIRST-LAST.
func parseRange(text string, version int) (r nat.AddrRange, err error) {
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	if r.First, err = parseAddress(first, version); err != nil {
		return r, err
	}
	if r.Last, err = parseAddress(last, version); err == nil && r.Last.Less(r.First) {
		err = fmt.Errorf("%q ends before it begins", text)
	}
	return r, err
}

// prefixesIn reads an address, a prefix or a range.
func prefixesIn(text string, version int) ([]netip.Prefix, error) {
	if strings.Contains(text, "-") {
		r, err := parseRange(text, version)
		if err != nil {
			return nil, err
		}
		return r.Prefixes(), nil
	}
	p, err := parsePrefix(text, version)
	return []netip.Prefix{p}, err
}

// parsePrefix reads an address, a prefix, or an address with a netmask.
func parsePrefix(s string, version int) (netip.Prefix, error) {
	addr, mask, masked := strings.Cut(s, "/")
	a, err := parseAddress(addr, version)
	if err != nil {
		return netip.Prefix{}, err
	}
	if !masked {
		return nat.Host(a), nil
	}
	bits, err := strconv.Atoi(mask)
	if err != nil {
		if bits, err = maskBits(mask); err != nil {
			return netip.Prefix{}, fmt.Errorf("%q: %w", s, err)
		}
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return p, fmt.Errorf("%q is not a prefix", s)
	}
	return p, nil
}

// maskBits is the length of a netmask without holes.
func maskBits(s string) (int, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is4() {
		return 0, fmt.Errorf("%q is not a netmask", s)
	}
	m := binary.BigEndian.Uint32(a.AsSlice())
	bits := 0
	for m&(1<<31) != 0 {
		m, bits = m<<1, bits+1
	}
	if m != 0 {
		return 0, fmt.Errorf("the netmask %s has holes, which natkit has no word for", s)
	}
	return bits, nil
}

// protocolNumber is a protocol by its name or number; 0 for all.
func protocolNumber(v string) (uint8, error) {
	if strings.ToLower(v) == "all" {
		return 0, nil
	}
	n, err := nat.ParseProtocol(v)
	if err != nil {
		return 0, fmt.Errorf("natkit does not know the protocol %q: iptables-save prints its number", v)
	}
	return n, nil
}

// services are the names that people use most; iptables-save prints numbers.
var services = map[string]uint16{"ssh": 22, "smtp": 25, "domain": 53, "http": 80, "https": 443}

func parsePort(s string) (uint16, error) {
	if n, ok := services[s]; ok {
		return n, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port: iptables-save prints names as numbers", s)
	}
	return uint16(n), nil
}

// parsePorts reads 80, 8000:8100, of which an end may be missing, and 8000-8100.
func parsePorts(s string) (all nat.Ports, err error) {
	low, high, both := strings.Cut(strings.Replace(s, "-", ":", 1), ":")
	if !both {
		high = low
	}
	all = nat.AllPorts
	if low != "" || !both {
		if all.First, err = parsePort(low); err != nil {
			return all, err
		}
	}
	if high != "" || !both {
		if all.Last, err = parsePort(high); err != nil {
			return all, err
		}
	}
	if all.First > all.Last {
		err = fmt.Errorf("the ports %s end before they begin", s)
	}
	return all, err
}
