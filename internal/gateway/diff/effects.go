package diff

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/units"
)

// effect says what a change of a rule does to existing connections. A connection's
// first packet decides its translation, which lies in its entry (nf_nat_setup_info);
// what is not tracked has no entry.
func effect(c Change, kind string, stateless bool) string {
	switch {
	case kind == "notrack":
		return untrackedEffects[c]
	case stateless:
		return statelessEffects[c]
	}
	return trackedEffects[c]
}

var trackedEffects = map[Change]string{
	Added:   "connections to come; those that exist keep what they have",
	Removed: "those that exist stay translated until they end; connections to come are not",
	Changed: "those that exist keep the old translation until they end; connections to come get the new one",
}

// untranslated: with the last nat chain of the namespace the kernel's NAT goes, also for
// connections that have a translation (nf_nat_unregister_fn).
const untranslated = "those that exist are translated only as long as some other program has a nat chain; without one they break"

var statelessEffects = map[Change]string{
	Added:   "at once, packet by packet: connections that exist under another address break",
	Removed: "at once: connections that exist lose their address and break",
	Changed: "at once, packet by packet: connections that exist break where their address changes",
}

var untrackedEffects = map[Change]string{
	Added:   "at once: connections that exist are not tracked any more, and those that are translated break",
	Removed: "at once: those that exist are tracked from their next packet on, as connections begun in the middle",
	Changed: "at once, for what is added and what is left out",
}

// aspect is a value of the whole gateway, and what its change does to connections;
// empty for nothing by itself.
type aspect struct {
	name   string
	value  func(*gateway.Plan) string
	effect string
}

const settingEngine = "engine"

var aspects = []aspect{
	{settingEngine, func(p *gateway.Plan) string { return string(p.Engine) }, "connections that exist are not known to the other engine, and break"},
	{"wan", func(p *gateway.Plan) string { return strings.Join(p.WAN, ", ") }, ""},
	{"lan", func(p *gateway.Plan) string { return strings.Join(p.LAN, ", ") }, ""},
	{"mss", func(p *gateway.Plan) string { return mssText(p.MSS) }, "connections to come: the size is in the SYN"},
	{"flowtable", func(p *gateway.Plan) string { return strings.Join(p.Flowtable, ", ") }, "those that exist enter or leave the fast path with their next packets"},
	{"connections-per-source", func(p *gateway.Plan) string { return countOrNone(p.ConnectionsPerSource) }, "none is cut: a source that has as many gets no new ones"},
	{"accounting", func(p *gateway.Plan) string { return onOff(p.Accounting) }, "connections to come; those that exist have no counters and get none"},
	{"expected flows", func(p *gateway.Plan) string { return countOrNone(int64(p.Expect.Flows)) }, ""},
	{"expected rate", func(p *gateway.Plan) string { return rateOrNone(float64(p.Expect.Rate)) }, ""},
	{"IPv4 forwarding", func(p *gateway.Plan) string { return onOff(p.IPv4) }, "all packets that pass through"},
	{"IPv6 forwarding", func(p *gateway.Plan) string { return onOff(p.IPv6) }, "all packets that pass through"},
}

func diffSettings(old, new *gateway.Plan) (out []Setting) {
	value := func(s aspect, p *gateway.Plan) string {
		if p == nil {
			return ""
		}
		return s.value(p)
	}
	for _, s := range aspects {
		before, after := value(s, old), value(s, new)
		if before == after {
			continue
		}
		change := Setting{Setting: s.name, Before: before, After: after, Connections: s.effect}
		if s.name == settingEngine && (before == "" || after == "") {
			change.Connections = "" // the rules say it
		}
		out = append(out, change)
	}
	return out
}

func mssText(m gateway.MSS) string {
	switch {
	case m.Clamp:
		return "clamp"
	case m.Bytes > 0:
		return fmt.Sprintf("%d bytes", m.Bytes)
	}
	return ""
}

func countOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	return units.Count(n)
}

func rateOrNone(r float64) string {
	if r == 0 {
		return ""
	}
	return units.Rate(r) + "/s"
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return ""
}
