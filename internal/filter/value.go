package filter

import (
	"net/netip"
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
