package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/prefix"
)

// Words for what was expected, in errors.
const (
	prefixWords   = "an address or a prefix such as 192.168.0.0/16"
	addressWords  = "an address such as 203.0.113.7"
	rangeWords    = "an address, a range or a prefix such as 203.0.113.7, 203.0.113.8-203.0.113.15 or 203.0.113.32/27"
	onWords       = "an address, a role (wan, lan) or an interface, such as 203.0.113.7 or wan"
	endpointWords = "an address with or without a port, such as 172.17.0.2:80 or \"[fd00::2]:80\""
	nameWords     = "the name of a role (wan, lan) or an interface"
)

// errAddress is the fault of text that no host has as its address.
var errAddress = errors.New("not an address")

// parseAddr reads an address without a zone; one of IPv4 is written as such.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return netip.Addr{}, errAddress
	case a.Zone() != "":
		return netip.Addr{}, document.Advice("an address of a zone cannot be translated; leave out %" + a.Zone())
	case a.Is4In6():
		return netip.Addr{}, document.Advice("write it " + a.Unmap().String())
	}
	return a, nil
}

// parsePrefix reads an address or a prefix. A prefix with bits of a host set is an
// error that says which prefix that would be.
func parsePrefix(text string) (Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := parseAddr(text)
		if err != nil {
			return Prefix{}, err
		}
		return Prefix{netip.PrefixFrom(a, a.BitLen())}, nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		return Prefix{}, errAddress
	case p != p.Masked():
		return Prefix{}, document.Advice(fmt.Sprintf("bits of a host are set; the prefix is %s", p.Masked()))
	}
	return Prefix{p}, nil
}

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Prefix) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, prefixWords, func(text string) (err error) {
		*p, err = parsePrefix(text)
		return err
	})
}

// String is the written form: the address alone where it is one.
func (p Prefix) String() string { return prefix.Text(p.Prefix) }

// UnmarshalYAML reads one or a list.
func (p *Prefixes) UnmarshalYAML(n *yaml.Node) error {
	*p = nil
	return document.List(n, func(item *yaml.Node) error {
		var one Prefix
		if err := one.UnmarshalYAML(item); err != nil {
			return err
		}
		*p = append(*p, one)
		return nil
	})
}

// UnmarshalYAML reads it and keeps the place for an error.
func (a *Address) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, addressWords, func(text string) (err error) {
		a.Addr, err = parseAddr(text)
		if p, e := netip.ParsePrefix(text); e == nil {
			return oneAddress(p)
		}
		return err
	})
}

// oneAddress tells what to write instead of a prefix where one address is meant.
func oneAddress(p netip.Prefix) error {
	if p.IsSingleIP() {
		return document.Advice("write " + p.Addr().String())
	}
	return document.Advice("one address is meant here; netmap is for prefixes")
}

// parseRange reads 203.0.113.7, 203.0.113.8-203.0.113.15 or 203.0.113.32/27.
func parseRange(text string) (Range, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		p, err := parsePrefix(text)
		if err != nil {
			return Range{}, err
		}
		return RangeOf(p.Prefix), nil
	}
	a, err := parseAddr(strings.TrimSpace(first))
	if err != nil {
		return Range{}, err
	}
	b, err := parseAddr(strings.TrimSpace(last))
	switch {
	case err != nil:
		return Range{}, err
	case a.Is4() != b.Is4():
		return Range{}, document.Advice("one end is of IPv4, the other of IPv6")
	case b.Less(a):
		return Range{}, document.Advice("the end comes before the beginning")
	}
	return Range{a, b}, nil
}

// RangeOf is all addresses of a prefix.
func RangeOf(p netip.Prefix) Range { return Range{p.Masked().Addr(), prefix.Last(p)} }

// UnmarshalYAML reads one or a list.
func (r *Ranges) UnmarshalYAML(n *yaml.Node) error {
	*r = nil
	return document.List(n, func(item *yaml.Node) error {
		return document.Scalar(item, rangeWords, func(text string) error {
			one, err := parseRange(text)
			*r = append(*r, one)
			return err
		})
	})
}

// checkName tells what is wrong with the name of an interface (dev_valid_name in
// net/core/dev.c), and what was meant for an address.
func checkName(name string) error {
	const longest = 15 // IFNAMSIZ-1
	if p, err := netip.ParsePrefix(name); err == nil {
		return oneAddress(p)
	}
	switch {
	case strings.HasSuffix(name, "*") || strings.HasSuffix(name, "+"):
		begin := strings.TrimRight(name, "*+")
		return document.Advice(fmt.Sprintf("there are no patterns: name each interface, such as %s0 and %[1]s1", begin))
	case strings.Trim(name, "0123456789.") == "" || strings.ContainsAny(name, ":%"):
		return document.Advice("neither an address nor a name")
	case name == "" || len(name) > longest || strings.ContainsAny(name, "/, \t\n\v\f\r\"\\") || !isPrintable(name):
		return document.Advice("a name has at most 15 characters, and no space, comma, slash or colon")
	}
	return nil
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// UnmarshalYAML reads one or a list.
func (names *Names) UnmarshalYAML(n *yaml.Node) error {
	*names = nil
	return document.List(n, func(item *yaml.Node) error {
		return document.Scalar(item, nameWords, func(text string) error {
			switch {
			case slices.Contains(*names, text):
				return document.Advice("it is there twice")
			case len(*names) == mostInterfaces:
				return document.Advice(tooManyInterfaces)
			}
			*names = append(*names, text)
			return checkName(text)
		})
	})
}

// parseOn reads an address or a name.
func parseOn(text string) (On, error) {
	a, err := parseAddr(text)
	if both, e := netip.ParseAddrPort(text); e == nil {
		return On{}, document.Advice(fmt.Sprintf("a port has a field of its own: write on: %s, port: tcp/%d", both.Addr(), both.Port()))
	}
	switch {
	case err == nil:
		return On{Address: a}, nil
	case errors.Is(err, errAddress):
		return On{Name: text}, checkName(text)
	}
	return On{}, err
}

// UnmarshalYAML reads it and keeps the place for an error.
func (o *On) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, onWords, func(text string) (err error) {
		*o, err = parseOn(text)
		return err
	})
}

func (o On) String() string {
	if o.Address.IsValid() {
		return o.Address.String()
	}
	return o.Name
}

// parseEndpoint reads 172.17.0.2, 172.17.0.2:80, fd00::2 or [fd00::2]:80.
func parseEndpoint(text string) (Endpoint, error) {
	if host, port, ambiguous := portlike(text); ambiguous {
		return Endpoint{}, document.Advice(fmt.Sprintf("write \"[%s]:%s\" for that port, or \"[%s]\" for the address", host, port, text))
	}
	a, err := parseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err == nil {
		return Endpoint{Address: a}, nil
	}
	host, port, ok := cutLast(text, ":")
	if !ok {
		return Endpoint{}, err
	}
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	a, err = parseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return Endpoint{}, err
	}
	if a.Is6() != bracketed {
		return Endpoint{}, document.Advice(fmt.Sprintf("write %q", withPort(a, port)))
	}
	number, err := portNumber(port)
	return Endpoint{a, number}, err
}

// portlike reports whether the last number of an address of IPv6 may be meant for a port,
// as in fd00::2:80, and what would be the address then.
func portlike(text string) (host, port string, ambiguous bool) {
	a, err := netip.ParseAddr(text)
	host, port, _ = cutLast(text, ":")
	before, e := netip.ParseAddr(host)
	_, number := portNumber(port)
	return host, port, err == nil && e == nil && number == nil && a.Is6() && before.Is6()
}

func cutLast(text, sep string) (before, after string, found bool) {
	at := strings.LastIndex(text, sep)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(sep):], true
}

func withPort(a netip.Addr, port string) string {
	if a.Is6() {
		return "[" + a.String() + "]:" + port
	}
	return a.String() + ":" + port
}

func portNumber(text string) (uint16, error) {
	if service := services[strings.ToLower(text)]; service != 0 {
		return 0, document.Advice(fmt.Sprintf("names of services are not known: write the port, %d", service))
	}
	n, err := strconv.ParseUint(text, 10, 16)
	switch first, last, colon := strings.Cut(text, ":"); {
	case strings.Contains(text, ","):
		return 0, document.Advice("one port or one range is meant; repeat what it belongs to for each of the others")
	case colon && first != "" && last != "":
		return 0, document.Advice("a range has a hyphen: write " + first + "-" + last)
	case err != nil || n == 0:
		return 0, document.Advice("ports are 1 to 65535")
	}
	return uint16(n), nil
}

// UnmarshalYAML reads it and keeps the place for an error.
func (e *Endpoint) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, endpointWords, func(text string) (err error) {
		*e, err = parseEndpoint(text)
		return err
	})
}

func (e Endpoint) String() string {
	if _, _, ambiguous := portlike(e.Address.String()); ambiguous && e.Port == 0 {
		return "[" + e.Address.String() + "]"
	}
	if e.Port == 0 {
		return e.Address.String()
	}
	return netip.AddrPortFrom(e.Address, e.Port).String()
}
