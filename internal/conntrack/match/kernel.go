package match

import (
	"cmp"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// Kernel is the part of f that the kernel can apply itself. Match must look at what
// it lets through, which may be more, and for a doubtful filter less
// (conntrack.KernelFilter).
func (f *Filter) Kernel() conntrack.KernelFilter {
	if f == nil {
		return conntrack.KernelFilter{}
	}
	return conntrack.KernelFilter{
		Family: f.family(), Proto: f.Proto.value, Orig: f.Orig.kernel(), Reply: f.reply(),
		Status: f.Status, StatusMask: f.Status | f.Unset,
		Mark: f.Mark, MarkMask: f.MarkMask, Zone: f.Zone.value,
	}
}

// reply is what is asked of answers: they come from and go to what a translation
// has put in place.
func (f *Filter) reply() conntrack.KernelTuple {
	t := f.Reply.kernel()
	if !t.Dst.IsValid() {
		t.Dst = single(f.SrcNAT.Addr)
	}
	if !t.Src.IsValid() {
		t.Src = single(f.DstNAT.Addr)
	}
	t.DstPort = cmp.Or(t.DstPort, f.SrcNAT.Port.value)
	t.SrcPort = cmp.Or(t.SrcPort, f.DstNAT.Port.value)
	return t
}

func (s *Side) kernel() conntrack.KernelTuple {
	return conntrack.KernelTuple{Src: single(s.Src), Dst: single(s.Dst), SrcPort: s.SrcPort.value, DstPort: s.DstPort.value}
}

// family is the one asked for, or that of an address that is.
func (f *Filter) family() uint8 {
	if f.Family != 0 {
		return f.Family
	}
	for _, p := range []netip.Prefix{f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst,
		f.SrcNAT.Addr, f.DstNAT.Addr, f.AnyNAT.Addr} {
		if !p.IsValid() {
			continue
		}
		if p.Addr().Is4() {
			return unix.AF_INET
		}
		return unix.AF_INET6
	}
	return 0
}

// single is the address of a prefix that holds only one.
func single(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() {
		return p.Addr()
	}
	return netip.Addr{}
}
