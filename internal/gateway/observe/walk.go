package observe

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// walk takes a packet through the hooks.
type walk struct {
	plan   *gateway.Plan
	facts  *gateway.Facts
	route  Router
	packet nat.Packet
	e      *Trace
	// src and dst are what they are by now; dstDone and srcDone: a chain, ours or another,
	// has decided, and no later one is asked (nf_nat_initialized).
	src, dst endpoint
	// asked is the destination when our nat chain was asked for it.
	asked         endpoint
	dstDone       bool
	srcDone       bool
	dstTranslated bool // IPS_DST_NAT
	// mark is that of the packet where it is on an uplink or goes to a zone, otherwise 0.
	mark uint32
	// zone is the one whose routes come first; nil for none.
	zone *gateway.Zone
	hop  Hop
	err  error // of route, where it was asked on the way
}

// The names of natkit's chains, with their hooks and priorities.
const (
	hookPrerouting  = "prerouting"
	hookInput       = "input"
	hookForward     = "forward"
	hookOutput      = "output"
	hookPostrouting = "postrouting"
	hookRouting     = "routing"
)

// stop is a place at a hook: a chain, or the kernel's own work.
type stop struct {
	priority int32
	chain    string
	foreign  *gateway.Foreign
	do       func(*Step)
}

func newWalk(p *gateway.Plan, facts *gateway.Facts, route Router, packet nat.Packet) *walk {
	if packet.In != "" { // of another host
		packet.Owned = false
	}
	timed := false
	for e := range p.Entries() {
		timed = timed || e.IsTimed()
	}
	if !timed { // it makes no difference
		packet.At = time.Time{}
	}
	if z := p.ZoneBy(packet.In); z != nil {
		packet.Zone = z.Name
	}
	w := &walk{plan: p, facts: facts, route: route, packet: packet,
		src: endpoint{packet.Src, packet.SrcPort}, dst: endpoint{packet.Dst, packet.DstPort}}
	w.asked = w.dst
	w.e = &Trace{Schema: Schema, Packet: packet, Source: as(w.src), Destination: as(w.dst)}
	return w
}

// walk makes the whole trace.
func (w *walk) walk() error {
	if err := w.hooks(); err != nil {
		return err
	}
	w.nearMisses()
	if err := w.reply(); err != nil {
		return err
	}
	w.notes()
	return nil
}

// hooks takes the packet from its first hook to its last.
func (w *walk) hooks() error {
	first := hookPrerouting
	if w.packet.In == "" {
		first = hookOutput
	}
	w.hook(first, w.firstStops(first))
	if w.e.Fate == Dropped {
		return w.err
	}
	if err := cmp.Or(w.err, w.routing()); err != nil {
		return err
	}
	switch w.e.Fate {
	case Forwarded:
		if w.packet.In != "" {
			w.hook(hookForward, w.forwardStops())
		}
		w.hook(hookPostrouting, w.postroutingStops())
	case Local:
		w.hook(hookInput, nil)
	}
	return w.err
}

// The priorities of the kernel's own work (enum nf_ip_hook_priorities).
const (
	priorityRaw       = -300
	priorityConntrack = -200
	priorityConfirm   = 1<<31 - 1
)

// firstStops are natkit's and the tracker's, where packets come in or are sent.
func (w *walk) firstStops(hook string) []stop {
	stops := []stop{{priority: priorityConntrack, do: w.track}}
	if len(w.plan.Untracked)+len(w.plan.Stateless) > 0 {
		stops = append(stops, stop{priority: priorityRaw, chain: "raw-" + hook, do: w.raw})
	}
	if len(w.plan.Uplinks) > 0 {
		stops = append(stops, stop{priority: -145, chain: "uplink-" + hook, do: w.uplink})
	}
	if len(w.plan.Zones) > 0 && hook == hookPrerouting {
		stops = append(stops, stop{priority: -450, chain: "zones", do: w.fromZone}, stop{priority: -144, chain: "zone-" + hook, do: w.markZone})
	}
	if len(w.plan.Helpers) > 0 && hook == hookPrerouting {
		stops = append(stops, stop{priority: -140, chain: "helpers", do: w.helpers})
	}
	if w.hasDestinations(hook) {
		stops = append(stops, stop{priority: -80, chain: hook, do: w.destination})
	}
	return stops
}

func (w *walk) hasDestinations(hook string) bool {
	return slices.ContainsFunc(w.plan.Destinations, func(d gateway.Entry) bool { return hook == hookPrerouting || d.Local })
}

func (w *walk) forwardStops() (stops []stop) {
	if w.plan.MSS != (gateway.MSS{}) && w.packet.Protocol == protocolTCP {
		stops = append(stops, stop{priority: -150, chain: "mss", do: w.mss})
	}
	if w.plan.ConnectionsPerSource > 0 || len(w.plan.Flowtable) > 0 || w.plan.TTL > 0 {
		stops = append(stops, stop{priority: 0, chain: "forward", do: w.forward})
	}
	if gateway.NoHairpin(w.facts.Kernel) != "" {
		stops = append(stops, stop{priority: 120, chain: "untranslatable", do: w.untranslatable})
	}
	return stops
}

func (w *walk) postroutingStops() (stops []stop) {
	if w.packet.In != "" && gateway.NoHairpin(w.facts.Kernel) == "" {
		stops = append(stops, stop{priority: 109, chain: "untranslatable", do: w.untranslatable})
	}
	if len(w.plan.Stateless) > 0 {
		stops = append(stops, stop{priority: 110, chain: "stateless", do: w.statelessSource})
	}
	if len(w.plan.Sources) > 0 {
		stops = append(stops, stop{priority: 120, chain: "postrouting", do: w.source})
	}
	if w.packet.In == "" && w.e.Uplink != "" && !w.e.Untracked {
		stops = append(stops, stop{priority: 121, chain: "uplink-postrouting", do: w.ownSource})
	}
	if !w.e.Untracked {
		stops = append(stops, stop{priority: priorityConfirm, do: func(s *Step) {
			s.Does = "the connection is entered into the table (nf_conntrack_confirm)"
		}})
	}
	return stops
}

// hook takes the packet through the chains at a hook, natkit's and others', in the order
// of their priorities.
func (w *walk) hook(hook string, stops []stop) {
	for i := range w.facts.Foreign {
		if f := &w.facts.Foreign[i]; f.Hook == hook && sees(f, w.packet) {
			stops = append(stops, stop{priority: f.Priority, foreign: f})
		}
	}
	slices.SortStableFunc(stops, func(a, b stop) int { return cmp.Compare(a.priority, b.priority) })
	for _, s := range stops {
		step := Step{Hook: hook, Priority: s.priority}
		if s.foreign != nil {
			w.foreign(s.foreign, &step)
		} else {
			if s.chain != "" {
				step.Chain = "inet natkit " + s.chain
			}
			s.do(&step)
		}
		if step.Does != "" {
			w.e.Steps = append(w.e.Steps, step)
		}
		if w.e.Fate == Dropped {
			return
		}
	}
}

// routing asks where the packet goes, with the destination that it has by now.
func (w *walk) routing() error {
	hop, err := w.route(w.lookup())
	if err != nil {
		return err
	}
	hop = w.byUplink(w.byZone(hop))
	off := ""
	if w.packet.In != "" {
		off = w.facts.NotForwarded(w.src.addr.Is6(), w.packet.In)
	}
	if hop.Unreachable != "" && off != "" {
		// The kernel answers as a host that forwards nothing: report where it would go.
		if hop, err = w.route(Lookup{Destination: w.dst.addr, Mark: w.mark}); err != nil {
			return err
		}
		hop = w.byUplink(w.byZone(hop))
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

// stops reports what keeps the host from forwarding the packet: the sysctl that is off, or
// the bridge that it came by.
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

// reply traces an answer. Where both directions are tracked the entry undoes what was
// done, and no nat chain is asked; otherwise the answer is a packet like all.
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
	p := nat.Packet{Protocol: w.packet.Protocol, Src: w.dst.addr, SrcPort: w.dst.port,
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
	if nat.IsICMP(w.packet.Protocol) {
		return endpoint{addr: w.dst.addr}
	}
	return w.dst
}

func (w *walk) replyPort() uint16 {
	if nat.IsICMP(w.packet.Protocol) {
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

// notes adds what else the user should know.
func (w *walk) notes() {
	if strangers := w.notOurs(); len(strangers) > 0 && w.e.Source.Rule != nil {
		w.note("%s: no address of this host: what is outside must route answers to it", strings.Join(strangers, ", "))
	}
	if g := w.e.Source; g.Rule != nil && !w.e.Untracked && (len(g.Addresses) > 1 || len(g.Addresses) == 1 && !g.Addresses[0].IsSingle()) {
		w.note("if %s has a connection by this rule already, its address and %s are used again where they are free", endpoint{w.packet.Src, w.packet.SrcPort}, g.port())
	}
	w.unknowns()
	for _, wait := range w.plan.Waiting {
		w.note("%s has no effect: %s has no address", wait.Rule, wait.Interface)
	}
	w.off()
	if !w.facts.Known {
		w.note("the host was not read: the effect of other programs' rules is unknown")
	}
	for _, what := range w.facts.Unknown {
		w.note("not read: %s", what)
	}
}

// off names rules that are off: whether one would translate the packet is not known, as nothing of them is resolved.
func (w *walk) off() {
	var names []string
	for _, o := range w.plan.Off[:min(manyOff, len(w.plan.Off))] {
		names = append(names, o.Rule.String())
	}
	if more := len(w.plan.Off) - manyOff; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	if len(names) > 0 {
		w.note("off, and so not asked: %s", strings.Join(names, ", "))
	}
}

// unknowns names rules that would translate the packet if it had a mark, or a program of some user sent it: neither is
// seen from its words.
func (w *walk) unknowns() {
	p := w.now()
	if w.e.Fate == Forwarded {
		w.mayPrecede(w.plan.Sources, &p, w.e.Source.Rule)
	}
	p.Dst, p.DstPort, p.Out = w.asked.addr, w.asked.port, ""
	w.mayPrecede(w.plan.Destinations, &p, w.e.Destination.Rule)
}

// mayPrecede looks at the rules before the one that translates, which come first because they say more.
func (w *walk) mayPrecede(list []gateway.Entry, p *nat.Packet, winner *gateway.Ref) {
	known := map[gateway.Ref]bool{}
	for i := range list {
		e := &list[i]
		if winner != nil && e.Rule == *winner || len(known) == manyNear {
			return
		}
		missed := e.Misses(p)
		if len(missed) != 1 || e.IsHairpin() || known[e.Rule] || p.In == "" && !e.Local && !e.Action.Kind.TranslatesSource() {
			continue
		}
		switch {
		case missed[0] == nat.TimeOfWeek:
			known[e.Rule] = true
			w.note("at another time (--at) %s translates it: %s", e.Rule, e.Text(nat.TimeOfWeek))
		case missed[0] == nat.MarkBits && p.Mark == 0:
			known[e.Rule] = true
			w.note("its mark is taken to be 0: with another one (--mark) %s translates it: %s", e.Rule, e.Text(nat.MarkBits))
		case missed[0] == nat.Owner && !p.Owned && p.In == "":
			known[e.Rule] = true
			w.note("whose program sends it is not known: by --user and --group %s may translate it: %s", e.Rule, e.Text(nat.Owner))
		}
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
		if !w.facts.HasAny(r) {
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

// now is the packet as it is by now.
func (w *walk) now() nat.Packet {
	p := w.packet
	p.Src, p.SrcPort, p.Dst, p.DstPort, p.Out = w.src.addr, w.src.port, w.dst.addr, w.dst.port, w.e.Out
	if w.dstTranslated {
		p.OriginalDst, p.OriginalPort = w.packet.Dst, w.packet.DstPort
	}
	return p
}

// misses says which conditions of a destination the packet does not meet; none where it
// matches.
func (w *walk) misses(d *gateway.Entry) (why []string) {
	p, m := w.now(), d.Match
	p.Dst, p.DstPort, p.Out = w.asked.addr, w.asked.port, ""
	if w.packet.In == "" {
		m.In, m.NotIn = nil, nil // the output hook has no such condition
	}
	why = reasons(&m, &p)
	if w.packet.In == "" && !d.Local {
		why = append(why, "not for programs on the gateway itself: that would be local: true")
	}
	if !has(m.In, p.In) && w.plan.Inside(p.In) && (d.Rule.Kind == "dnat" || d.Rule.Kind == "static") {
		why[len(why)-1] += "; from inside that would be hairpin: true"
	}
	return why
}

// reasons are the conditions that a packet does not meet, each as what it asks for.
func reasons(m *nat.Match, p *nat.Packet) (why []string) {
	asked := m.Asked()
	for _, c := range m.Misses(p) {
		text, excepted := "only "+asked.Text(c), m.Excepted(c, p)
		switch {
		case excepted != "":
			text = "not " + map[nat.Condition]string{nat.To: "to ", nat.From: "from "}[c] + excepted
		case c == nat.Protocol: // whose ports are said with it
			text = "only " + nat.ServiceString(m.Protocol, m.Ports)
		case c == nat.Out:
			text += ", not " + p.Out
		case c == nat.TimeOfWeek:
			text += ", not " + p.At.UTC().Format("Mon 15:04")
		case c == nat.Owner && !p.Owned:
			text += ": programs on the gateway whose user and group are known, by --user and --group"
		}
		if !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return why
}

// sourceMisses is misses of a source, at the end of the packet's way.
func (w *walk) sourceMisses(s *gateway.Entry) []string {
	p := w.now()
	why := reasons(&s.Match, &p)
	for i, text := range why {
		why[i] = strings.Replace(text, "only on ", "only to ", 1)
	}
	if s.IsHairpin() && (w.packet.In == "" || !w.plan.Inside(w.packet.In) || !w.plan.Inside(w.e.Out)) {
		why = append(why, "only what comes from inside and is sent back there")
	}
	return why
}

// protocolTCP is its IP number.
const protocolTCP = 6

// manyNear bounds the list of near misses, manyOff that of rules that are off.
const (
	manyNear = 5
	manyOff  = 3
)

// nearMisses are the rules about the packet's addresses that do not translate it, those
// first of which the fewest conditions fail.
func (w *walk) nearMisses() {
	if w.e.Untracked {
		return
	}
	all := map[gateway.Ref]*NearMiss{}
	for i := range w.plan.Destinations {
		if d := &w.plan.Destinations[i]; d.On().Contains(w.asked.addr) && (d.Action.Pairs == "" || d.HasOutside(w.asked.addr)) {
			keep(all, d.Rule, d.Match.String(), w.misses(d), w.e.Destination.Rule)
		}
	}
	for i := range w.plan.Sources {
		s := &w.plan.Sources[i]
		if w.e.Fate == Forwarded && !s.IsHairpin() && nat.InAny(s.From, w.src.addr) && (s.Action.Pairs == "" || s.HasInside(w.src.addr)) {
			keep(all, s.Rule, s.Match.String(), w.sourceMisses(s), w.e.Source.Rule)
		}
	}
	w.e.Near = w.nearest(all)
}

// keep remembers why a rule does not translate; of its entries the nearest one.
func keep(all map[gateway.Ref]*NearMiss, rule gateway.Ref, text string, why []string, winner *gateway.Ref) {
	if winner != nil && *winner == rule {
		return
	}
	if len(why) == 0 && winner != nil {
		why = []string{winner.String() + " is more specific"}
	}
	if old := all[rule]; len(why) > 0 && (old == nil || len(why) < len(old.Why)) {
		all[rule] = &NearMiss{Rule: rule, Text: text, Why: why}
	}
}

func (w *walk) nearest(all map[gateway.Ref]*NearMiss) (near []NearMiss) {
	for ref, miss := range all {
		if !w.acts(ref) {
			near = append(near, *miss)
		}
	}
	slices.SortFunc(near, func(a, b NearMiss) int {
		if d := len(a.Why) - len(b.Why); d != 0 {
			return d
		}
		return a.Rule.Compare(b.Rule)
	})
	if len(near) > manyNear {
		w.e.NearMore = len(near) - manyNear
		near = near[:manyNear]
	}
	return near
}

// acts reports whether a rule does something to the packet, on either side.
func (w *walk) acts(r gateway.Ref) bool {
	for _, g := range []*gateway.Ref{w.e.Source.Rule, w.e.Destination.Rule} {
		if g != nil && *g == r {
			return true
		}
	}
	return false
}
