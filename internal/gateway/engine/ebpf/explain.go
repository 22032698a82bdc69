package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
)

// Follow has the programs of a plan handle a packet, and its answer, without sending them, and returns what they did; nil
// where they leave the packet to the stack as it is. They are loaded for that, beside those that may be attached. Needs
// CAP_BPF and CAP_NET_ADMIN.
func (Engine) Follow(ns *netns.Handle, p *gateway.Plan, facts gateway.Facts, route observe.Router, packet nat.Packet) (way *observe.Trace, err error) {
	if packet.In == "" {
		return nil, nil
	}
	c := compile(p)
	err = ns.Do(func() error {
		found, err := plane.ReadInterfaces()
		if err != nil {
			return err
		}
		t := &trial{plan: p, compiled: c, found: found, route: route}
		way, err = t.follow(packet)
		return err
	})
	return way, err
}

// trial runs packets through programs that are not attached.
type trial struct {
	plan     *gateway.Plan
	compiled *compiled
	found    []plane.Found
	route    observe.Router
}

func (t *trial) follow(packet nat.Packet) (*observe.Trace, error) {
	packet.At = time.Time{} // the programs do not ask for it
	steps, as, err := t.run(packet)
	if err != nil || as == nil {
		return nil, err
	}
	way := &observe.Trace{Schema: observe.Schema, Packet: packet, Steps: steps, Untracked: true,
		Fate: observe.Forwarded, Source: given(as.src, packet.Src, t.ruleOf(t.mapping(as, packet, false))), Destination: given(as.dst, packet.Dst, t.ruleOf(t.mapping(as, packet, true)))}
	hop, err := t.route(observe.Lookup{Source: packet.Src, Destination: as.dst.Addr(), In: packet.In})
	switch {
	case err != nil:
		return nil, err
	case hop.Unreachable != "":
		way.Fate = observe.Unreachable
		return way, nil
	}
	way.Out = hop.Out
	answer := nat.Packet{Protocol: packet.Protocol, Src: as.dst.Addr(), SrcPort: as.dst.Port(), Dst: as.src.Addr(), DstPort: as.src.Port(), In: hop.Out}
	reply, back, err := t.run(answer)
	switch {
	case err != nil:
		return nil, err
	case back == nil:
		way.ReplyLost = fmt.Sprintf("the programs leave the answer %s to the stack", answer)
	case back.dst != netip.AddrPortFrom(packet.Src, packet.SrcPort) || back.src != netip.AddrPortFrom(packet.Dst, packet.DstPort):
		way.ReplyLost = fmt.Sprintf("the answer %s becomes %s -> %s", answer, back.src, back.dst)
	}
	way.Reply = reply
	return way, nil
}

// became is what programs made of a packet.
type became struct {
	*plane.Outcome
	src, dst netip.AddrPort
}

// run returns nothing for a packet that the programs leave to the stack.
func (t *trial) run(packet nat.Packet) (steps []observe.Step, as *became, err error) {
	at := slices.IndexFunc(t.found, func(f plane.Found) bool { return f.Name == packet.In })
	if at < 0 {
		return nil, nil, nil
	}
	in := &t.found[at]
	programs, err := load(t.compiled, t.plan, t.found, "")
	if err != nil {
		return nil, nil, err
	}
	defer programs.Close()
	mode, _ := modeFor(in, t.plan)
	out, err := programs.Try(in.Index, mode, build(packet, in))
	if err != nil || out.Verdict == plane.Passed {
		return nil, nil, err
	}
	f, err := frame.Parse(out.Frame)
	if err != nil {
		return nil, nil, fmt.Errorf("read what the programs made of the packet: %w", err)
	}
	tuple := f.Tuple()
	as = &became{out, tuple.Src, tuple.Dst}
	if !mapsPorts(packet.Protocol) {
		as.src, as.dst = netip.AddrPortFrom(as.src.Addr(), packet.SrcPort), netip.AddrPortFrom(as.dst.Addr(), packet.DstPort)
	}
	return t.steps(packet, in, as), as, nil
}

// build makes a frame of a packet, as it comes in by an interface.
func build(packet nat.Packet, in *plane.Found) []byte {
	ip := frame.IP{Source: packet.Src, Destination: packet.Dst, Protocol: packet.Protocol, DSCP: packet.DSCP}
	tuple := frame.Tuple{Src: netip.AddrPortFrom(packet.Src, packet.SrcPort), Dst: netip.AddrPortFrom(packet.Dst, packet.DstPort)}
	var segment []byte
	switch packet.Protocol {
	case unix.IPPROTO_TCP:
		segment = frame.AppendTCP(nil, tuple, frame.TCP{Flags: frame.SYN, Window: 0xffff}, nil)
	case unix.IPPROTO_ICMP:
		segment = frame.AppendICMP(nil, packet.Src, packet.Dst, frame.ICMP{Type: 8, Rest: uint32(packet.SrcPort) << 16}, make([]byte, 8))
	case unix.IPPROTO_ICMPV6:
		segment = frame.AppendICMP(nil, packet.Src, packet.Dst, frame.ICMP{Type: 128, Rest: uint32(packet.SrcPort) << 16}, make([]byte, 8))
	default:
		segment = frame.AppendUDP(nil, tuple, make([]byte, 8), false)
	}
	kind := uint16(frame.EtherTypeIPv4)
	if packet.Src.Is6() {
		kind = frame.EtherTypeIPv6
	}
	var link frame.Link
	copy(link.Destination[:], in.MAC)
	return ip.Append(link.Append(nil, 0, kind), segment)
}

// steps are what the programs do with a packet: what of its headers changes, by which map and for which rule.
func (t *trial) steps(packet nat.Packet, in *plane.Found, as *became) (all []observe.Step) {
	hook := map[string]string{"xdp": "xdp", "tc": "tc ingress"}[as.Program]
	add := func(hook string, rule *gateway.Ref, format string, args ...any) {
		all = append(all, observe.Step{Hook: hook, Chain: "program of natkit on " + in.Name, Owner: "natkit", Rule: rule, Does: fmt.Sprintf(format, args...)})
	}
	if m := t.mapping(as, packet, true); m != nil {
		add(hook, t.ruleOf(m), "destination %s becomes %s, by the map %s", end(packet.Dst, packet.DstPort), end(as.dst.Addr(), as.dst.Port()), m.Map(true))
	}
	if as.Verdict == plane.Half {
		add(hook, nil, "%s", as.Reason)
		return all
	}
	if m := t.mapping(as, packet, false); m != nil {
		add(hook, t.ruleOf(m), "source %s becomes %s, by the map %s", end(packet.Src, packet.SrcPort), end(as.src.Addr(), as.src.Port()), m.Map(false))
	}
	add(hook, nil, "sent on by the host's routes, past netfilter")
	return all
}

func end(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// mapping is that which translated one end of a packet; nil where none did.
func (t *trial) mapping(as *became, packet nat.Packet, destination bool) *plane.Mapping {
	table, is, was := t.compiled.Sources, as.src, netip.AddrPortFrom(packet.Src, packet.SrcPort)
	if destination {
		table, is, was = t.compiled.Destinations, as.dst, netip.AddrPortFrom(packet.Dst, packet.DstPort)
	}
	if is == was {
		return nil
	}
	for _, number := range as.Rules {
		i := slices.IndexFunc(table, func(m plane.Mapping) bool {
			return m.Rule == number && (m.Hosts != nil || m.Match.Contains(was.Addr()) && m.To.Contains(is.Addr()) && (m.Port == 0 || m.Port == was.Port()))
		})
		if i >= 0 {
			return &table[i]
		}
	}
	return nil
}

func (t *trial) ruleOf(m *plane.Mapping) *gateway.Ref {
	if m == nil {
		return nil
	}
	return &t.compiled.rules[m.Rule]
}

func given(a netip.AddrPort, was netip.Addr, rule *gateway.Ref) observe.Given {
	if a.Addr() == was {
		rule = nil
	}
	return observe.Given{Rule: rule, Addresses: nat.AddrRanges{nat.OneAddr(a.Addr())}, Port: a.Port()}
}
