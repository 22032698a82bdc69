package ruleset

import (
	"encoding/binary"
	"testing"
)

// TestLegacyInverted: a condition that every packet meets, inverted, is met by none, and is
// not left out.
func TestLegacyInverted(t *testing.T) {
	for _, l := range []*Layout{&LayoutIP4, &LayoutIP6} {
		e := legacyEntry{l: l, b: make([]byte, l.size)}
		for name, flag := range map[string]byte{"-i +": 0x01, "-o +": 0x02, "-s 0/0": 0x08, "-d 0/0": 0x10, "-p all": 0x40} {
			var plain, not Match
			e.b[l.inverted] = 0
			e.conditions(&plain)
			e.b[l.inverted] = flag
			e.conditions(&not)
			if !plain.isAll() || not.isAll() {
				t.Errorf("%s: ! %s is %+v", l.Family, name, not)
			}
		}
		copy(e.b[4*l.addr:], "eth0")
		copy(e.b[4*l.addr+2*nameBytes:], "\xff\xff\xff\xff\xff")
		binary.NativeEndian.PutUint16(e.b[l.proto:], 6)
		e.b[l.inverted] = 0x01
		var m Match
		if e.conditions(&m); len(m.Unknown) > 0 || len(m.NotIn) != 1 || m.NotIn[0] != "eth0" || m.Protocol != 6 {
			t.Errorf("%s: ! -i eth0 -p tcp is %+v", l.Family, m)
		}
	}
}

// iptables -D finds a rule of the alias NOTRACK by that word alone.
func TestNotrackAlias(t *testing.T) {
	for flags, want := range map[byte]string{1: "-j CT --notrack", 3: "-j NOTRACK"} {
		r := &Rule{}
		if r.target("CT", 2, append([]byte{flags}, make([]byte, 63)...), false); r.Target.String() != want {
			t.Errorf("flags %d: %s, want %s", flags, r.Target.String(), want)
		}
	}
}
