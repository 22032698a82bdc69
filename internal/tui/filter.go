package tui

import (
	"net/netip"
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
		f.prefix = netip.PrefixFrom(addr.WithZone(""), addr.BitLen())
	} else if prefix, err := netip.ParsePrefix(f.text); err == nil {
		f.prefix = prefix.Masked()
	}
	return f
}

// String is what was typed.
func (f Filter) String() string { return f.text }

// Entry tells whether one of the entry's addresses is chosen.
func (f Filter) Entry(e *conntrack.Entry) bool {
	return !f.prefix.IsValid() || f.has(e.Orig.Src) || f.has(e.Orig.Dst) || f.has(e.Reply.Src) || f.has(e.Reply.Dst)
}

func (f Filter) has(addr netip.Addr) bool { return f.prefix.Contains(addr.Unmap()) }

// row tells whether a row is shown that has these words in it. Where entries were
// chosen by their addresses, rows with numbers of them are what is left already: they
// have none.
func (f Filter) row(words ...string) bool {
	if f.text == "" || f.prefix.IsValid() && len(words) == 0 {
		return true
	}
	for _, word := range words {
		if f.prefix.IsValid() && f.has(addressIn(word)) || !f.prefix.IsValid() && strings.Contains(strings.ToLower(word), f.text) {
			return true
		}
	}
	return false
}

// addressIn reads an address with or without a port; the zero address is in no prefix.
func addressIn(word string) netip.Addr {
	if ap, err := netip.ParseAddrPort(word); err == nil {
		return ap.Addr()
	}
	addr, _ := netip.ParseAddr(word)
	return addr
}
