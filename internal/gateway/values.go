package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
	"go.yaml.in/yaml/v4"
)

// Words for what was expected, in errors.
const (
	prefixWords   = "an address or a prefix such as 192.168.0.0/16"
	addressWords  = "an address such as 203.0.113.7"
	rangeWords    = "an address, a range or a prefix such as 203.0.113.7, 203.0.113.8-203.0.113.15 or 203.0.113.32/27"
	onWords       = "an address, a role (wan, lan), an interface or any, such as 203.0.113.7 or wan"
	endpointWords = "an address with or without a port, such as 172.17.0.2:80 or \"[fd00::2]:80\""
	nameWords     = "a role (wan, lan) or interfaces such as eth0, ppp* or group 10"
	markWords     = "a mark such as 0x10, or 0x10/0xf0 with the bits that count"
	idWords       = "the number of a user or a group, or a range such as 1000-1999"
	dscpWords     = "a DSCP: a name such as ef or af41, or a number from 0 to 63"
)

// scalar reads a value by its parser and keeps the place for an error.
func scalar[T any](n *yaml.Node, expected string, into *T, parse func(text string) (T, error)) error {
	return document.Scalar(n, expected, func(text string) (err error) {
		*into, err = parse(text)
		return err
	})
}

// list reads one value or a list of them.
func list[S ~[]T, T any](n *yaml.Node, into *S, read func(item *yaml.Node, one *T) error) error {
	*into = nil
	return document.List(n, func(item *yaml.Node) error {
		var one T
		err := read(item, &one)
		*into = append(*into, one)
		return err
	})
}

// The values below read themselves from a file, and an error keeps its place.

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
		return Prefix{Prefix: netip.PrefixFrom(a, a.BitLen())}, nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		return Prefix{}, errAddress
	case p != p.Masked():
		return Prefix{}, document.Advice(fmt.Sprintf("bits of a host are set; the prefix is %s", p.Masked()))
	}
	return Prefix{Prefix: p}, nil
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *Prefix) UnmarshalYAML(n *yaml.Node) error { return scalar(n, prefixWords, p, parsePrefix) }

// String is the written form: the address alone where it is one.
func (p Prefix) String() string {
	if p.Set != "" {
		return "$" + p.Set
	}
	return nat.PrefixString(p.Prefix)
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *Prefixes) UnmarshalYAML(n *yaml.Node) error {
	return list(n, p, func(item *yaml.Node, one *Prefix) error {
		if name, is := document.SetName(item); is {
			one.Set = name
			return nil
		}
		return one.UnmarshalYAML(item)
	})
}

// MarshalText is the written form.
func (p Prefix) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalYAML is yaml.Unmarshaler.
func (a *Address) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, addressWords, &a.Addr, func(text string) (netip.Addr, error) {
		if p, err := netip.ParsePrefix(text); err == nil {
			return netip.Addr{}, oneAddress(p)
		}
		return parseAddr(text)
	})
}

// oneAddress returns the advice for a prefix where a single address is meant.
func oneAddress(p netip.Prefix) error {
	if p.IsSingleIP() {
		return document.Advice("write " + p.Addr().String())
	}
	return document.Advice("one address is meant here; netmap is for prefixes")
}

// parseRange reads 203.0.113.7, 203.0.113.8-203.0.113.15 or 203.0.113.32/27.
func parseRange(text string) (nat.AddrRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		p, err := parsePrefix(text)
		if err != nil {
			return nat.AddrRange{}, err
		}
		return nat.RangeOf(p.Prefix), nil
	}
	a, err := parseAddr(strings.TrimSpace(first))
	if err != nil {
		return nat.AddrRange{}, err
	}
	b, err := parseAddr(strings.TrimSpace(last))
	switch {
	case err != nil:
		return nat.AddrRange{}, err
	case a.Is4() != b.Is4():
		return nat.AddrRange{}, document.Advice("one end is of IPv4, the other of IPv6")
	case b.Less(a):
		return nat.AddrRange{}, document.Advice("the end comes before the beginning")
	}
	return nat.AddrRange{First: a, Last: b}, nil
}

// ParseRanges reads ranges of addresses, separated by commas, as they stand in a file.
func ParseRanges(text string) (all Ranges, err error) {
	for part := range strings.SplitSeq(text, ",") {
		r, err := parseRange(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// UnmarshalYAML is yaml.Unmarshaler.
func (r *Ranges) UnmarshalYAML(n *yaml.Node) error {
	return list(n, r, func(item *yaml.Node, one *nat.AddrRange) error { return scalar(item, rangeWords, one, parseRange) })
}

// checkName returns the advice for an invalid name of an interface (dev_valid_name in
// net/core/dev.c) or for what was meant as an address; nil for a valid one.
func checkName(name string) error {
	const longest = 15 // IFNAMSIZ-1
	if p, err := netip.ParsePrefix(name); err == nil {
		return oneAddress(p)
	}
	switch {
	case strings.HasPrefix(name, "group"):
		if _, is := nat.LinkGroup(name); is {
			return nil
		}
		if strings.Contains(name, " ") {
			return document.Advice("write group and the number of a link group, such as group 10")
		}
	case strings.HasSuffix(name, "+"):
		return document.Advice("write " + strings.TrimRight(name, "*+") + "*")
	case strings.Contains(strings.TrimSuffix(name, "*"), "*"):
		return document.Advice("one * stands at the end of a name")
	case name == "*":
		return document.Advice("these are all: leave it out")
	}
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

// UnmarshalYAML is yaml.Unmarshaler.
func (names *Names) UnmarshalYAML(n *yaml.Node) error {
	return list(n, names, func(item *yaml.Node, one *string) error {
		return scalar(item, nameWords, one, func(text string) (string, error) {
			switch {
			case slices.Contains(*names, text):
				return "", document.Advice("it is there twice")
			case len(*names) == mostInterfaces:
				return "", document.Advice(tooManyInterfaces)
			case oneKind(append((*names)[:len(*names):len(*names)], text)) != nil && text != RoleWAN && text != RoleLAN && !slices.Contains(*names, RoleWAN) && !slices.Contains(*names, RoleLAN):
				return "", document.Advice(errNamesAndGroups.Error())
			}
			return text, checkName(text)
		})
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (w *WANs) UnmarshalYAML(n *yaml.Node) error {
	err := list(n, w, func(item *yaml.Node, one *WAN) error {
		var err error
		if document.IsMapping(item) {
			var m wanMapping
			err = document.Mapping(item, &m)
			*one = WAN(m)
			one.Mapping = true
		} else {
			var name Names
			if err = name.UnmarshalYAML(item); err == nil {
				one.Interface = name[0]
			}
		}
		switch {
		case err != nil:
			return err
		case one.Interface == "":
			return document.At(item, "interface is missing: the name of an interface")
		case slices.Contains(w.Names(), one.Interface):
			return document.At(item, one.Interface+" is there twice")
		case len(*w) == mostInterfaces:
			return document.At(item, tooManyInterfaces)
		case one.Mapping && nat.IsSeveral(one.Interface):
			return document.At(item, errDivided)
		case oneKind(append(w.Names(), one.Interface)) != nil:
			return document.At(item, errNamesAndGroups.Error())
		}
		if bad := checkName(one.Interface); bad != nil {
			return document.At(item, fmt.Sprintf("interface %q: %v", one.Interface, bad))
		}
		return nil
	})
	if err == nil && w.divided() && slices.ContainsFunc(w.Names(), nat.IsSeveral) {
		err = document.At(n, errDivided)
	}
	return err
}

// UnmarshalYAML is yaml.Unmarshaler.
func (l *LANs) UnmarshalYAML(n *yaml.Node) error {
	return list(n, l, func(item *yaml.Node, one *LAN) error {
		if document.IsMapping(item) {
			var m lanMapping
			if err := document.Mapping(item, &m); err != nil {
				return err
			}
			*one = LAN(m)
			one.Mapping = true
		} else {
			var name Names
			if err := name.UnmarshalYAML(item); err != nil {
				return err
			}
			one.Interface = name[0]
		}
		bad := checkName(one.Interface)
		switch {
		case one.Interface == "":
			return document.At(item, "interface is missing: the name of an interface")
		case slices.Contains(l.Names(), one.Interface):
			return document.At(item, one.Interface+" is there twice")
		case len(*l) == mostInterfaces:
			return document.At(item, tooManyInterfaces)
		case one.Zone != "" && nat.IsSeveral(one.Interface):
			return document.At(item, "a zone has single interfaces: name each, with an entry of its own")
		case oneKind(append(l.Names(), one.Interface)) != nil:
			return document.At(item, errNamesAndGroups.Error())
		case bad != nil:
			return document.At(item, fmt.Sprintf("interface %q: %v", one.Interface, bad))
		}
		return nil
	})
}

// lanMapping is a LAN without its own way to be read.
type lanMapping LAN

// MarshalJSON is the name alone where it is written so.
func (l LAN) MarshalJSON() ([]byte, error) {
	if !l.Mapping {
		return json.Marshal(l.Interface)
	}
	return json.Marshal(lanMapping(l))
}

const errDivided = "connections are divided among single interfaces: name each, with an entry of its own"

// wanMapping is a WAN without its own way to be read.
type wanMapping WAN

// MarshalJSON is the name alone where it is written so.
func (w WAN) MarshalJSON() ([]byte, error) {
	if !w.Mapping {
		return json.Marshal(w.Interface)
	}
	return json.Marshal(wanMapping(w))
}

// UnmarshalYAML is yaml.Unmarshaler.
func (a *Addresses) UnmarshalYAML(n *yaml.Node) error {
	return list(n, a, func(item *yaml.Node, one *Address) error {
		if err := one.UnmarshalYAML(item); err != nil {
			return err
		}
		if slices.ContainsFunc(*a, func(o Address) bool { return o.BitLen() == one.BitLen() }) {
			return document.At(item, "one next hop of each family")
		}
		return nil
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (s *Share) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, fmt.Sprintf("a weight from 0 (used when all others are down) to %d", mostWeight), s, func(text string) (Share, error) {
		n, err := strconv.ParseUint(text, 10, 16)
		if err == nil && n > mostWeight {
			err = errNumber
		}
		return Share(n), err
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *Probe) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "an address that answers ping, or ADDRESS:PORT that takes TCP connections", p, func(text string) (Probe, error) {
		b, err := parseEndpoint(text)
		if err == nil && (!b.Address.IsValid() || b.Last != 0) {
			err = errAddress
		}
		return Probe{netip.AddrPortFrom(b.Address, b.Port)}, err
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (b *Bits) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "bits of a mark, one beside the other, such as 0xf000000", b, func(text string) (Bits, error) {
		v, err := parseBits(text)
		if low := v >> bits.TrailingZeros32(v|1<<31); err == nil && (v == 0 || low&(low+1) != 0 || low == 1) {
			err = document.Advice("two bits or more, one beside the other")
		}
		return Bits(v), err
	})
}

// String is the written form.
func (b Bits) String() string { return fmt.Sprintf("0x%x", uint32(b)) }

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

// UnmarshalYAML is yaml.Unmarshaler.
func (o *On) UnmarshalYAML(n *yaml.Node) error { return scalar(n, onWords, o, parseOn) }

func (o On) String() string {
	if o.Address.IsValid() {
		return o.Address.String()
	}
	return o.Name
}

// parseEndpoint reads 172.17.0.2, 172.17.0.2:80, 172.17.0.2:9000-9010, fd00::2, [fd00::2]:80 or :3128.
func parseEndpoint(text string) (nat.Backend, error) {
	if port, own := strings.CutPrefix(text, ":"); own && !strings.HasPrefix(port, ":") {
		number, err := portNumber(port)
		return nat.Backend{Port: number}, err
	}
	if host, port, ambiguous := portlike(text); ambiguous {
		return nat.Backend{}, document.Advice(fmt.Sprintf("write \"[%s]:%s\" for that port, or \"[%s]\" for the address", host, port, text))
	}
	a, err := parseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err == nil {
		return nat.Backend{Address: a}, nil
	}
	host, port, ok := cutLast(text, ":")
	if !ok {
		return nat.Backend{}, err
	}
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	a, err = parseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return nat.Backend{}, err
	}
	if a.Is6() != bracketed {
		return nat.Backend{}, document.Advice(fmt.Sprintf("write %q", withPort(a, port)))
	}
	if strings.Contains(port, " ") {
		return nat.Backend{}, document.Advice("there is no space in an address with a port")
	}
	first, last, err := parseSpan(port)
	if last == first {
		last = 0
	}
	return nat.Backend{Address: a, Port: first, Last: last}, err
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
		return service, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	switch first, last, colon := strings.Cut(text, ":"); {
	case strings.Contains(text, ","):
		return 0, document.Advice("several are a list: [tcp/80, tcp/443]")
	case colon && first != "" && last != "":
		return 0, document.Advice("a range has a hyphen: write " + first + "-" + last)
	case strings.Contains(text, "-") && !isServiceName(text):
		return 0, document.Advice("one port belongs here, not a range; without it each port stays what it is")
	case strings.ContainsFunc(text, unicode.IsLetter):
		return 0, unknownService(text)
	case err != nil || n == 0:
		return 0, document.Advice("ports are 1 to 65535")
	}
	return uint16(n), nil
}

// isServiceName reports whether text with a hyphen is a name, such as ipsec-nat-t, and no range from one service to another.
func isServiceName(text string) bool {
	first, last, hyphen := strings.Cut(strings.ToLower(text), "-")
	letter := func(text string) bool { return text != "" && unicode.IsLetter([]rune(text)[0]) }
	switch {
	case services[strings.ToLower(text)] != 0:
		return true
	case !hyphen || !letter(first):
		return false
	}
	return services[first] == 0 || letter(last) && services[last] == 0
}

// unknownService is about a name in the place of a port.
func unknownService(name string) error {
	if near := document.Nearest(name, slices.Sorted(maps.Keys(services))); near != "" {
		return document.Advice(fmt.Sprintf("unknown service %q: did you mean %s? of others write the number of the port", name, near))
	}
	return document.Advice(fmt.Sprintf("unknown service %q: write the number of its port, such as 8080", name))
}

const (
	mostBackends = 256
	// mostShifted bounds the ports that become others, each of which is an element of a map.
	mostShifted = 4096
	mostWeight  = 1000
)

// UnmarshalYAML is yaml.Unmarshaler.
func (b *Backends) UnmarshalYAML(n *yaml.Node) error {
	return list(n, b, func(item *yaml.Node, one *nat.Backend) error {
		var weighted struct {
			Address endpoint `yaml:"address"`
			Weight  Weight   `yaml:"weight"`
		}
		read := weighted.Address.UnmarshalYAML
		if document.IsMapping(item) {
			read = func(n *yaml.Node) error { return document.Mapping(n, &weighted) }
		}
		err := read(item)
		*one = nat.Backend(weighted.Address)
		one.Weight = uint32(weighted.Weight)
		switch {
		case err != nil:
			return err
		case !one.Address.IsValid() && one.Port == 0:
			return document.At(item, "expected address: "+endpointWords)
		case !one.Address.IsValid() && (len(*b) > 0 || one.Weight > 0), len(*b) > 0 && !(*b)[0].Address.IsValid():
			return document.At(item, "the gateway's own port stands alone: it is not one of several hosts to choose from")
		case one.Last != 0 && len(*b) > 0, len(*b) > 0 && (*b)[0].Last != 0:
			return document.At(item, errShiftedToSeveral.Error())
		case int(one.Last)-int(one.Port) >= mostShifted:
			return document.At(item, fmt.Sprintf("a range of ports becomes another of at most %d", mostShifted))
		case len(*b) == mostBackends:
			return document.At(item, fmt.Sprintf("a rule has at most %d hosts to choose from", mostBackends))
		case len(*b) > 0 && ((*b)[0].Port == 0) != (one.Port == 0):
			return document.At(item, "either each of several hosts has a port, or none has one")
		}
		return nil
	})
}

// endpoint is a backend without a weight.
type endpoint nat.Backend

func (e *endpoint) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, endpointWords, (*nat.Backend)(e), parseEndpoint)
}

// UnmarshalYAML is yaml.Unmarshaler.
func (w *Weight) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, fmt.Sprintf("a weight from 1 to %d", mostWeight), w, func(text string) (Weight, error) {
		n, err := strconv.ParseUint(text, 10, 32)
		if err == nil && (n == 0 || n > mostWeight) {
			err = errNumber
		}
		return Weight(n), err
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (b *Balance) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "round-robin or hash", b, func(text string) (Balance, error) {
		if text != string(nat.BalanceRoundRobin) && text != string(nat.BalanceHash) {
			return "", document.Unknown(text, string(nat.BalanceRoundRobin), string(nat.BalanceHash))
		}
		return Balance(text), nil
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (a *AllDown) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "reject or last", a, func(text string) (AllDown, error) {
		if text != string(nat.AllDownReject) && text != string(nat.AllDownLast) {
			return "", document.Unknown(text, string(nat.AllDownReject), string(nat.AllDownLast))
		}
		return AllDown(text), nil
	})
}

const longestPath = 200

// UnmarshalYAML is yaml.Unmarshaler.
func (p *URLPath) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a path such as /health", p, func(text string) (URLPath, error) {
		switch {
		case strings.Contains(text, "://"):
			return "", document.Advice("write the path alone, such as /health: address and port are those of each host, and TLS is not spoken")
		case !strings.HasPrefix(text, "/") || len(text) > longestPath || !isPrintable(text):
			return "", document.Advice(fmt.Sprintf("it begins with / and has up to %d characters, none of them a space", longestPath))
		}
		if _, err := url.ParseRequestURI(text); err != nil {
			return "", document.Advice("a percent sign begins two hexadecimal digits, such as %20")
		}
		return URLPath(text), nil
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *PortNumber) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a port such as 8080", p, func(text string) (PortNumber, error) {
		number, err := portNumber(text)
		return PortNumber(number), err
	})
}

// leastDuration and mostDuration bound a Duration.
const (
	leastDuration = 100 * time.Millisecond
	mostDuration  = time.Hour
)

// UnmarshalYAML is yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a time such as 500ms, 2s or 1m", d, func(text string) (Duration, error) {
		t, err := time.ParseDuration(text)
		switch {
		case err != nil && strings.Trim(text, "0123456789.") == "":
			return 0, document.Advice("a time needs its unit: write " + text + "s")
		case err != nil:
			return 0, errNumber
		case t < leastDuration || t > mostDuration:
			return 0, document.Advice(fmt.Sprintf("it is from %s to 1h", leastDuration))
		}
		return Duration(t), nil
	})
}

// String is the written form: 90s is 1m30s.
func (d Duration) String() string { return shortDuration(time.Duration(d)) }

// shortDuration is 1m for what time.Duration calls 1m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

const mostTimes = 100

// UnmarshalYAML is yaml.Unmarshaler.
func (t *Times) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, fmt.Sprintf("a number from 1 to %d", mostTimes), t, func(text string) (Times, error) {
		n, err := strconv.ParseUint(text, 10, 16)
		if err == nil && (n == 0 || n > mostTimes) {
			err = errNumber
		}
		return Times(n), err
	})
}

// MarshalJSON is a single backend without a list.
func (b Backends) MarshalJSON() ([]byte, error) {
	if len(b) == 1 {
		return json.Marshal(b[0])
	}
	return json.Marshal([]nat.Backend(b))
}

// backendText is the written form, in brackets where a port could be meant.
func backendText(b nat.Backend) string {
	if weight := b.Weight; weight > 0 {
		b.Weight = 0
		return fmt.Sprintf("{address: %s, weight: %d}", backendText(b), weight)
	}
	if !b.Address.IsValid() {
		return `"` + b.String() + `"`
	}
	if _, _, ambiguous := portlike(b.Address.String()); ambiguous && b.Port == 0 {
		return quoted("[" + b.Address.String() + "]")
	}
	return quoted(b.String())
}

var errNumber = errors.New("not a number")

// multiples are written after a number. They count in thousands, as ports and
// connections do.
var multiples = []struct {
	suffix string
	factor int64
}{{"M", 1_000_000}, {"k", 1_000}}

// parseCount reads 200000, 200k or 2M.
func parseCount(text string) (Count, error) {
	factor := int64(1)
	for _, m := range multiples {
		if digits, ok := strings.CutSuffix(text, m.suffix); ok {
			text, factor = digits, m.factor
			break
		}
	}
	const most = 1 << 32
	n, err := strconv.ParseUint(text, 10, 33)
	if err != nil || n == 0 || int64(n)*factor > most {
		return 0, errNumber
	}
	return Count(int64(n) * factor), nil
}

// UnmarshalYAML is yaml.Unmarshaler.
func (c *Count) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a number such as 200000, 200k or 2M", c, parseCount)
}

func (c Count) String() string {
	for _, m := range multiples {
		if n := int64(c); n != 0 && n%m.factor == 0 {
			return strconv.FormatInt(n/m.factor, 10) + m.suffix
		}
	}
	return strconv.FormatInt(int64(c), 10)
}

// parsePerTime reads 5000/s.
func parsePerTime(text string) (PerTime, error) {
	digits, ok := strings.CutSuffix(text, "/s")
	if !ok {
		return 0, errNumber
	}
	n, err := parseCount(digits)
	return PerTime(n), err
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *PerTime) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a number per second such as 5000/s", p, parsePerTime)
}

func (p PerTime) String() string { return Count(p).String() + "/s" }

// UnmarshalYAML is yaml.Unmarshaler.
func (s *Switch) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "on or off", s, func(text string) (Switch, error) { return parseSwitch(text) })
}

// parseSwitch reads on and off; others are the words that may stand in their place.
func parseSwitch(text string, others ...string) (Switch, error) {
	switch text {
	case "on", "true":
		return true, nil
	case "off", "false":
		return false, nil
	}
	return false, unknownSwitch(text, others...)
}

// unknownSwitch is about a word that is neither on nor off, nor one of the others.
func unknownSwitch(text string, others ...string) error {
	switch strings.ToLower(text) {
	case "yes", "y", "1", "enable", "enabled":
		return document.Advice("write on")
	case "no", "n", "0", "disable", "disabled":
		return document.Advice("write off")
	}
	return document.Unknown(text, append(others, "on", "off", "true", "false")...)
}

func (s Switch) String() string {
	if s {
		return "on"
	}
	return "off"
}

// UnmarshalYAML is yaml.Unmarshaler.
func (r *Random) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "on, off or fully", r, func(text string) (Random, error) {
		if text == string(RandomFully) {
			return RandomFully, nil
		}
		on, err := parseSwitch(text, string(RandomFully))
		return map[Switch]Random{true: RandomPorts}[on], err
	})
}

// String is the written form.
func (r Random) String() string {
	switch r {
	case "":
		return "off"
	case RandomPorts:
		return "on"
	}
	return string(r)
}

// What TCP allows a maximum segment size to be: every host takes 536 (RFC 9293,
// 3.7.1), and no packet carries more than 65495 (65535 without two headers).
const (
	leastMSS = 536
	mostMSS  = 65495
)

// UnmarshalYAML is yaml.Unmarshaler.
func (m *MSS) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "clamp, or a number of bytes such as 1360", m, func(text string) (MSS, error) {
		n, err := strconv.ParseUint(text, 10, 16)
		switch {
		case text == "clamp":
			return MSS{Clamp: true}, nil
		case err != nil:
			return MSS{}, document.Unknown(text, "clamp")
		case n < leastMSS || n > mostMSS:
			return MSS{}, document.Advice("a segment has 536 to 65495 bytes")
		}
		return MSS{Bytes: uint16(n)}, nil
	})
}

// String is the written form; empty where nothing is bounded.
func (m MSS) String() string {
	switch {
	case m.Clamp:
		return "clamp"
	case m.Bytes == 0:
		return ""
	}
	return strconv.Itoa(int(m.Bytes))
}

const (
	portsWords = "ports such as 1024-65535, or keep"
	portWords  = "a protocol and its ports such as tcp/8080, udp/5000-5100 or icmp"
)

// parsePorts reads 1024-65535, 4000 or keep.
func parsePorts(text string) (Ports, error) {
	if text == "keep" {
		return Ports{Keep: true}, nil
	}
	first, last, err := parseSpan(text)
	var near document.Advice
	if unknown := document.Unknown(text, "keep"); err != nil && errors.As(unknown, &near) {
		err = near
	}
	return Ports{First: first, Last: last}, err
}

func parseSpan(text string) (first, last uint16, err error) {
	if isServiceName(text) {
		first, err = portNumber(text)
		return first, first, err
	}
	a, b, isRange := strings.Cut(text, "-")
	if first, err = portNumber(strings.TrimSpace(a)); err != nil || !isRange {
		return first, first, err
	}
	last, err = portNumber(strings.TrimSpace(b))
	if err == nil && last < first {
		err = document.Advice("the end comes before the beginning")
	}
	return first, last, err
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *Ports) UnmarshalYAML(n *yaml.Node) error { return scalar(n, portsWords, p, parsePorts) }

func (p Ports) String() string {
	if p.Keep {
		return "keep"
	}
	return p.given().String()
}

// given are the ports to choose from; the zero value leaves them to the kernel.
func (p Ports) given() nat.Ports { return nat.Ports{First: p.First, Last: p.Last} }

// parsePort reads tcp/8080, udp/5000-5100, a protocol alone, or ip/89, which is the
// protocol of that number. A number alone would be read as a port of TCP, and is refused.
func parsePort(text string) (Port, error) {
	name, span, spanned := strings.Cut(text, "/")
	if name == "ip" && spanned {
		name, spanned = span, false
	} else if !slices.Contains(nat.Protocols, strings.ToLower(name)) && services[strings.ToLower(name)] == 0 && isSpan(name) {
		return Port{}, misplacedPort(name, span)
	}
	number, err := nat.ParseProtocol(name)
	switch {
	case err != nil:
		return Port{}, unknownProtocol(text, name)
	case number == 0:
		return Port{}, document.Advice("0 is no protocol")
	}
	p := Port{Protocol: nat.ProtocolName(number)}
	if !spanned {
		return p, nil
	}
	if !p.hasPorts() {
		return Port{}, document.Advice(p.Protocol + " has no ports")
	}
	p.First, p.Last, err = parseSpan(span)
	return p, err
}

// isSpan reports whether it is a port, or a range of ports.
func isSpan(text string) bool {
	_, _, err := parseSpan(text)
	return err == nil
}

// misplacedPort is about 80, or 80/tcp.
func misplacedPort(ports, protocol string) error {
	if slices.Contains(nat.Protocols, strings.ToLower(protocol)) {
		return document.Advice("write " + strings.ToLower(protocol) + "/" + ports)
	}
	return document.Advice("a port needs its protocol: write tcp/" + ports + " or udp/" + ports + " (an IP protocol's number is ip/47)")
}

// unknownProtocol is about text whose protocol, the name, is none.
func unknownProtocol(text, name string) error {
	for _, separator := range []string{":", " ", "-", "."} {
		if protocol, ports, ok := strings.Cut(name, separator); ok && (Port{Protocol: protocol}).hasPorts() && isSpan(ports) {
			return document.Advice("write " + protocol + "/" + ports)
		}
	}
	if service := strings.ToLower(text); services[service] != 0 {
		return document.Advice(fmt.Sprintf("a service needs its protocol: write tcp/%s, udp/%[1]s or tcp+udp/%[1]s", service))
	}
	return document.Unknown(name, nat.Protocols...)
}

// services are those that people write by name.
var services = map[string]uint16{
	"http": 80, "https": 443, "ssh": 22, "dns": 53, "domain": 53, "smtp": 25, "submission": 587, "imap": 143, "imaps": 993,
	"pop3": 110, "pop3s": 995, "ftp": 21, "telnet": 23, "ntp": 123, "rdp": 3389, "ldap": 389, "ldaps": 636, "mysql": 3306, "postgres": 5432, "postgresql": 5432,
	"tftp": 69, "snmp": 161, "syslog": 514, "bgp": 179, "ipp": 631, "isakmp": 500, "ike": 500, "ipsec-nat-t": 4500, "l2tp": 1701, "pptp": 1723,
	"openvpn": 1194, "wireguard": 51820, "radius": 1812, "sip": 5060, "sips": 5061, "rtsp": 554, "stun": 3478, "mqtt": 1883, "redis": 6379,
	"squid": 3128, "http-alt": 8080, "kerberos": 88, "smb": 445, "microsoft-ds": 445, "nfs": 2049, "rsync": 873, "git": 9418, "dot": 853,
}

// isWhole reports whether all ports of the protocol are meant.
func (p Port) isWhole() bool {
	_, isSet := p.set()
	return p.First == 0 && !isSet
}

// Number is the protocol's; false where all are meant or the name is none.
func (p Port) Number() (uint8, bool) {
	if p.Protocol == "" {
		return 0, false
	}
	n, err := nat.ParseProtocol(p.Protocol)
	return n, err == nil
}

// UnmarshalYAML is yaml.Unmarshaler.
func (p *Port) UnmarshalYAML(n *yaml.Node) error { return scalar(n, portWords, p, parsePort) }

// mostServices bounds the services that a rule names.
const mostServices = 1000

// UnmarshalYAML is yaml.Unmarshaler. tcp+udp/53 is tcp/53 and udp/53.
func (s *Services) UnmarshalYAML(n *yaml.Node) error {
	*s = nil
	return document.List(n, func(item *yaml.Node) error {
		if name, is := document.SetName(item); is {
			*s = append(*s, Port{Protocol: "$" + name})
			return nil
		}
		return document.Scalar(item, portWords, func(text string) error {
			protocols, span, spanned := strings.Cut(text, "/")
			for name := range strings.SplitSeq(protocols, "+") {
				if spanned {
					name += "/" + span
				}
				p, err := parsePort(name)
				switch {
				case err != nil:
					return err
				case slices.ContainsFunc(*s, p.meets):
					return document.Advice("it is there twice")
				case len(*s) == mostServices:
					return document.Advice(fmt.Sprintf("a rule has at most %d services", mostServices))
				}
				*s = append(*s, p)
			}
			return nil
		})
	})
}

// meets reports whether two have a service in common.
func (p Port) meets(o Port) bool {
	_, meet := p.all().Common(o.all())
	return p.Protocol == o.Protocol && meet
}

// Meet reports whether two lists have a service in common, or one with all ports of another one's protocol.
func (s Services) Meet(o Services) bool {
	return slices.ContainsFunc(s, func(p Port) bool { return slices.ContainsFunc(o, p.meets) })
}

func (s Services) String() string {
	texts := make([]string, len(s))
	for i, p := range s {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

// serviceChoice are the services that a rule asks for: ports of a protocol, or a set of them.
type serviceChoice struct {
	protocol uint8
	ports    []nat.Ports
	sets     []nat.Member
}

// protocols are the services of each protocol; one of every protocol where there are none.
func (s Services) protocols() (all []serviceChoice) {
	if len(s) == 0 {
		return []serviceChoice{{}}
	}
	for _, p := range s {
		if _, is := p.set(); is {
			continue
		}
		number, ports := p.Service()
		at := slices.IndexFunc(all, func(a serviceChoice) bool { return a.protocol == number })
		switch {
		case at < 0:
			all = append(all, serviceChoice{protocol: number, ports: ports})
		case len(ports) == 0: // what is listed besides is of the protocol as well
			all[at].ports = nil
		default:
			all[at].ports = append(all[at].ports, ports...)
		}
	}
	for _, a := range all {
		slices.SortFunc(a.ports, orderPorts)
	}
	return all
}

// services are all as a nat.Match excepts them.
func (s Services) services() (all []nat.Service) {
	for _, p := range s {
		number, known := p.Number()
		if !known {
			continue // a set
		}
		all = append(all, nat.Service{Protocol: number, Ports: p.all()})
	}
	return all
}

// havePorts reports whether NAT can give all of them another port.
func (s Services) havePorts() bool {
	return len(s) > 0 && !slices.ContainsFunc(s, func(p Port) bool { return !p.hasPorts() })
}

// span is the only range of ports; false where there are others, or none.
func (s Services) span() (nat.Ports, bool) {
	if len(s) != 1 || s[0].First == 0 {
		return nat.Ports{}, false
	}
	return s[0].all(), true
}

// UnmarshalYAML is yaml.Unmarshaler.
func (m *Mark) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, markWords, &m.Mark, func(text string) (k nat.Mark, err error) {
		value, mask, masked := strings.Cut(text, "/")
		if k.Value, err = parseBits(value); err != nil || !masked {
			return nat.Mark{Value: k.Value, Mask: math.MaxUint32}, err
		}
		k.Mask, err = parseBits(mask)
		switch {
		case err == nil && k.Mask == 0:
			err = document.Advice("no bit counts: every packet has such a mark")
		case err == nil && k.Value&^k.Mask != 0:
			err = document.Advice("the value has bits that do not count")
		}
		return k, err
	})
}

// parseBits reads 16 or 0x10.
func parseBits(text string) (uint32, error) {
	n, err := nat.ParseNumber(text)
	if err != nil {
		return 0, errNumber
	}
	return n, nil
}

func (m Mark) String() string { return m.Mark.String() }

// UnmarshalYAML is yaml.Unmarshaler.
func (m *Marks) UnmarshalYAML(n *yaml.Node) error {
	return list(n, m, func(item *yaml.Node, one *Mark) error { return one.UnmarshalYAML(item) })
}

// UnmarshalYAML is yaml.Unmarshaler.
func (i *ID) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, idWords, &i.IDs, func(text string) (ids nat.IDs, err error) {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 32)
		b, errB := strconv.ParseUint(last, 10, 32)
		switch {
		case errA != nil && strings.Trim(text, "0123456789-") != "":
			return ids, document.Advice(fmt.Sprintf("write its number, which 'id -u %s' prints (of a group: 'getent group %[1]s')", document.OneLine(text)))
		case errA != nil || errB != nil:
			return ids, errNumber
		case b < a:
			return ids, document.Advice("the end comes before the beginning")
		}
		return nat.IDs{First: uint32(a), Last: uint32(b)}, nil
	})
}

func (i IDs) ids() (all []nat.IDs) {
	for _, id := range i {
		all = append(all, id.IDs)
	}
	return all
}

func (i ID) String() string { return i.IDs.String() }

// UnmarshalYAML is yaml.Unmarshaler.
func (i *IDs) UnmarshalYAML(n *yaml.Node) error {
	return list(n, i, func(item *yaml.Node, one *ID) error { return one.UnmarshalYAML(item) })
}

// UnmarshalYAML is yaml.Unmarshaler.
func (c *CodePoint) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, dscpWords, c, func(text string) (CodePoint, error) {
		point, err := nat.ParseDSCP(text)
		return CodePoint(point), err
	})
}

func (c CodePoint) String() string { return nat.DSCPName(uint8(c)) }

// UnmarshalYAML is yaml.Unmarshaler.
func (c *CodePoints) UnmarshalYAML(n *yaml.Node) error {
	return list(n, c, func(item *yaml.Node, one *CodePoint) error { return one.UnmarshalYAML(item) })
}

func (c CodePoints) points() (all []uint8) {
	for _, p := range c {
		all = append(all, uint8(p))
	}
	return all
}

const dayMinutes = 24 * 60

// UnmarshalYAML is yaml.Unmarshaler.
func (h *HourRange) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "hours of the day (UTC) such as 08:00-18:00, or 22:00-06:00 over midnight", h, func(text string) (HourRange, error) {
		first, end, _ := strings.Cut(text, "-")
		a, errA := minuteOf(first)
		b, errB := minuteOf(end)
		switch {
		case errA != nil || errB != nil || a == dayMinutes:
			return HourRange{}, errNumber
		case a == b || a == 0 && b == dayMinutes:
			return HourRange{}, document.Advice("that is all day: leave it out")
		}
		return HourRange{a, b}, nil
	})
}

// minuteOf reads 08:30, at most 24:00.
func minuteOf(text string) (int, error) {
	hour, minute, ok := strings.Cut(strings.TrimSpace(text), ":")
	h, errH := strconv.ParseUint(hour, 10, 8)
	m, errM := strconv.ParseUint(minute, 10, 8)
	if at := int(60*h + m); ok && errH == nil && errM == nil && len(minute) == 2 && m < 60 && at <= dayMinutes {
		return at, nil
	}
	return 0, errNumber
}

func (h HourRange) String() string {
	return fmt.Sprintf("%02d:%02d-%02d:%02d", h.First/60, h.First%60, h.End/60, h.End%60)
}

// UnmarshalYAML is yaml.Unmarshaler.
func (h *HourRanges) UnmarshalYAML(n *yaml.Node) error {
	return list(n, h, func(item *yaml.Node, one *HourRange) error { return one.UnmarshalYAML(item) })
}

// hours are the seconds; what goes over midnight is two ranges.
func (h HourRanges) hours() (all []nat.Hours) {
	add := func(first, end int) {
		if first < end {
			all = append(all, nat.Hours{First: uint32(first * 60), Last: uint32(end*60 - 1)})
		}
	}
	for _, r := range h {
		if r.First < r.End {
			add(r.First, r.End)
			continue
		}
		add(r.First, dayMinutes)
		add(0, r.End)
	}
	slices.SortFunc(all, orderHours)
	return all
}

// UnmarshalYAML is yaml.Unmarshaler. mon-fri are five days.
func (d *Days) UnmarshalYAML(n *yaml.Node) error {
	*d = nil
	return document.List(n, func(item *yaml.Node) error {
		return document.Scalar(item, "days of the week (UTC) such as mon or mon-fri", func(text string) error {
			first, last, isRange := strings.Cut(strings.ToLower(text), "-")
			a, err := parseDay(first)
			b := a
			if err == nil && isRange {
				b, err = parseDay(last)
			}
			for day := a; err == nil; day = (day + 1) % 7 {
				if slices.Contains(*d, day) {
					return document.Advice("it is there twice")
				}
				if *d = append(*d, day); day == b {
					break
				}
			}
			if err == nil && len(*d) == 7 {
				err = document.Advice("these are all days: leave it out")
			}
			return err
		})
	})
}

// parseDay reads mon, or monday.
func parseDay(text string) (Day, error) {
	var names []string
	for day := range time.Weekday(7) {
		if text == nat.DayName(day) || text == strings.ToLower(day.String()) {
			return Day(day), nil
		}
		names = append(names, nat.DayName(day))
	}
	return 0, document.Unknown(text, names...)
}

func (d Day) String() string { return nat.DayName(time.Weekday(d)) }

func (d Days) days() (all []time.Weekday) {
	for _, day := range d {
		all = append(all, time.Weekday(day))
	}
	slices.Sort(all)
	return all
}

// HelperService is what a helper of the tracker reads.
type HelperService struct {
	Helper   Helper
	Protocol uint8
	Port     uint16
	// V4Only: the kernel has it for IPv4.
	V4Only bool
}

// helperServices are those that files may name (net/netfilter/nf_conntrack_ftp.c and others).
var helperServices = []HelperService{
	{"ftp", unix.IPPROTO_TCP, 21, false}, {"tftp", unix.IPPROTO_UDP, 69, false}, {"sip", unix.IPPROTO_UDP, 5060, false}, {"sip", unix.IPPROTO_TCP, 5060, false}, {"pptp", unix.IPPROTO_TCP, 1723, true},
}

// HelperServices are those of a plan's helpers.
func (p *Plan) HelperServices() (all []HelperService) {
	for _, s := range helperServices {
		if slices.Contains(p.Helpers, s.Helper) {
			all = append(all, s)
		}
	}
	return all
}

// AskedFor are the ports that a destination asks for whose connections become ones to the service; false where there
// are none.
func (s HelperService) AskedFor(d *Entry) (ports []nat.Ports, some bool) {
	one := func(port uint16) []nat.Ports { return []nat.Ports{{First: port, Last: port}} }
	switch b := slices.Concat(d.Action.Backends, []nat.Backend{{}})[0]; {
	case d.Protocol != 0 && d.Protocol != s.Protocol, d.Action.Kind != nat.DNAT:
		return nil, false
	case b.Port == 0:
		stays := len(d.Ports) == 0 || slices.ContainsFunc(d.Ports, func(p nat.Ports) bool { return p.Contains(s.Port) })
		return one(s.Port), stays
	case b.Last == 0:
		return d.Ports, b.Port == s.Port && d.Protocol == s.Protocol
	case d.Protocol == s.Protocol && b.Port <= s.Port && s.Port <= b.Last:
		return one(d.Ports[0].First + s.Port - b.Port), true
	}
	return nil, false
}

// UnmarshalYAML is yaml.Unmarshaler.
func (h *Helpers) UnmarshalYAML(n *yaml.Node) error {
	return list(n, h, func(item *yaml.Node, one *Helper) error {
		return scalar(item, "ftp, tftp, sip or pptp", one, func(text string) (Helper, error) {
			switch {
			case slices.Contains(*h, Helper(text)):
				return "", document.Advice("it is there twice")
			case !slices.ContainsFunc(helperServices, func(s HelperService) bool { return string(s.Helper) == text }):
				return "", document.Unknown(text, "ftp", "tftp", "sip", "pptp")
			}
			return Helper(text), nil
		})
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (t *TTL) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a number from 1 to 255", t, func(text string) (TTL, error) {
		n, err := strconv.ParseUint(text, 10, 8)
		if err == nil && n == 0 {
			err = errNumber
		}
		return TTL(n), err
	})
}

// longestName bounds Name, so that a rule of the kernel has it in its comment.
const longestName = 40

// UnmarshalYAML is yaml.Unmarshaler.
func (m *Name) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a name such as web-server", m, func(text string) (Name, error) {
		plain := func(r rune) bool {
			return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
		}
		if text == "" || len(text) > longestName || strings.TrimFunc(text, plain) != "" {
			return "", document.Advice(fmt.Sprintf("a name is one word of up to %d letters, digits, dots, hyphens and underscores", longestName))
		}
		return Name(text), nil
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (m *Remark) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a line of text", m, func(text string) (Remark, error) {
		return Remark(text), plainText(text, mostLabel)
	})
}

// plainText returns the advice for text that the kernel or nft(8) cannot keep.
func plainText(text string, most int) error {
	switch {
	case strings.ContainsFunc(text, func(r rune) bool { return r == '"' || r == '\\' || !unicode.IsPrint(r) }):
		return document.Advice("leave out quotation marks, backslashes and what does not print")
	case text == "" || len(text) > most:
		return document.Advice(fmt.Sprintf("it has 1 to %d bytes", most))
	}
	return nil
}

// longestPrefix is NF_LOG_PREFIXLEN-1 (include/net/netfilter/nf_log.h).
const longestPrefix = 127

// Check returns why it is none; an empty one stands for the default.
func (l LogPrefix) Check() error {
	if l == "" {
		return nil
	}
	return plainText(string(l), longestPrefix)
}

// UnmarshalYAML is yaml.Unmarshaler.
func (l *LogPrefix) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "the text that begins each line", l, func(text string) (LogPrefix, error) {
		return LogPrefix(text), plainText(text, longestPrefix)
	})
}

// UnmarshalYAML is yaml.Unmarshaler.
func (l *Log) UnmarshalYAML(n *yaml.Node) error {
	if document.IsMapping(n) {
		var with struct {
			Rate   PerTime   `yaml:"rate"`
			Prefix LogPrefix `yaml:"prefix"`
		}
		err := document.Mapping(n, &with)
		*l = Log{On: true, Rate: with.Rate, Prefix: with.Prefix}
		return err
	}
	var on Switch
	err := scalar(n, "on, off, or a mapping such as {rate: 5/s, prefix: \"web: \"}", &on, func(text string) (Switch, error) { return parseSwitch(text) })
	*l = Log{On: bool(on)}
	return err
}

// mostPreferred bounds Prefer.
const mostPreferred = 1000

// UnmarshalYAML is yaml.Unmarshaler.
func (p *Prefer) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, fmt.Sprintf("a number from 1 to %d", mostPreferred), p, func(text string) (Prefer, error) {
		n, err := strconv.ParseUint(text, 10, 16)
		if err == nil && (n == 0 || n > mostPreferred) {
			err = errNumber
		}
		return Prefer(n), err
	})
}

// String is the written form: tcp/8080; empty where everything is meant.
func (p Port) String() string {
	if _, is := p.set(); is {
		return p.Protocol
	}
	return nat.ServiceString(p.Service())
}

// set is the name of the set that stands in the place of a service, if one does.
func (p Port) set() (name string, is bool) { return strings.CutPrefix(p.Protocol, "$") }

// hasPorts reports whether NAT can give the protocol another port.
func (p Port) hasPorts() bool {
	number, known := p.Number()
	_, isSet := p.set()
	return isSet || known && nat.HasPorts(number)
}

// all are the ports that are meant.
func (p Port) all() nat.Ports {
	if p.First == 0 {
		return nat.AllPorts
	}
	return nat.Ports{First: p.First, Last: p.last()}
}

// last is the last port; First alone is one.
func (p Port) last() uint16 { return max(p.First, p.Last) }

// Service is the protocol and its ports as a nat.Match has them.
func (p Port) Service() (protocol uint8, ports []nat.Ports) {
	protocol, _ = p.Number()
	if p.First != 0 {
		ports = []nat.Ports{p.all()}
	}
	return protocol, ports
}
