package run

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
)

func addressesOf(all []gateway.Interface) map[netip.Addr]bool {
	set := map[netip.Addr]bool{}
	for _, i := range all {
		for _, p := range i.Addresses {
			set[p.Addr()] = true
		}
	}
	return set
}

// gone are the addresses of before that no interface has any more.
func gone(before, now map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	for a := range before {
		if !now[a] {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func addressWords(all []netip.Addr) string {
	words := make([]string, len(all))
	for i, a := range all {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}

// missing are the interfaces that a plan names and the host does not have.
func missing(p *gateway.Plan, have []gateway.Interface) []string {
	var names []string
	add := func(more ...string) {
		for _, name := range more {
			there := slices.ContainsFunc(have, func(i gateway.Interface) bool { return i.Name == name })
			if !there && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	add(p.WAN...)
	add(p.LAN...)
	for _, s := range p.Sources {
		add(s.Out...)
	}
	for _, d := range p.Destinations {
		add(d.In...)
	}
	for _, s := range p.Stateless {
		add(s.Out...)
	}
	for _, w := range p.Waiting {
		add(w.Interface)
	}
	slices.Sort(names)
	return names
}

// quiet has its timer go off when events have ceased for a while, or have gone on for
// too long.
type quiet struct {
	timer *time.Timer
	begun time.Time
}

func newQuiet() *quiet {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &quiet{timer: t}
}

func (q *quiet) event(now time.Time) {
	if q.begun.IsZero() {
		q.begun = now
	}
	q.timer.Reset(max(0, min(settle, settleMax-now.Sub(q.begun))))
}
