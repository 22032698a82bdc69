package dump

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// TestPasses has kernels that refuse, and consumers that stop.
func TestPasses(t *testing.T) {
	ports := (&conntrack.Filter{Proto: conntrack.Is[uint8](6), Orig: conntrack.Side{DstPort: conntrack.Is[uint16](80)}}).Request()
	marks := conntrack.Filter{Mark: 1, MarkMask: 1}
	without := func(families ...uint8) (all []conntrack.Filter) {
		for _, f := range families {
			all = append(all, conntrack.Filter{Family: f})
		}
		return all
	}
	cause := errors.New("cause")
	for name, c := range map[string]struct {
		f      conntrack.Filter
		refuse error // to filters of more than a family
		fn     error
		asked  []conntrack.Filter
		err    error
	}{
		"everything":         {f: conntrack.Filter{}, asked: without(0)},
		"marks":              {f: marks, asked: []conntrack.Filter{marks}},
		"ports":              {f: ports, asked: ports.Passes()},
		"without marks":      {f: marks, refuse: unix.EOPNOTSUPP, asked: append([]conntrack.Filter{marks}, without(0)...)},
		"ports refused":      {f: ports, refuse: unix.EINVAL, asked: []conntrack.Filter{ports.Passes()[0], {Family: unix.AF_INET}, ports.Passes()[1], {Family: unix.AF_INET6}}},
		"no privilege":       {f: marks, refuse: unix.EPERM, asked: []conntrack.Filter{marks}, err: unix.EPERM},
		"stopped":            {f: ports, fn: ErrStop, asked: ports.Passes()[:1]},
		"error of the first": {f: ports, fn: cause, asked: ports.Passes()[:1], err: cause},
	} {
		var asked []conntrack.Filter
		r, err := passes(c.f, func([]byte) error { return c.fn }, func(f conntrack.Filter, fn func([]byte) error) (Result, error) {
			asked = append(asked, f)
			if family := (conntrack.Filter{Family: f.Family}); f != family && c.refuse != nil {
				return Result{}, fmt.Errorf("dump: %w", c.refuse)
			}
			if err := fn(nil); err != nil && !errors.Is(err, ErrStop) {
				return Result{Bytes: 1}, err
			}
			return Result{Bytes: 1, Complete: true}, nil
		})
		if !slices.Equal(asked, c.asked) || !errors.Is(err, c.err) || r.Complete != (c.fn == nil && c.err == nil) {
			t.Errorf("%s: %+v, %v, asked for %+v; want %+v", name, r, err, asked, c.asked)
		}
	}
}

// TestDoubtful has a kernel that lets through no answers as they were asked for.
func TestDoubtful(t *testing.T) {
	orig := (&conntrack.Filter{Orig: conntrack.Side{Dst: netip.MustParsePrefix("203.0.113.1/32")}}).Request()
	reply := (&conntrack.Filter{SrcNAT: conntrack.NAT{On: true, Addr: netip.MustParsePrefix("203.0.113.1/32")}}).Request()
	four := conntrack.Filter{Family: unix.AF_INET}
	for name, c := range map[string]struct {
		f      conntrack.Filter
		chosen int64
		err    error
		asked  []conntrack.Filter
	}{
		"original direction": {f: orig, asked: []conntrack.Filter{orig}},
		"read rightly":       {f: reply, chosen: 1, asked: []conntrack.Filter{reply}},
		"wrongly, or none":   {f: reply, asked: []conntrack.Filter{reply, four}},
		"no privilege":       {f: reply, err: unix.EPERM, asked: []conntrack.Filter{reply}},
	} {
		var asked []conntrack.Filter
		r, err := undoubted(c.f, func(f conntrack.Filter) (Result, int64, error) {
			asked = append(asked, f)
			return Result{Bytes: 10, Complete: true}, c.chosen, c.err
		})
		if !slices.Equal(asked, c.asked) || !errors.Is(err, c.err) || r.Bytes != 10*int64(len(asked)) {
			t.Errorf("%s: asked for %+v, %+v, %v", name, asked, r, err)
		}
	}
}
