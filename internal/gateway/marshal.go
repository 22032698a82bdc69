package gateway

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
)

// Marshal writes a Config as the file that Parse reads it from: what is empty is left
// out, each rule takes one line.
func Marshal(c *Config) []byte {
	w := &writer{}
	w.top(c)
	if w.Len() == 0 {
		return []byte("gateway: {}\n")
	}
	return append([]byte("gateway:\n"), w.Bytes()...)
}

// MarshalRule writes a rule as it stands in a list: "snat: {from: 10.0.0.1, to: …}".
func MarshalRule(r Rule) string {
	var f fields
	switch {
	case r.Masquerade != nil:
		f.sources(&r.Masquerade.Sources)
		f.choice(&r.Masquerade.Choice)
	case r.SNAT != nil:
		f.sources(&r.SNAT.Sources)
		f.list("to", rangeTexts(r.SNAT.To))
		f.choice(&r.SNAT.Choice)
		if r.SNAT.Persistent != nil {
			f.add("persistent", r.SNAT.Persistent.String())
		}
	case r.DNAT != nil:
		f.dnat(r.DNAT)
	case r.Static != nil:
		f.add("inside", r.Static.Inside.String())
		f.add("outside", r.Static.Outside.String())
		f.on("stateless", r.Static.Stateless)
		f.on("hairpin", r.Static.Hairpin)
		f.on("local", r.Static.Local)
	case r.Netmap != nil:
		f.add("inside", r.Netmap.Inside.String())
		f.add("outside", r.Netmap.Outside.String())
		f.on("stateless", r.Netmap.Stateless)
	case r.Notrack != nil:
		f.add("on", r.Notrack.On.String())
		f.add("port", r.Notrack.Port.String())
	}
	return r.Kind() + ": " + f.String()
}

type writer struct{ bytes.Buffer }

func (w *writer) top(c *Config) {
	if c.Engine != "" {
		w.line("engine", string(c.Engine))
	}
	var expect, interfaces, limits fields
	if c.Expect.Flows != 0 {
		expect.add("flows", c.Expect.Flows.String())
	}
	if c.Expect.Rate != 0 {
		expect.add("rate", c.Expect.Rate.String())
	}
	interfaces.list(RoleWAN, c.Interfaces.WAN)
	interfaces.list(RoleLAN, c.Interfaces.LAN)
	if c.Limits.ConnectionsPerSource != 0 {
		limits.add("connections-per-source", c.Limits.ConnectionsPerSource.String())
	}
	w.mapping("expect", expect)
	w.mapping("interfaces", interfaces)
	if c.MSS != (MSS{}) {
		w.line("mss", c.MSS.String())
	}
	w.on("flowtable", c.Flowtable)
	w.on("accounting", c.Accounting)
	w.mapping("limits", limits)
	for _, l := range c.lists() {
		w.rules(l)
	}
}

func (w *writer) line(key, value string) { fmt.Fprintf(w, "  %s: %s\n", key, value) }

func (w *writer) on(key string, s Switch) {
	if s {
		w.line(key, s.String())
	}
}

func (w *writer) mapping(key string, f fields) {
	if len(f) > 0 {
		w.line(key, f.String())
	}
}

func (w *writer) rules(l ruleList) {
	if len(l.rules) == 0 {
		return
	}
	fmt.Fprintf(w, "  %s:\n", l.name)
	for _, r := range l.rules {
		fmt.Fprintf(w, "    - %s\n", MarshalRule(r))
	}
}

// fields are those of a mapping on one line.
type fields []string

func (f fields) String() string { return "{" + strings.Join(f, ", ") + "}" }

func (f *fields) add(key, value string) {
	if value != "" {
		*f = append(*f, key+": "+quoted(value))
	}
}

func (f *fields) on(key string, s Switch) {
	if s {
		f.add(key, s.String())
	}
}

func (f *fields) list(key string, values []string) {
	if len(values) == 1 {
		f.add(key, values[0])
		return
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = quoted(v)
	}
	if len(texts) > 0 {
		*f = append(*f, key+": ["+strings.Join(texts, ", ")+"]")
	}
}

func (f *fields) sources(s *Sources) {
	f.list("from", prefixTexts(s.From))
	f.list("except-to", prefixTexts(s.ExceptTo))
	f.list("out", s.Out)
}

func (f *fields) choice(c *Choice) {
	f.add("ports", c.Ports.String())
	if c.Random != "" {
		f.add("random", c.Random.String())
	}
}

func (f *fields) dnat(d *DNAT) {
	f.add("on", d.On.String())
	f.add("port", d.Port.String())
	f.list("from", prefixTexts(d.From))
	f.add("to", d.To.String())
	f.on("hairpin", d.Hairpin)
	f.on("local", d.Local)
}

func prefixTexts(prefixes Prefixes) (texts []string) {
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return texts
}

// rangeTexts writes ranges, as prefixes where they are some.
func rangeTexts(ranges Ranges) (texts []string) {
	for _, r := range ranges {
		text := r.String()
		if p, is := r.prefix(); is {
			text = Prefix{p}.String()
		}
		texts = append(texts, text)
	}
	return texts
}

// prefix is the one whose addresses the range has, if there is one.
func (r Range) prefix() (netip.Prefix, bool) {
	for bits := range r.First.BitLen() + 1 {
		if p := netip.PrefixFrom(r.First, bits); p == p.Masked() && RangeOf(p) == r {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// quoted is a value in quotes where YAML would take it for something else.
func quoted(value string) string {
	switch strings.ToLower(value) {
	case "null", "~":
		return `"` + value + `"`
	}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:", r)
	}
	first, last := value[0], value[len(value)-1]
	if strings.TrimFunc(value, plain) == "" && first != '-' && first != ':' && first != '.' && last != ':' && last != '-' {
		return value
	}
	return `"` + value + `"`
}
