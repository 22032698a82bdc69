package ruleset

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

// parsed are the intervals of a list of elements; none if it is malformed.
func parsed(list []byte, interval bool) []interval {
	elements, err := ParseElements(list)
	if err != nil {
		return nil
	}
	return intervals(elements, interval, true)
}

// listed is an element as the kernel encodes it: NFTA_LIST_ELEM with key, flags and the
// key that ends it.
func listed(key []byte, flags uint32, last []byte) []byte {
	b := netlink.AppendAttr(nil, unix.NFTA_SET_ELEM_KEY, netlink.AppendAttr(nil, unix.NFTA_DATA_VALUE, key))
	if flags != 0 {
		b = netlink.AppendU32(b, unix.NFTA_SET_ELEM_FLAGS, flags)
	}
	if last != nil {
		b = netlink.AppendAttr(b, setElemKeyEnd, netlink.AppendAttr(nil, unix.NFTA_DATA_VALUE, last))
	}
	return netlink.AppendAttr(nil, unix.NFTA_LIST_ELEM, b)
}

// TestElementsOf has intervals as the kernel lists them: their first keys, and the keys
// after their last ones, in descending or ascending order.
func TestElementsOf(t *testing.T) {
	number := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	begin := func(n uint16) []byte { return listed(number(n), 0, nil) }
	end := func(n uint16) []byte { return listed(number(n), unix.NFT_SET_ELEM_INTERVAL_END, nil) }
	for _, c := range []struct {
		name     string
		interval bool
		listed   [][]byte
		want     string
	}{
		{"single ones", false, [][]byte{begin(80), begin(22)}, "[22-22 80-80]"},
		{"intervals from above", true, [][]byte{end(201), begin(100), end(21), begin(20), end(0)}, "[20-20 100-200]"},
		{"two that touch", true, [][]byte{begin(10), end(20), begin(20), end(30)}, "[10-19 20-29]"},
		{"to the last", true, [][]byte{begin(60000)}, "[60000-65535]"},
		{"one for all else", false, [][]byte{begin(80), listed(number(0), catchall, nil)}, "[]"},
		{"several fields", true, [][]byte{listed(number(80), 0, number(90))}, "[80-90]"},
		{"garbled", true, [][]byte{{9, 0, 1}}, "[]"},
	} {
		got := []string{}
		for _, e := range parsed(slices.Concat(c.listed...), c.interval) {
			got = append(got, fmt.Sprintf("%d-%d", port(e.first), port(e.last)))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}

// FuzzElementsOf parses elements that no kernel sends, and looks them up.
func FuzzElementsOf(f *testing.F) {
	f.Add(listed([]byte{10, 0, 0, 0}, 0, nil), true)
	f.Add(listed([]byte{10, 0, 0, 0, 0, 80, 0, 0}, 0, []byte{10, 0, 0, 255, 0, 90, 0, 0}), true)
	f.Fuzz(func(t *testing.T, list []byte, interval bool) {
		defer testutil.Bounded(t, len(list)+8)()
		for _, e := range parsed(list, interval) {
			if len(e.first) != len(e.last) {
				t.Fatalf("from %x to %x", e.first, e.last)
			}
			m := machine{family: "ip", regs: map[uint32]content{}}
			m.load(1, content{from: payload, base: unix.NFT_PAYLOAD_NETWORK_HEADER, offset: 12, length: 4}, 4)
			m.load(9, content{from: payload, base: unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2}, 2)
			m.isBetween(slot(1), e)
		}
	})
}
