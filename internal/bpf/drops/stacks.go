package drops

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// addStacks reads the ways on which packets came to their end.
func (t *Tracer) addStacks(d *snapshot.Drops, cpu dropsCpu) error {
	d.StackSample = max(t.opt.StackSample, 0)
	if t.opt.StackSample <= 0 {
		return nil
	}
	var key dropsStackKey
	var packets uint64
	it := t.maps[dropsMapStackCounts].Iterate()
	for it.Next(&key, &packets) {
		var stack dropsStack
		if err := t.maps[dropsMapStacks].Lookup(uint32(key.Id), &stack); err != nil {
			d.LostStacks += packets
			continue
		}
		d.Stacks = append(d.Stacks, snapshot.DropStack{
			Reason: t.names.reasons.Name(key.Site.Reason), Protocol: protocolName(key.Site.Protocol), Netns: uint64(key.Site.Netns),
			Functions: t.names.functions(stack, key.Site.Location), Packets: packets,
		})
	}
	slices.SortFunc(d.Stacks, func(a, b snapshot.DropStack) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), slices.Compare(a.Functions, b.Functions), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Netns, b.Netns))
	})
	d.LostStacks += cpu.LostStacks
	return iterated("the stacks of drops", it)
}

// functions name a stack, the innermost first, from the place of the drop on: what
// is further inside is the tracepoint's and this program's.
func (n *names) functions(s dropsStack, location uint64) []string {
	frames := s.Frame[:]
	if end := slices.Index(frames, 0); end >= 0 {
		frames = frames[:end]
	}
	if i := slices.Index(frames, location); i >= 0 {
		frames = frames[i:]
	}
	functions := make([]string, len(frames))
	for i, f := range frames {
		at := n.place(f)
		functions[i] = fmt.Sprintf("%s+%#x", at.Name, at.Offset)
	}
	return functions
}
