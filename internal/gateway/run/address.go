package run

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/gateway"
)

// addresses are all that the host has, also those that IPv6 still asks about whether
// another one has them (tentative): after a link was down for a moment that begins
// anew, and they have not gone.
func (h Host) addresses() (set map[netip.Addr]bool, err error) {
	set = map[netip.Addr]bool{}
	err = h.do(func() error {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		for _, a := range all {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				set[ip.Unmap()] = true
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return set, nil
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
