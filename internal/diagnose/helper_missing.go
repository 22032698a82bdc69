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
// client of FTP behind a NAT needs none, as it opens the others itself (passive mode).
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
		return c.Answered > 0 && (c.DNAT && !forwardsMore(rec, c) || !c.DNAT && letsOutNoMore(rec))
	case "tftp":
		return c.Answered == 0 && c.Connections >= fewestFailing
	case "pptp":
		return c.GREUnanswered
	}
	return false
}

// letsOutNoMore reports whether filters let the networks behind this host open no connections to any port, so that
// those that an FTP server outside names pass only as RELATED, which they are by a helper.
func letsOutNoMore(rec *snapshot.Recording) bool {
	w, _ := readWays(rec)
	if w == nil {
		return false
	}
	asked := 0
	for _, way := range w.of(snapshot.WaySource) {
		if way.Protocol != "tcp" || way.Port != 0 || way.Filter == nil {
			continue
		}
		l := w.lossOf([]*snapshot.Way{way}, func(w *snapshot.Way) *snapshot.Filter { return w.FreeFilter })
		if way.FreeFilter == nil || way.FreeFilter.Passes || l.packets < fewestLost {
			return false
		}
		asked++
	}
	return asked > 0
}

// forwardsMore reports whether other ports of the server are forwarded, too, as where it is told which ones
// and which address to announce.
func forwardsMore(rec *snapshot.Recording, c *snapshot.Control) bool {
	rules := rec.Last().NATRules
	to := netip.AddrPortFrom(c.Target.Addr(), 0)
	return rules == nil || rules.TooMany || slices.ContainsFunc(rules.Rules, func(r snapshot.NATRule) bool {
		several := r.DestinationPort == 0 || r.LastDestinationPort > r.DestinationPort
		r.FirstPort, r.LastPort = 0, 0
		return several && !r.TranslatesSource() && (r.Protocol == "" || r.Protocol == c.Protocol) && mayLead(&r, to)
	})
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
	case "ftp":
		f = worded("helper-missing ftp", nil, nil, name)
		if !c.DNAT {
			f.Cause = "the server names a port in the control connection (PASV, EPSV), and filters here let out connections to some ports alone: only a helper makes that one RELATED; since Linux 6.0 none is assigned without a rule"
		}
	}
	f.About = ends(c.Service, c.Target)
	f.Evidence = []Evidence{
		{What: "control connections, " + name, Value: c.Connections, Source: "connection table"},
		{What: "of them with a helper", Value: c.Helped, Source: "connection table"},
	}
	port := c.Service.Port()
	f.Remedies = []Remedy{advice("helper-add", c.Helper, c.Protocol, port, where(rec))}
	if c.Helper == "ftp" && c.DNAT {
		f.Remedies = append(f.Remedies, advice("helper-range", c.Target.Addr()))
	}
	return f
}
