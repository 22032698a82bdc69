package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkHelpers: control connections are translated whose other connections need a helper, and there is none. A
// client of FTP behind a NAT opens the others itself (passive mode), and needs one only where filters let pass
// nothing but what is RELATED.
func checkHelpers(rec *snapshot.Recording) (*Finding, Check) {
	switch {
	case rec.Flows == nil:
		return unknown(cmp.Or(rec.Last().PartError(snapshot.PartFlows), "two dumps of the table could not be compared"))
	case !rec.Flows.ControlsKnown:
		return unknown("control connections were not looked for: a bundle of an older natkit")
	}
	why := "no control connections of FTP, PPTP or TFTP are translated"
	for i := range rec.Flows.Controls {
		c := &rec.Flows.Controls[i]
		why = fmt.Sprintf("%s of %s, %s with a helper", units.Plural(c.Connections, "translated control connection", "translated control connections"), c.Helper, units.Count(c.Helped))
		if l := passiveLoss(rec); c.Helped == 0 && c.Helper == "ftp" && !c.DNAT && c.Answered > 0 && l.packets >= fewestLost {
			return passiveFinding(rec, c, l), Check{Why: why}
		}
		if c.Helped > 0 || !needsHelper(rec, c) {
			continue
		}
		return helperFinding(rec, c), Check{Why: why}
	}
	return passed(why)
}

// needsHelper reports whether what belongs to the control connections fails without a helper.
func needsHelper(rec *snapshot.Recording, c *snapshot.Control) bool {
	switch c.Helper {
	case "ftp":
		return c.DNAT && c.Answered > 0 && !forwardsMore(rec, c)
	case "tftp":
		return c.Answered == 0 && c.Connections >= fewestFailing
	case "pptp":
		return c.GREUnanswered
	}
	return false
}

// passiveLoss is what drops the connections to ports that servers name, of every network behind this host;
// none where one of them may open these.
func passiveLoss(rec *snapshot.Recording) (none filterLoss) {
	w, _ := readWays(rec)
	if w == nil {
		return none
	}
	all := slices.DeleteFunc(w.of(snapshot.WaySource), func(way *snapshot.Way) bool {
		return way.Protocol != "tcp" || way.Port != snapshot.PassivePort || way.Filter == nil
	})
	if slices.ContainsFunc(all, func(way *snapshot.Way) bool { return way.Filter.Passes }) {
		return none
	}
	return w.lossOf(all, firstFilter)
}

// passiveFinding is about clients of FTP whose data connections filters drop.
func passiveFinding(rec *snapshot.Recording, c *snapshot.Control, l filterLoss) *Finding {
	f := worded("helper-missing passive", l.evidence("data connections"), nil, fmt.Sprintf("%s %s", c.Protocol, c.Service), l.places[0].Text)
	f.Evidence = append([]Evidence{
		{What: "control connections to " + c.Service.String(), Value: c.Connections, Source: "connection table"},
		{What: "of them with a helper", Value: c.Helped, Source: "connection table"},
	}, f.Evidence...)
	f.Remedies = []Remedy{helperAdd(rec, c.Helper, c.Protocol, c.Service)}
	return f
}

// forwardsMore reports whether other ports of the server are forwarded, too, as where it is told which ones
// and which address to announce.
func forwardsMore(rec *snapshot.Recording, c *snapshot.Control) bool {
	rules := rec.Last().NATRules
	to := netip.AddrPortFrom(c.Target.Addr(), 0)
	if rules == nil || rules.TooMany {
		return true
	}
	for i, r := range rules.Rules {
		r.FirstPort, r.LastPort = 0, 0
		if mayHaveRange(rec, i) && !r.TranslatesSource() && (r.Protocol == "" || r.Protocol == c.Protocol) && mayLead(&r, to) {
			return true
		}
	}
	return false
}

// mayHaveRange reports whether a rule may be for a range of ports, such as servers name for data: these are
// none of the first 1,024, and no list of single ones.
func mayHaveRange(rec *snapshot.Recording, rule int) bool {
	r, audit := &rec.Last().NATRules.Rules[rule], rec.Last().Audit
	single := audit != nil && slices.Contains(audit.SinglePorts, rule)
	return r.LastDestinationPort > r.DestinationPort || r.DestinationPort == 0 && !single && (r.LastOfSeveral == 0 || r.LastOfSeveral >= 1024)
}

// helperAdd is how a service gets its helper, by the address that clients ask for.
func helperAdd(rec *snapshot.Recording, helper, protocol string, service netip.AddrPort) Remedy {
	iptables, to, nft := "iptables", "", ""
	if server := service.Addr(); server.Is6() {
		iptables, to, nft = "ip6tables", fmt.Sprintf("-d %s ", server), fmt.Sprintf("ip6 daddr %s ", server)
	} else if server.IsValid() {
		to, nft = fmt.Sprintf("-d %s ", server), fmt.Sprintf("ip daddr %s ", server)
	}
	return advice("helper-add", helper, protocol, service.Port(), where(rec), iptables, to, nft)
}

func helperFinding(rec *snapshot.Recording, c *snapshot.Control) *Finding {
	name := fmt.Sprintf("%s %s", c.Protocol, c.Service)
	if c.DNAT {
		name += " -> " + c.Target.String()
	}
	var f *Finding
	switch c.Helper {
	case "tftp":
		f = worded("helper-missing tftp", nil, nil, name)
	case "pptp":
		f = worded("helper-missing pptp", nil, nil, name)
	default:
		f = worded("helper-missing ftp", nil, nil, name)
	}
	f.Evidence = []Evidence{
		{What: "control connections, " + name, Value: c.Connections, Source: "connection table"},
		{What: "of them with a helper", Value: c.Helped, Source: "connection table"},
	}
	f.Remedies = []Remedy{helperAdd(rec, c.Helper, c.Protocol, c.Service)}
	if c.Helper == "ftp" {
		f.Remedies = append(f.Remedies, advice("helper-range", c.Target.Addr()))
	}
	return f
}
