package behaviour

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// How many random files TestExplain takes, and packets through each.
const (
	sampleFiles   = 60
	samplePackets = 25
)

// TestExplain sends packets through random gateways and compares what arrives, and
// what comes of an answer, with what observe.Follow foretells.
func TestExplain(t *testing.T) {
	testutil.NeedFeature(t, testutil.Hairpin)
	w := explainedWorld(t)
	r := rand.New(rand.NewPCG(20, 26))
	s := sample{t: t, world: w, r: r, facts: Facts(), seen: map[string]int{}}
	start := time.Now()
	for range sampleFiles {
		s.file()
	}
	t.Logf("%d packets in %v: %v", s.port, time.Since(start).Round(time.Millisecond), s.seen)
	for _, kind := range []string{"masquerade", "snat", "dnat", "static", "netmap", "notrack", "stateless", "stateless hairpin", "hairpin", "none", "local", "unreachable", "answered", "program", "invalid, dropped", "invalid, passes"} {
		if s.seen[kind] < 5 {
			t.Errorf("the sample says little: %d of %s", s.seen[kind], kind)
		}
	}
}

func explainedWorld(t *testing.T) *netnsWorld {
	testutil.NeedRoot(t)
	testutil.ShareHost(t) // hundreds of connections are tracked
	w, err := Namespaces(alone, testutil.Patience(patience), Pairs)()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w.(*netnsWorld)
}

// kernelRoutes asks the kernel of a namespace.
func kernelRoutes(ns *netns.Handle) observe.Router {
	return func(w observe.Lookup) (observe.Hop, error) {
		r, err := host.OpenRoutes(ns)
		if err != nil {
			return observe.Hop{}, err
		}
		defer r.Close()
		return r.Follow(w)
	}
}

// send compares what Explain foretells with what comes.
func (s *sample) send(from end, p nat.Packet, b []byte) {
	e, err := observe.Follow(s.plan, s.facts, kernelRoutes(s.world.gateway), p)
	if err != nil {
		s.t.Fatal(err)
	}
	to := e.Destination.Addresses[0].First
	if e.Fate == observe.Forwarded && !attached(e.Out, to) {
		return // the gateway would ask for a neighbour that is not there
	}
	s.count(e)
	s.invalid(from, e)
	got, err := s.world.Send(from.host, b)
	if err != nil {
		s.t.Fatal(err)
	}
	came := likes(got, p, false)
	if !s.agrees(e, got, came) {
		return
	}
	if len(came) == 1 {
		if back, got := s.answer(from, p, came[0]); back != (e.ReplyLost == "") {
			s.t.Errorf("%s by %s: the answer: %v, foretold: %q\n%s", p, p.In, got, e.ReplyLost, s.text)
		}
	}
}

// agrees reports whether what came is what was foretold.
func (s *sample) agrees(e *observe.Trace, got, came Arrivals) bool {
	if err := s.judge(e, came); err != nil {
		p := e.Packet
		s.t.Errorf("%s by %s: %v\narrived: %v\nforetold: %s %s -> %s (%v, %v)\n%s", p, p.In, err, got, e.Fate, e.Source, e.Destination, e.Source.Rule, e.Destination.Rule, s.text)
		return false
	}
	return true
}

func (s *sample) judge(e *observe.Trace, came Arrivals) error {
	switch {
	case e.Fate != observe.Forwarded && len(came) > 0:
		return errors.New("nothing was to arrive")
	case e.Fate != observe.Forwarded:
		return nil
	case len(came) != 1:
		return errors.New("one packet was to arrive")
	}
	src, dst := tupleOf(&came[0])
	if !e.Source.Allows(src.Addr(), src.Port()) {
		return errors.New("another source arrived")
	}
	if !e.Destination.Allows(dst.Addr(), dst.Port()) && !came[0].Frame.ICMPError() && e.Packet.SrcPort != e.Packet.DstPort {
		return errors.New("another destination arrived")
	}
	return nil
}

// answer sends one back, and reports whether it comes as an answer to what was sent.
func (s *sample) answer(from end, p nat.Packet, a Arrival) (back bool, got Arrivals) {
	src, dst := tupleOf(&a)
	answer := nat.Packet{Protocol: p.Protocol, Src: dst.Addr(), SrcPort: dst.Port(), Dst: src.Addr(), DstPort: src.Port()}
	got, err := s.world.Send(a.At, compose(answer, true))
	if err != nil {
		s.t.Fatal(err)
	}
	came := likes(got, p, true)
	if len(came) != 1 || came[0].At != from.host {
		s.seen["not answered"]++
		return false, got
	}
	src, dst = tupleOf(&came[0])
	s.seen["answered"]++
	return src == netip.AddrPortFrom(p.Dst, p.DstPort) && dst == netip.AddrPortFrom(p.Src, p.SrcPort), got
}

func (s *sample) count(e *observe.Trace) {
	for _, step := range e.Steps {
		if strings.Contains(step.Does, "natkit's chain is not asked") {
			s.seen["theirs"]++
		}
	}
	switch {
	case e.Fate != observe.Forwarded:
		s.seen[string(e.Fate)]++
		return
	case e.Source.Rule == nil && e.Destination.Rule == nil && !e.Untracked:
		s.seen["none"]++
	case e.Untracked && e.Source.Rule != nil && e.Destination.Rule != nil:
		s.seen["stateless hairpin"]++
	case e.Source.Rule != nil && e.Destination.Rule != nil:
		s.seen["hairpin"]++
	}
	rules := []*gateway.Ref{e.Source.Rule, e.Destination.Rule}
	if e.Untracked {
		s.seen[map[bool]string{true: "notrack", false: "stateless"}[rules[0] == nil && rules[1] == nil]]++
		return
	}
	for _, r := range rules {
		if r != nil {
			s.seen[r.Kind]++
		}
	}
}

// attached reports whether a host has an address behind an interface.
func attached(dev string, a netip.Addr) bool {
	for _, at := range attachments() {
		if at.dev != dev {
			continue
		}
		for _, n := range at.neighbours {
			if n == a {
				return true
			}
		}
		for _, n := range at.networks {
			if n.Contains(a) {
				return true
			}
		}
	}
	return false
}

// likes are the arrivals of a packet's kind, without what the gateway says itself.
func likes(all Arrivals, p nat.Packet, answer bool) (out Arrivals) {
	for _, a := range all {
		f := &a.Frame
		if f.Protocol != p.Protocol {
			continue
		}
		switch p.Protocol {
		case unix.IPPROTO_TCP:
			if f.TCP.Flags&frame.RST != 0 {
				continue
			}
		case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
			if !isEchoOf(f, answer) {
				continue
			}
		}
		out = append(out, a)
	}
	return out
}

func isEchoOf(f *frame.Frame, answer bool) bool {
	if answer {
		return f.ICMP.Type == echoReply && f.Version == 4 || f.ICMP.Type == echoReply6 && f.Version == 6
	}
	return f.ICMP.Type == echoRequest && f.Version == 4 || f.ICMP.Type == echoRequest6 && f.Version == 6
}

// tupleOf gives an echo's identifier as both ports.
func tupleOf(a *Arrival) (src, dst netip.AddrPort) {
	t := a.Frame.Tuple()
	if f := &a.Frame; f.Protocol == unix.IPPROTO_ICMP || f.Protocol == unix.IPPROTO_ICMPV6 {
		id := f.ICMP.Identifier()
		return netip.AddrPortFrom(t.Src.Addr(), id), netip.AddrPortFrom(t.Dst.Addr(), id)
	}
	return t.Src, t.Dst
}
