//go:build linux

package cli

import (
	"context"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
)

// planInForce is nil where there is none.
func planInForce(ctx context.Context, env *Env, ns *netns.Handle) (*gateway.Plan, *gateway.Facts, error) {
	h, err := gatewayHost(env, ns)
	if err != nil {
		return nil, nil, err
	}
	plan, err := h.InForce()
	if err != nil || plan == nil {
		return nil, nil, err
	}
	facts, err := host.Read(ctx, ns, host.Options{})
	return plan, &facts, err
}

// rulesSince is when the rules in force were applied; zero where that is not known.
func rulesSince(env *Env, ns *netns.Handle) time.Time {
	h, err := gatewayHost(env, ns)
	if err != nil {
		return time.Time{}
	}
	since, _ := h.InForceSince() // what cannot be read does not say it
	return since
}

// mostOwn bounds the connections of this host that are listed.
const mostOwn = 1000

// isOwn reports whether a connection is one that this host, or whoever has the address that is asked for, opened by itself: no
// rule gave it the address and port.
func (w *gatewayWho) isOwn(e *conntrack.Entry) bool {
	return !w.inside && e.Orig.Src == w.query.Address && (w.query.Port == 0 || e.Orig.SrcPort == w.query.Port) && !e.IsSNAT()
}

func ownBy(e *conntrack.Entry) report.NATOwner {
	return report.NATOwner{Source: "table", Certain: true, Inside: e.Orig.Src.String(), InsidePort: e.Orig.SrcPort, Outside: e.Orig.Src.String(), OutsidePort: e.Orig.SrcPort,
		Protocol: nat.ProtocolName(e.Orig.Proto), Peer: e.Orig.Dst.String(), PeerPort: e.Orig.DstPort, Zone: e.Zone, Text: "its own connection, which no rule translates"}
}

// byTable asks the connection table.
func (w *gatewayWho) byTable(ctx context.Context, ns *netns.Handle) {
	s := report.WhoSource{Kind: "table"}
	now := time.Now()
	h := natlog.NewHistory(w.query, w.inside, time.Time{})
	filter, translated := &conntrack.Filter{}, &conntrack.Filter{AnyNAT: conntrack.NAT{On: true}}
	if w.query.Protocol != 0 {
		filter.Proto = conntrack.Is(w.query.Protocol)
	}
	own := 0
	_, err := dump.Each(ctx, ns, filter, func(e *conntrack.Entry) error {
		switch {
		case w.isOwn(e) && own < mostOwn:
			own++
			w.doc.Owners = append(w.doc.Owners, ownBy(e))
			return nil
		case w.isOwn(e):
			s.More++
			return nil
		case !translated.Match(e):
			return nil
		}
		r := natlog.Of(natlog.Start, e)
		if r.Time = now; e.Start != 0 {
			r.Time = time.Unix(0, int64(e.Start))
		}
		h.Add(&r)
		return nil
	})
	if s.Read = err == nil; err != nil {
		s.Error = err.Error()
	}
	s.Found, s.More = own, s.More+h.More
	for _, held := range h.Held() {
		if held.Time.Equal(now) {
			held.Since = time.Time{} // not known
		}
		w.doc.Owners = append(w.doc.Owners, w.heldBy(&held, "table"))
		s.Found++
	}
	w.doc.Sources = append(w.doc.Sources, s)
}
