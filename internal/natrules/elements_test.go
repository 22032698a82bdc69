package natrules

import (
	"encoding/binary"
	"fmt"
	"github.com/natkit/natkit/internal/testutil"
	"slices"
	"testing"
)

// listed is an element as the kernel tells it: NFTA_LIST_ELEM with key, flags and the
// key that ends it.
func listed(key []byte, flags uint32, last []byte) []byte {
	b := appendAttr(nil, nftSetElemKey, appendAttr(nil, nftDataValue, key))
	if flags != 0 {
		b = appendU32(b, nftSetElemFlags, flags)
	}
	if last != nil {
		b = appendAttr(b, nftElemKeyEnd, appendAttr(nil, nftDataValue, last))
	}
	return appendAttr(nil, nftListElem, b)
}

// TestElementsOf has intervals as the kernel tells them: their first keys, and the keys
// after their last ones, from above or from below.
func TestElementsOf(t *testing.T) {
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	begin := func(n uint16) []byte { return listed(port(n), 0, nil) }
	end := func(n uint16) []byte { return listed(port(n), nftElemIntervalEnd, nil) }
	for _, c := range []struct {
		name     string
		interval bool
		told     [][]byte
		want     string
	}{
		{"single ones", false, [][]byte{begin(80), begin(22)}, "[22-22 80-80]"},
		{"intervals from above", true, [][]byte{end(201), begin(100), end(21), begin(20), end(0)}, "[20-20 100-200]"},
		{"two that touch", true, [][]byte{begin(10), end(20), begin(20), end(30)}, "[10-19 20-29]"},
		{"to the last", true, [][]byte{begin(60000)}, "[60000-65535]"},
		{"one for all else", false, [][]byte{begin(80), listed(port(0), nftElemCatchall, nil)}, "[]"},
		{"several fields", true, [][]byte{listed(port(80), 0, port(90))}, "[80-90]"},
		{"garbled", true, [][]byte{{9, 0, 1}}, "[]"},
	} {
		got := []string{}
		for _, e := range elementsOf([][]byte{slices.Concat(c.told...)}, c.interval) {
			got = append(got, fmt.Sprintf("%d-%d", beUint16(e.first), beUint16(e.last)))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}

// FuzzElementsOf reads what no kernel tells, and looks it up.
func FuzzElementsOf(f *testing.F) {
	f.Add(listed([]byte{10, 0, 0, 0}, 0, nil), true)
	f.Add(listed([]byte{10, 0, 0, 0, 0, 80, 0, 0}, 0, []byte{10, 0, 0, 255, 0, 90, 0, 0}), true)
	f.Fuzz(func(t *testing.T, list []byte, interval bool) {
		defer testutil.Bounded(t, len(list)+8)()
		for _, e := range elementsOf([][]byte{list}, interval) {
			if len(e.first) != len(e.last) {
				t.Fatalf("from %x to %x", e.first, e.last)
			}
			m := machine{family: "ip", regs: map[uint32]content{}}
			m.load(1, content{from: payload, base: payloadNetwork, offset: 12, length: 4}, 4)
			m.load(9, content{from: payload, base: payloadTransport, offset: 2, length: 2}, 2)
			m.isBetween(slot(1), e)
		}
	})
}
