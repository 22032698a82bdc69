package run

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
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
