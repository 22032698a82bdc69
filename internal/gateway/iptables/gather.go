package iptables

import (
	"reflect"

	"github.com/natkit/natkit/internal/gateway"
)

// gather makes one rule of those about sources that are parts of one and differ in the
// sources alone. Compile takes a list of prefixes apart again: nothing changes.
func gather(rules []made) (all []made) {
next:
	for _, m := range rules {
		for i := len(all) - 1; i >= 0 && sameOrigin(all[i].from[0].rule, m.from[0].rule); i-- {
			if all[i].takes(&m) {
				continue next
			}
		}
		all = append(all, m)
	}
	return all
}

// takes adds another rule's sources to m's where both are of one.
func (m *made) takes(other *made) bool {
	a, b := m.sources(), other.sources()
	if a == nil || b == nil || m.version != other.version || len(a.From) == 0 || len(b.From) == 0 {
		return false
	}
	from := a.From
	a.From = b.From
	same := reflect.DeepEqual(m.rule, other.rule)
	if a.From = from; !same {
		return false
	}
	a.From = append(a.From, b.From...)
	m.from = append(m.from, other.from...)
	return true
}

func (m *made) sources() *gateway.Sources {
	switch {
	case m.rule.Masquerade != nil:
		return &m.rule.Masquerade.Sources
	case m.rule.SNAT != nil:
		return &m.rule.SNAT.Sources
	}
	return nil
}

func sameOrigin(a, b *Rule) bool {
	return a.Line == b.Line && a.Handle == b.Handle && (a.Line != 0 || a.Handle != 0)
}
