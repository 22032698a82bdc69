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
	ports := (&conntrack.Filter{Proto: conntrack.Is[uint8](6), Orig: conntrack.Side{DstPort: conntrack.Is[uint16](80)}}).Kernel()
	marks := conntrack.KernelFilter{Mark: 1, MarkMask: 1}
	without := func(families ...uint8) (all []conntrack.KernelFilter) {
		for _, f := range families {
			all = append(all, conntrack.KernelFilter{Family: f})
		}
		return all
	}
	cause := errors.New("cause")
	for name, c := range map[string]struct {
		f        conntrack.KernelFilter
		refuse   error // to filters of more than a family
		fn       error
		asked    []conntrack.KernelFilter
		filtered bool
		err      error
	}{
		"everything":         {f: conntrack.KernelFilter{}, asked: without(0)},
		"marks":              {f: marks, asked: []conntrack.KernelFilter{marks}, filtered: true},
		"ports":              {f: ports, asked: ports.Passes(), filtered: true},
		"without marks":      {f: marks, refuse: unix.EOPNOTSUPP, asked: append([]conntrack.KernelFilter{marks}, without(0)...)},
		"ports refused":      {f: ports, refuse: unix.EINVAL, asked: []conntrack.KernelFilter{ports.Passes()[0], {Family: unix.AF_INET}, ports.Passes()[1], {Family: unix.AF_INET6}}},
		"no privilege":       {f: marks, refuse: unix.EPERM, asked: []conntrack.KernelFilter{marks}, filtered: true, err: unix.EPERM},
		"stopped":            {f: ports, fn: ErrStop, asked: ports.Passes()[:1], filtered: true},
		"error of the first": {f: ports, fn: cause, asked: ports.Passes()[:1], filtered: true, err: cause},
	} {
		var asked []conntrack.KernelFilter
		r, err := passes(c.f, func([]byte) error { return c.fn }, func(f conntrack.KernelFilter, fn func([]byte) error) (Result, error) {
			asked = append(asked, f)
			if family := (conntrack.KernelFilter{Family: f.Family}); f != family && c.refuse != nil {
				return Result{}, fmt.Errorf("dump: %w", c.refuse)
			}
			if err := fn(nil); err != nil && !errors.Is(err, ErrStop) {
				return Result{Bytes: 1}, err
			}
			return Result{Bytes: 1, Complete: true}, nil
		})
		if !slices.Equal(asked, c.asked) || r.Filtered != c.filtered || !errors.Is(err, c.err) || r.Complete != (c.fn == nil && c.err == nil) {
			t.Errorf("%s: %+v, %v, asked for %+v; want %+v", name, r, err, asked, c.asked)
		}
	}
}

// TestDoubtful has a kernel that lets through no answers as they were asked for.
func TestDoubtful(t *testing.T) {
	orig := (&conntrack.Filter{Orig: conntrack.Side{Dst: netip.MustParsePrefix("203.0.113.1/32")}}).Kernel()
	reply := (&conntrack.Filter{SrcNAT: conntrack.NAT{On: true, Addr: netip.MustParsePrefix("203.0.113.1/32")}}).Kernel()
	four := conntrack.KernelFilter{Family: unix.AF_INET}
	for name, c := range map[string]struct {
		f      conntrack.KernelFilter
		chosen int64
		err    error
		asked  []conntrack.KernelFilter
	}{
		"original direction": {f: orig, asked: []conntrack.KernelFilter{orig}},
		"read rightly":       {f: reply, chosen: 1, asked: []conntrack.KernelFilter{reply}},
		"wrongly, or none":   {f: reply, asked: []conntrack.KernelFilter{reply, four}},
		"no privilege":       {f: reply, err: unix.EPERM, asked: []conntrack.KernelFilter{reply}},
	} {
		var asked []conntrack.KernelFilter
		r, err := undoubted(c.f, func(f conntrack.KernelFilter) (Result, int64, error) {
			asked = append(asked, f)
			return Result{Bytes: 10, Complete: true}, c.chosen, c.err
		})
		if !slices.Equal(asked, c.asked) || !errors.Is(err, c.err) || r.Bytes != 10*int64(len(asked)) {
			t.Errorf("%s: asked for %+v, %+v, %v", name, asked, r, err)
		}
	}
}
