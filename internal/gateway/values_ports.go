package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/document"
)

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

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Ports) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, portsWords, func(text string) (err error) {
		*p, err = parsePorts(text)
		return err
	})
}

func (p Ports) String() string {
	if p.Keep {
		return "keep"
	}
	return spanString(p.First, p.Last)
}

func spanString(first, last uint16) string {
	switch {
	case first == 0:
		return ""
	case first == last:
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// parsePort reads tcp/8080, udp/5000-5100, a protocol alone, or ip/89, which is the
// protocol of that number. A number alone would be read as a port of TCP, and is refused.
func parsePort(text string) (Port, error) {
	name, span, spanned := strings.Cut(text, "/")
	if name == "ip" && spanned {
		name, spanned = span, false
	} else if isSpan(name) {
		return Port{}, misplacedPort(name, span)
	}
	number, err := match.ParseProtocol(name)
	switch {
	case err != nil:
		return Port{}, unknownProtocol(text, name)
	case number == 0:
		return Port{}, document.Advice("0 is no protocol")
	}
	p := Port{Protocol: conntrack.ProtocolName(number)}
	if !spanned {
		return p, nil
	}
	if !HasPorts(p.Protocol) {
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
	if slices.Contains(match.Protocols, strings.ToLower(protocol)) {
		return document.Advice("write " + strings.ToLower(protocol) + "/" + ports)
	}
	return document.Advice("a port needs its protocol: write tcp/" + ports + " or udp/" + ports + " (an IP protocol's number is ip/47)")
}

// unknownProtocol is about text whose protocol, the name, is none.
func unknownProtocol(text, name string) error {
	for _, separator := range []string{":", " ", "-", "."} {
		if protocol, ports, ok := strings.Cut(name, separator); ok && HasPorts(protocol) && isSpan(ports) {
			return document.Advice("write " + protocol + "/" + ports)
		}
	}
	if port := services[strings.ToLower(text)]; port != 0 {
		protocol := "tcp"
		if port == 53 || port == 123 {
			protocol = "udp"
		}
		return document.Advice(fmt.Sprintf("names of services are not known: write %s/%d", protocol, port))
	}
	return document.Unknown(name, match.Protocols...)
}

// services are those that people write by name.
var services = map[string]uint16{
	"http": 80, "https": 443, "ssh": 22, "dns": 53, "domain": 53, "smtp": 25, "submission": 587, "imap": 143, "imaps": 993,
	"pop3": 110, "pop3s": 995, "ftp": 21, "telnet": 23, "ntp": 123, "rdp": 3389, "ldap": 389, "ldaps": 636, "mysql": 3306, "postgres": 5432, "postgresql": 5432,
}

// Number is the protocol's; false where all are meant or the name is none.
func (p Port) Number() (uint8, bool) {
	if p.Protocol == "" {
		return 0, false
	}
	n, err := match.ParseProtocol(p.Protocol)
	return n, err == nil
}

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Port) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, portWords, func(text string) (err error) {
		*p, err = parsePort(text)
		return err
	})
}

// String is the written form: tcp/8080; empty where everything is meant.
func (p Port) String() string {
	if p.First == 0 {
		if _, err := strconv.Atoi(p.Protocol); err == nil {
			return "ip/" + p.Protocol
		}
		return p.Protocol
	}
	return p.Protocol + "/" + spanString(p.First, p.Last)
}

// Matches reports whether a protocol and a destination port are meant.
func (p Port) Matches(proto uint8, port uint16) bool {
	if p.Protocol == "" {
		return true
	}
	number, ok := p.Number()
	return ok && number == proto && p.has(port)
}

// has reports whether a port of the protocol is meant.
func (p Port) has(port uint16) bool { return p.First == 0 || p.First <= port && port <= p.last() }
