package aggregate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/natkit/natkit/internal/conntrack"
)

// none stands where an entry has no value of a key.
const none = "-"

// Text is the value of the i-th key, for people.
func (g Group) Text(i int) string {
	k, b := g.value(i)
	switch k.kind {
	case zone:
		return zoneText(b)
	case mark:
		return fmt.Sprintf("%#x", binary.BigEndian.Uint32(b))
	case sport, dport, replySport, replyDport:
		if b[0]|b[1] == 0 {
			return none
		}
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	}
	return g.word(k, b)
}

// word is a value that is the same text for people and for programs.
func (g Group) word(k *Key, b []byte) string {
	switch k.kind {
	case family:
		return [versions]string{"ipv4", "ipv6"}[b[0]]
	case proto:
		return conntrack.ProtocolName(b[0])
	case state:
		return stateName(b[0])
	case status:
		return statusName(b[0])
	case nat:
		return natNames[b[0]]
	}
	a, _ := netip.AddrFromSlice(b)
	switch bits := k.bits[g.version]; {
	case k.kind == snatAddress && a.IsUnspecified():
		return none
	case bits < a.BitLen():
		return netip.PrefixFrom(a, bits).String()
	}
	return a.String()
}

// zoneText names the zone, or the zones of both directions where they differ.
func zoneText(b []byte) string {
	orig, reply := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if orig == reply {
		return strconv.Itoa(int(orig))
	}
	return fmt.Sprintf("orig %d, reply %d", orig, reply)
}

// Value is the value of the i-th key for JSON: a number, a string, or nil where the
// entry has none.
func (g Group) Value(i int) any {
	k, b := g.value(i)
	var text string
	switch k.kind {
	case mark:
		return binary.BigEndian.Uint32(b)
	case zone:
		if orig, reply := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]); orig == reply {
			return orig
		}
		return zoneText(b)
	case sport, dport, replySport, replyDport:
		if port := binary.BigEndian.Uint16(b); port != 0 {
			return port
		}
		return nil
	default:
		text = g.word(k, b)
	}
	if text == none {
		return nil
	}
	return text
}

// CSV is the value of the i-th key as other programs read it: that of JSON without
// quotes, and nothing where the entry has none.
func (g Group) CSV(i int) string {
	if v := g.Value(i); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}
