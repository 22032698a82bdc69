package behaviour

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway/observe"
)

// invalid sends a RST of no session along the way of a TCP packet. It is dropped where
// Explain names the chain that does so, and passes as it is everywhere else.
func (s *sample) invalid(from end, e *observe.Trace) {
	p := e.Packet
	stays := e.Destination.Rule == nil && e.Destination.Addresses[0].First == p.Dst && e.Destination.Port == p.DstPort
	if p.Protocol != unix.IPPROTO_TCP || e.Fate != observe.Forwarded || e.Untracked || !stays {
		return
	}
	const apart = 20000 // ports of no session
	src, dst := netip.AddrPortFrom(p.Src, p.SrcPort+apart), netip.AddrPortFrom(p.Dst, p.DstPort)
	b := tcp(src, dst, frame.TCP{Flags: frame.RST, SequenceNumber: 1000}, nil).bytes()
	giveClass(b, p.DSCP)
	got, err := s.world.Send(from.host, b)
	if err != nil {
		s.t.Fatal(err)
	}
	got = slices.DeleteFunc(got, func(a Arrival) bool { return a.Frame.Protocol != unix.IPPROTO_TCP }) // redirects of the gateway's
	drops := slices.ContainsFunc(e.Steps, func(step observe.Step) bool { return step.Chain == "inet natkit untranslatable" })
	switch {
	case drops && len(got) > 0, !drops && (len(got) != 1 || got[0].Frame.Tuple().Src != src || got[0].Frame.Tuple().Dst != dst):
		s.t.Errorf("an invalid packet as %s by %s: arrived: %v; foretold that it is dropped: %v\n%s", p, p.In, got, drops, s.text)
	case drops:
		s.seen["invalid, dropped"]++
	default:
		s.seen["invalid, passes"]++
	}
}
