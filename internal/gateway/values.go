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
		if _, e := netip.ParsePrefix(text); e == nil {
			return document.Advice("one address is meant here; netmap is for prefixes")
		}
		return err
	})
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
	switch {
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
			if slices.Contains(*names, text) {
				return document.Advice("it is there twice")
			}
			*names = append(*names, text)
			return checkName(text)
		})
	})
}

// parseOn reads an address or a name.
func parseOn(text string) (On, error) {
	a, err := parseAddr(text)
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
		return Endpoint{}, document.Advice("an address of IPv6 before a port stands in brackets, one of IPv4 does not")
	}
	number, err := portNumber(port)
	return Endpoint{a, number}, err
}

func cutLast(text, sep string) (before, after string, found bool) {
	at := strings.LastIndex(text, sep)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(sep):], true
}

func portNumber(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
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
	if e.Port == 0 {
		return e.Address.String()
	}
	return netip.AddrPortFrom(e.Address, e.Port).String()
}
