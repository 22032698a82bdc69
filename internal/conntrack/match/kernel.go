package match

import (
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// Kernel is the part of f that the kernel can apply itself. Match must look at
// what it lets through: it may know less, and never chooses less.
func (f *Filter) Kernel() conntrack.KernelFilter {
	if f == nil {
		return conntrack.KernelFilter{}
	}
	k := conntrack.KernelFilter{
		Family: f.family(), Src: single(f.Orig.Src), Dst: single(f.Orig.Dst),
		Proto: f.Proto.value, SrcPort: f.Orig.SrcPort.value, DstPort: f.Orig.DstPort.value,
		Status: f.Status, StatusMask: f.Status | f.Unset,
		Mark: f.Mark, MarkMask: f.MarkMask, Zone: f.Zone.value,
	}
	return k
}

// family is the one asked for, or that of an address that is.
func (f *Filter) family() uint8 {
	if f.Family != 0 {
		return f.Family
	}
	for _, p := range []netip.Prefix{f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst} {
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
