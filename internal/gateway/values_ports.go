package gateway

import (
	"fmt"
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

// parsePort reads tcp/8080, udp/5000-5100, or a protocol alone.
func parsePort(text string) (Port, error) {
	name, span, spanned := strings.Cut(text, "/")
	number, err := match.ParseProtocol(name)
	switch {
	case err != nil:
		return Port{}, err
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
		return p.Protocol
	}
	return p.Protocol + "/" + spanString(p.First, p.Last)
}

// Matches tells whether a protocol and a destination port are meant.
func (p Port) Matches(proto uint8, port uint16) bool {
	if p.Protocol == "" {
		return true
	}
	number, ok := p.Number()
	return ok && number == proto && p.has(port)
}

// has tells whether a port of the protocol is meant.
func (p Port) has(port uint16) bool { return p.First == 0 || p.First <= port && port <= p.last() }
