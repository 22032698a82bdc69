package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
)

// routing asks where the packet goes, with the destination that it has by now.
func (w *walk) routing() error {
	way := Lookup{Source: w.src.addr, Destination: w.dst.addr, In: w.packet.In}
	hop, err := w.route(way)
	if err != nil {
		return err
	}
	off := ""
	if way.In != "" {
		off = w.facts.NotForwarded(w.src.addr.Is6(), way.In)
	}
	if hop.Unreachable != "" && off != "" {
		// The kernel answers as a host that forwards nothing: where it would go is told.
		if hop, err = w.route(Lookup{Destination: w.dst.addr}); err != nil {
			return err
		}
	}
	w.hop, w.e.Fate = hop, Forwarded
	step := Step{Hook: hookRouting}
	switch {
	case hop.Unreachable != "":
		w.e.Fate, step.Does = Unreachable, fmt.Sprintf("to %s: %s", w.dst.addr, hop.Unreachable)
	case hop.Local:
		w.e.Fate, step.Does = Local, fmt.Sprintf("%s is the gateway's own: it goes no further", w.dst.addr)
	default:
		w.e.Out, step.Does = hop.Out, "to "+w.dst.addr.String()+" by "+hop.Out+via(hop)
		w.stops(off, &step)
	}
	w.e.Steps = append(w.e.Steps, step)
	return nil
}

// stops tells what keeps the host from forwarding the packet: the sysctl that is off, or the
// bridge that it came by.
func (w *walk) stops(off string, s *Step) {
	b := w.facts.BridgeOf(w.packet.In)
	back := w.dstTranslated && w.e.Out == w.packet.In && b.Cuts(w.src.addr.Is6())
	itself := w.dst.addr == w.packet.Src
	switch {
	case off != "":
		w.e.Fate = Dropped
		s.Does += fmt.Sprintf("; dropped: %s is 0, so that the host does not forward what comes in by %s", off, w.packet.In)
	case back && itself && len(b.Hairpin) == 0:
		w.e.Fate = Dropped
		s.Does += fmt.Sprintf("; dropped: %s takes what it carries through netfilter (bridge-nf-call-iptables), and its ports send nothing back that came in by them (hairpin mode)", w.e.Out)
	case back && itself:
		s.Unsure = true
		w.note("dropped, unless %s is behind %s: the other ports of %s send nothing back that came in by them", w.packet.Src, strings.Join(b.Hairpin, ", "), w.e.Out)
	case back:
		s.Unsure = true
		w.note("dropped, if %s and %s are behind the same port of %s: %s send nothing back that came in by them", w.packet.Src, w.dst.addr, w.e.Out, strings.Join(b.OneWay, ", "))
	}
}

func via(h Hop) string {
	if h.Gateway.IsValid() {
		return " via " + h.Gateway.String()
	}
	return ""
}

// reply tells the way of an answer. Where both directions are tracked the entry undoes
// what was done, and no nat chain is asked; otherwise the answer is a packet like all.
func (w *walk) reply() error {
	if w.e.Fate == Unreachable || w.e.Fate == Dropped || len(w.e.Source.Addresses) == 0 {
		return nil
	}
	back, err := w.answer()
	if err != nil {
		return err
	}
	if w.e.Untracked || back.e.Untracked {
		w.untrackedReply(back)
		return nil
	}
	w.trackedReply()
	return nil
}

// answer takes an answer through the hooks as if it were a first packet.
func (w *walk) answer() (*walk, error) {
	p := Packet{Protocol: w.packet.Protocol, Src: w.dst.addr, SrcPort: w.dst.port,
		Dst: w.e.Source.Addresses[0].First, DstPort: max(w.e.Source.Port, w.e.Source.First), In: w.e.Out}
	back := newWalk(w.plan, w.facts, w.route, p)
	return back, back.hooks()
}

func (w *walk) untrackedReply(back *walk) {
	w.e.Reply = back.e.Steps
	want := [2]netip.Addr{w.packet.Dst, w.packet.Src}
	got := [2]netip.Addr{back.src.addr, back.dst.addr}
	if back.e.Source.Rule != nil && len(back.e.Source.Addresses) > 0 {
		got[0] = back.e.Source.Addresses[0].First
	}
	switch {
	case back.e.Fate == Dropped:
		w.e.ReplyLost = "it is dropped"
	case back.e.Fate == Unreachable:
		w.e.ReplyLost = "there is no route for it"
	case got != want:
		w.e.ReplyLost = fmt.Sprintf("it comes as one from %s to %s, not from %s to %s: the two directions are not translated by the same rule", got[0], got[1], want[0], want[1])
	}
}

func (w *walk) trackedReply() {
	if off := w.facts.NotForwarded(w.src.addr.Is6(), w.e.Out); off != "" && w.e.Fate == Forwarded && w.packet.In != "" {
		w.e.ReplyLost = fmt.Sprintf("%s is 0: the host does not forward what comes in by %s", off, w.e.Out)
	}
	first := Step{Hook: hookPrerouting, Priority: priorityConntrack, Rule: w.e.Source.Rule}
	first.Does = fmt.Sprintf("an answer from %s comes for %s", w.answerer(), w.e.Source)
	if w.e.Source.Rule != nil || w.srcDone {
		first.Does += fmt.Sprintf(": the destination becomes %s again", endpoint{w.packet.Src, w.packet.SrcPort})
	}
	w.e.Reply = append(w.e.Reply, first, Step{Hook: hookRouting, Does: w.back()})
	if w.e.Destination.Rule != nil || w.dstDone {
		w.e.Reply = append(w.e.Reply, Step{Hook: hookPostrouting, Rule: w.e.Destination.Rule,
			Does: fmt.Sprintf("the source becomes %s again", endpoint{w.packet.Dst, w.replyPort()})})
	}
}

// answerer is who answers.
func (w *walk) answerer() endpoint {
	if w.packet.isEcho() {
		return endpoint{addr: w.dst.addr}
	}
	return w.dst
}

func (w *walk) replyPort() uint16 {
	if w.packet.isEcho() {
		return 0
	}
	return w.packet.DstPort
}

func (w *walk) back() string {
	if w.packet.In == "" {
		return "to the program on the gateway"
	}
	return fmt.Sprintf("to %s by %s", w.packet.Src, w.packet.In)
}

// notes say what else somebody should know.
func (w *walk) notes() {
	if strangers := w.notOurs(); len(strangers) > 0 && w.e.Source.Rule != nil {
		w.note("%s: no address of this host: what is outside must route answers to it", strings.Join(strangers, ", "))
	}
	if g := w.e.Source; g.Rule != nil && !w.e.Untracked && (len(g.Addresses) > 1 || len(g.Addresses) == 1 && g.Addresses[0].First != g.Addresses[0].Last) {
		w.note("if %s has a connection by this rule already, its address and %s are used again where they are free", endpoint{w.packet.Src, w.packet.SrcPort}, g.port())
	}
	for _, wait := range w.plan.Waiting {
		w.note("%s has no effect: %s has no address", wait.Rule, wait.Interface)
	}
	if !w.facts.Known {
		w.note("the host was not looked at: what other programs' rules do is not told")
	}
	for _, what := range w.facts.Unknown {
		w.note("not looked at: %s", what)
	}
}

func (w *walk) note(format string, args ...any) {
	w.e.Notes = append(w.e.Notes, fmt.Sprintf(format, args...))
}

// notOurs are the ranges given of which no address is the host's.
func (w *walk) notOurs() (out []string) {
	if !w.facts.Known || !w.routesBack() {
		return nil
	}
	for _, r := range w.e.Source.Addresses {
		if !owns(w.facts, r) {
			out = append(out, r.String())
		}
	}
	return out
}

// routesBack is false for answers that come from the gateway itself, or from inside,
// where it is on the way to everything.
func (w *walk) routesBack() bool {
	hairpin := len(w.plan.WAN)+len(w.plan.LAN) > 0 && w.plan.Inside(w.packet.In) && w.plan.Inside(w.e.Out)
	return w.e.Fate == Forwarded && !hairpin
}

func owns(f *gateway.Facts, r gateway.Range) bool {
	return slices.ContainsFunc(f.Interfaces, func(i gateway.Interface) bool {
		for _, p := range i.Addresses {
			if r.Contains(p.Addr()) {
				return true
			}
		}
		return false
	})
}
