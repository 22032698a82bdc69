package tui

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
)

// Filter chooses what is shown: by an address or prefix the entries, by any other
// text the rows that have it in them. The zero value chooses all.
type Filter struct {
	text   string
	prefix netip.Prefix
}

// ParseFilter never fails: what is no address is text.
func ParseFilter(text string) Filter {
	f := Filter{text: strings.ToLower(strings.TrimSpace(text))}
	if addr, err := netip.ParseAddr(f.text); err == nil {
		addr = addr.Unmap().WithZone("")
		f.prefix = netip.PrefixFrom(addr, addr.BitLen())
	} else if prefix, err := netip.ParsePrefix(f.text); err == nil {
		f.prefix = prefix.Masked()
	}
	return f
}

// String is what was typed.
func (f Filter) String() string { return f.text }

// Entry reports whether one of the entry's addresses is chosen.
func (f Filter) Entry(e *conntrack.Entry) bool {
	return !f.prefix.IsValid() || f.has(e.Orig.Src) || f.has(e.Orig.Dst) || f.has(e.Reply.Src) || f.has(e.Reply.Dst)
}

func (f Filter) has(addr netip.Addr) bool { return f.prefix.Contains(addr.Unmap()) }

// chooses reports whether it is by their addresses that entries are chosen.
func (f Filter) chooses() bool { return f.prefix.IsValid() }

// row reports whether a row is shown that has these words in it: by text one that has
// it, by an address all but those that have others.
func (f Filter) row(words ...string) bool {
	if !f.chooses() {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(w), f.text) })
	}
	others := false
	for _, word := range words {
		addr := addressIn(word)
		if f.has(addr) {
			return true
		}
		others = others || addr.IsValid()
	}
	return !others
}

// addressIn reads an address with or without a port; the zero address is in no prefix.
func addressIn(word string) netip.Addr {
	if ap, err := netip.ParseAddrPort(word); err == nil {
		return ap.Addr()
	}
	addr, _ := netip.ParseAddr(word)
	return addr
}
