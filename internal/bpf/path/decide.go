package path

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/snapshot"
)

// attachResults listens for what deciding functions return. The error is that of the first
// function that cannot be traced: all of them on a kernel without fexit.
func (t *Tracer) attachResults(list []target) (first error) {
	spec, err := loadPath()
	if err != nil {
		return err
	}
	program := spec.Programs[pathProgPathResult]
	clear(spec.Programs)
	for _, f := range list {
		spec.Programs[pathProgPathResult] = program.Copy()
		if err := t.attachResult(spec, f); err != nil && first == nil {
			first = fmt.Errorf("attach to the return of %s (needs fexit, Linux 5.17): %w", f.Name, err)
		}
	}
	return first
}

func (t *Tracer) attachResult(spec *ebpf.CollectionSpec, f target) error {
	d := t.decider(f)
	if err := t.coll.Maps[pathMapDeciders].Put(f.Addr, &d); err != nil {
		return err
	}
	spec.Programs[pathProgPathResult].AttachTo = f.Name
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: t.coll.Maps, Cache: t.types.cache})
	if err != nil {
		return err
	}
	defer coll.Close() // the link keeps the program
	l, err := link.AttachTracing(link.TracingOptions{Program: coll.Programs[pathProgPathResult]})
	if err == nil {
		t.att.links = append(t.att.links, l)
	}
	return err
}

// decider describes to the program where a function has its arguments.
func (t *Tracer) decider(f target) pathDecider {
	proto := t.types.function(f.Function)
	d := pathDecider{SkbArg: uint32(f.arg - 1), StateArg: int32(argOf(proto, "nf_hook_state") - 1), SkbOffset: -1}
	if f.arg == 0 {
		arg, offset := inPktinfo(proto)
		d.SkbArg, d.SkbOffset = uint32(arg-1), int32(offset)
	}
	return d
}

// Verdicts of include/uapi/linux/netfilter.h.
var verdicts = map[int64]string{0: "DROP", 1: "ACCEPT", 2: "STOLEN", 3: "QUEUE", 4: "REPEAT", 5: "STOP"}

// verdictOf names what a deciding function returned. nf_hook_slow answers to its
// caller in its own way (net/netfilter/core.c): 1 for go on, 0 for stolen or queued,
// and an error for a drop.
func verdictOf(function string, value int64) string {
	if function == "nf_hook_slow" {
		switch {
		case value == 1:
			return "ACCEPT"
		case value == 0:
			return "STOLEN or QUEUE"
		case value < 0:
			return "DROP"
		}
	}
	// A drop has its error, a queue its number in the upper half.
	name := verdicts[value&0xff]
	if name == "" {
		return fmt.Sprint(value)
	}
	return name
}

// Hooks of struct nf_hook_state: of IP, and those of bridges, which are their first
// five too (linux/netfilter.h, netfilter_bridge.h, netfilter_arp.h, netfilter_netdev).
var (
	hookNames  = []string{"PRE_ROUTING", "LOCAL_IN", "FORWARD", "LOCAL_OUT", "POST_ROUTING"}
	arpHooks   = []string{"ARP_IN", "ARP_OUT", "ARP_FORWARD"}
	netdevHook = []string{"INGRESS", "EGRESS"}
)

const (
	nfprotoARP    = 3
	nfprotoNetdev = 5
	nfprotoBridge = 7
)

func hookName(pf, hook uint8) string {
	names := hookNames
	switch pf {
	case nfprotoARP:
		names = arpHooks
	case nfprotoNetdev:
		names = netdevHook
	}
	if int(hook) >= len(names) {
		return fmt.Sprintf("hook %d", hook)
	}
	if pf == nfprotoBridge {
		return "bridge " + names[hook]
	}
	return names[hook]
}

var (
	delivered = newMatcher(known.lists["delivered"])
	sent      = newMatcher(known.lists["sent"])
)

// verdict returns the fate of a packet: the best that became of one of its buffers.
// A copy for a packet socket is consumed while the packet goes on, and what a socket
// got as a copy may be dropped itself, since no other socket wants it.
func verdict(steps []snapshot.PathStep, alive bool) snapshot.PathVerdict {
	buffers := map[int][]snapshot.PathStep{}
	for _, s := range steps {
		buffers[s.Buffer] = append(buffers[s.Buffer], s)
	}
	best := snapshot.PathVerdict{Result: snapshot.PathConsumed, Function: lastFunction(steps)}
	if alive {
		best.Result = snapshot.PathOpen
	}
	for _, n := range slices.Sorted(maps.Keys(buffers)) {
		if v := fate(buffers[n]); rank[v.Result] > rank[best.Result] {
			best = v
		}
	}
	return best
}

// rank orders results; an unknown one is lowest.
var rank = map[string]int{snapshot.PathConsumed: 1, snapshot.PathOpen: 2, snapshot.PathDropped: 3, snapshot.PathSent: 4, snapshot.PathDelivered: 5}

// fate returns the verdict on one buffer; its Result is empty if it is not known.
func fate(steps []snapshot.PathStep) snapshot.PathVerdict {
	if d := decisive(steps, isDrop); d >= 0 {
		return snapshot.PathVerdict{Result: snapshot.PathDropped, Function: steps[d].Function, Reason: steps[d].Reason, Netns: steps[d].Netns}
	}
	to, away := decisive(steps, isCallOf(delivered)), decisive(steps, isCallOf(sent))
	switch {
	case to > away:
		return snapshot.PathVerdict{Result: snapshot.PathDelivered, Function: steps[to].Function, Netns: lastNetns(steps[:to+1])}
	// A device that hands it on to another namespace is not its end.
	case away >= 0 && !slices.ContainsFunc(steps[away+1:], isOtherNetns(steps[away].Netns)):
		return snapshot.PathVerdict{Result: snapshot.PathSent, Function: steps[away].Function, Interface: steps[away].Interface, Netns: steps[away].Netns}
	}
	return snapshot.PathVerdict{}
}

// lastNetns: once a socket has a packet, it has no device any more, and so no
// namespace.
func lastNetns(steps []snapshot.PathStep) uint64 {
	if i := decisive(steps, func(s snapshot.PathStep) bool { return s.Netns != 0 }); i >= 0 {
		return steps[i].Netns
	}
	return 0
}

// decisive is the last step that is one; -1 for none.
func decisive(steps []snapshot.PathStep, is func(snapshot.PathStep) bool) int {
	for i, s := range slices.Backward(steps) {
		if is(s) {
			return i
		}
	}
	return -1
}

func isDrop(s snapshot.PathStep) bool { return s.Event == snapshot.StepDropped }

func isCallOf(m matcher) func(snapshot.PathStep) bool {
	return func(s snapshot.PathStep) bool { return s.Event == snapshot.StepCall && m.match(s.Function) }
}

func isOtherNetns(netns uint64) func(snapshot.PathStep) bool {
	return func(s snapshot.PathStep) bool {
		return s.Event == snapshot.StepCall && s.Netns != 0 && s.Netns != netns
	}
}

func lastFunction(steps []snapshot.PathStep) string {
	if i := decisive(steps, func(s snapshot.PathStep) bool { return s.Event == snapshot.StepCall }); i >= 0 {
		return steps[i].Function
	}
	return ""
}
