package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
)

// tunnelLoss is what is wrong with the tunnel that a connection leaves by; empty where nothing shows that it is the
// tunnel. What this host sends into it, and what comes of it, count at its interface.
func (r *row) tunnelLoss() string {
	p, t := r.place, r.place.Tunnel
	unasked := isUnansweredNeighbour(p.Neighbour) && (r.Failed.Step == snapshot.StepLostHere || r.Failed.Step == snapshot.StepUnreachableHere)
	if t == nil || r.Failed.Step != snapshot.StepNoAnswer && !unasked || r.culprit() != nil {
		return ""
	}
	if t.Remote.IsValid() {
		if isUnansweredNeighbour(t.Neighbour) {
			return fmt.Sprintf("nobody answers for %s, its far end, on this host's network (ARP or neighbour discovery)", t.Remote)
		}
		for i := range r.all {
			if o := &r.all[i]; o.In == "" && o.Service.Addr() == t.Remote && t.Port != 0 && o.Service.Port() == t.Port && o.Failed != nil && o.Failed.Step == snapshot.StepUnreachable {
				return fmt.Sprintf("%s refuses its datagrams (ICMP: %s): it has no such tunnel, or a filter", o.Failed.By, icmpText(o.Failed))
			}
		}
	}
	if r.isMasqueradedInside() && t.Kind != "wireguard" { // one-way as the far end does not take the source; handshakes of WireGuard count
		return ""
	}
	sent, known := hostDelta(r.rec, "dev "+p.Out+" tx_packets")
	got, both := hostDelta(r.rec, "dev "+p.Out+" rx_packets")
	if !known || !both || sent < fewestFailed || got > 0 {
		return ""
	}
	return fmt.Sprintf("%s sent %d packets %s and received none", p.Out, sent, r.rec.Span())
}

func isUnansweredNeighbour(state string) bool {
	return state == snapshot.NeighbourFailed || state == snapshot.NeighbourIncomplete
}

// tunnelText names a tunnel and its far end.
func tunnelText(p *snapshot.FailedPlace) string {
	if !p.Tunnel.Remote.IsValid() {
		return fmt.Sprintf("%s, a tunnel (%s)", p.Out, p.Tunnel.Kind)
	}
	return fmt.Sprintf("%s, a tunnel (%s) to %s", p.Out, p.Tunnel.Kind, p.Tunnel.Remote)
}

// tunnelCause is what is known of the tunnel that it leaves by; empty where nothing is.
func (r *row) tunnelCause() string {
	loss := r.tunnelLoss()
	switch {
	case loss != "":
		return fmt.Sprintf("; it leaves by %s, and nothing comes back through it: %s", tunnelText(r.place), loss)
	case r.place.Tunnel != nil && r.Failed.Step == snapshot.StepNoAnswer:
		return "; it leaves by " + tunnelText(r.place)
	}
	return ""
}

// compareEnds is how to find what is wrong with a tunnel.
func (r *row) compareEnds() Remedy {
	t, see := r.place.Tunnel, "ip -d link show "+r.place.Out
	switch t.Kind {
	case "vxlan":
		see += "', 'bridge fdb show dev " + r.place.Out
	case "wireguard":
		see = "wg show " + r.place.Out
	}
	end, watch := "its far end", "that"
	if t.Remote.IsValid() {
		end, watch = t.Remote.String(), fmt.Sprintf("'tcpdump -ni any host %s'", t.Remote)
	}
	if t.Port != 0 {
		watch += fmt.Sprintf(" (udp port %d)", t.Port)
	}
	return advice("tunnel-ends", see, end, watch, where(r.rec))
}
