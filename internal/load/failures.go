package load

import (
	"cmp"
	"slices"
)

// phases in the order of a request's life; the index is what workers record.
var phases = [...]Phase{Connect, Send, Wait, Read, Reply}

// PhaseIndex is a Phase as workers count it.
type PhaseIndex uint8

// The indices of the phases.
const (
	InConnect PhaseIndex = iota
	InSend
	InWait
	InRead
	InReply
)

type failureKind struct {
	phase  PhaseIndex
	reason Reason
	count  int64
}

// maxKinds bounds a worker's failure classes. A server that answers with more
// different statuses gets the rest counted under the last class's phase as status 0.
const maxKinds = 96

// FailureCounts counts failures by phase and reason. Nothing but NewFailureCounts
// allocates.
type FailureCounts struct{ kinds []failureKind }

// NewFailureCounts is empty.
func NewFailureCounts() *FailureCounts {
	return &FailureCounts{kinds: make([]failureKind, 0, maxKinds)}
}

// Add counts one failure.
func (c *FailureCounts) Add(phase PhaseIndex, reason Reason) {
	c.addKind(failureKind{phase, reason, 1})
}

// Merge adds what o counted.
func (c *FailureCounts) Merge(o *FailureCounts) {
	for _, k := range o.kinds {
		c.addKind(k)
	}
}

func (c *FailureCounts) addKind(k failureKind) {
	for i := range c.kinds {
		if c.kinds[i].phase == k.phase && c.kinds[i].reason == k.reason {
			c.kinds[i].count += k.count
			return
		}
	}
	if len(c.kinds) == maxKinds-1 {
		k.phase, k.reason = InReply, StatusReason(0)
	}
	if len(c.kinds) == maxKinds {
		c.kinds[maxKinds-1].count += k.count
		return
	}
	c.kinds = append(c.kinds, k)
}

// List has the classes in the order of a request's life, most frequent first within
// a phase. Reasons that read the same are one class.
func (c *FailureCounts) List() []Failure {
	all := []Failure{}
	for _, k := range c.kinds {
		f := Failure{Phase: phases[k.phase], Reason: k.reason.String(), Count: k.count}
		same := func(x Failure) bool { return x.Phase == f.Phase && x.Reason == f.Reason }
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i].Count += f.Count
			continue
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b Failure) int {
		return cmp.Or(
			cmp.Compare(slices.Index(phases[:], a.Phase), slices.Index(phases[:], b.Phase)),
			cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Reason, b.Reason))
	})
	return all
}
