package cli

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/units"
)

// packetsAre says in one line what the packets look like.
func packetsAre(c packet.Config) string {
	s := c.Spec
	if c.Bare {
		return "one frame, again and again (--bare)"
	}
	words := "UDP"
	if s.Protocol == unix.IPPROTO_TCP {
		words = "TCP " + flagsText(s.TCPFlags)
	}
	if s.IPv6 {
		words += " over IPv6"
	} else {
		words += " over IPv4"
	}
	if s.VLAN != 0 {
		words += fmt.Sprintf(" in VLAN %d", s.VLAN)
	}
	if s.DSCP != 0 {
		words += fmt.Sprintf(", DSCP %d", s.DSCP)
	}
	if s.HopLimit != defaultTTL {
		words += fmt.Sprintf(", TTL %d", s.HopLimit)
	}
	return words
}

// flagsText writes a cycle of flags as --tcp reads it.
func flagsText(cycle []packet.TCPFlags) string {
	return runsText(cycle, func(f packet.TCPFlags, n int) string {
		if n > 1 {
			return fmt.Sprintf("%v:%d", f, n)
		}
		return f.String()
	})
}

func runsText[T comparable](list []T, write func(T, int) string) string {
	var words []string
	for i := 0; i < len(list); {
		n := 1
		for i+n < len(list) && list[i+n] == list[i] {
			n++
		}
		words = append(words, write(list[i], n))
		i += n
	}
	return strings.Join(words, ",")
}

// sizesText says which sizes come how often.
func sizesText(sizes []int) string {
	count := map[int]int{}
	for _, size := range sizes {
		count[size]++
	}
	if len(count) == 1 {
		return fmt.Sprint(sizes[0])
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(sizes)))
	if len(distinct) > 4 {
		return fmt.Sprintf("%d to %d (%d sizes)", distinct[0], distinct[len(distinct)-1], len(distinct))
	}
	var words []string
	for _, size := range distinct {
		words = append(words, fmt.Sprintf("%d (%d of %d)", size, count[size], len(sizes)))
	}
	return strings.Join(words, ", ")
}

func sourcesText(f packet.Flows) string {
	text := f.Sources[0].String()
	if n := len(f.Sources); n > 1 {
		text = fmt.Sprintf("%s addresses from %s", units.Count(n), text)
	}
	return fmt.Sprintf("%s, %s", text, portsText(f.SourcePorts))
}

func flowCount(n int) string {
	if n == 1 {
		return "1"
	}
	return units.Count(n) + " in turn"
}

func portsText(r load.PortRange) string {
	if r.Len() == 1 {
		return fmt.Sprintf("port %d", r.First)
	}
	return fmt.Sprintf("ports %d-%d", r.First, r.Last)
}

func packetsLoad(c packet.Config) string {
	words := "as fast as it goes (flat out)"
	if c.Rate > 0 {
		words = fmt.Sprintf("%s packets/s on schedule", units.Rate(c.Rate))
	}
	return fmt.Sprintf("%s, from %s", words, units.Plural(c.Workers, "CPU", "CPUs"))
}

func expectText(e packet.Expectation) string {
	var words []string
	for _, end := range []struct {
		name string
		packet.End
	}{{"source", e.Source}, {"destination", e.Destination}} {
		if end.End != (packet.End{}) {
			words = append(words, end.name+" "+endText(end.End))
		}
	}
	return strings.Join(append(words, "right checksums"), "; ")
}

func endText(e packet.End) string {
	text := "as sent"
	switch {
	case e.Address == packet.Netmap:
		text = fmt.Sprintf("in %v by NETMAP", e.Prefix)
	case e.Address == packet.Inside && e.Prefix.IsSingleIP():
		text = e.Prefix.Addr().String()
	case e.Address == packet.Inside:
		text = fmt.Sprintf("in %v", e.Prefix)
	}
	switch {
	case e.Port == packet.Same && e.Address == packet.Same:
	case e.Port == packet.Same:
		text += ", port as sent"
	case e.Port == packet.Inside:
		text += ", " + portsText(e.Ports)
	default:
		text += ", any port"
	}
	return text
}
