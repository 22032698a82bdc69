package ruleset

import (
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
)

// TestQueue: what nf_tables leaves to a program, by the attributes of the expression.
func TestQueue(t *testing.T) {
	for _, c := range []struct {
		flags   byte
		readers map[uint16]bool
		passes  bool
	}{{0, map[uint16]bool{}, false}, {1, map[uint16]bool{}, true}, {0, map[uint16]bool{9: true}, false}, {0, map[uint16]bool{8: true}, true}, {0, nil, true}} {
		attrs, err := netlink.ParseAttrs(netlink.AppendAttr(netlink.AppendAttr(netlink.AppendAttr(nil, 1, []byte{0, 7}), 2, []byte{0, 2}), 3, []byte{0, c.flags}))
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{family: "ip", judged: true}
		r := m.read(&KernelRule{Exprs: []KernelExpr{{Name: "queue", Data: attrs}}})
		if r.Target.Queue != (nat.Ports{First: 7, Last: 8}) || r.Target.Bypass != (c.flags != 0) {
			t.Fatalf("%+v", r.Target)
		}
		table := &Table{Family: "ip", Readers: c.readers, Chains: []*Chain{{Name: "c", Hook: "forward", Policy: "accept", Rules: []*Rule{r}}}}
		if got := Judge([]*Table{table}, &Packet{}, "forward"); got.Passes != c.passes {
			t.Errorf("flags %d, readers %v: %+v", c.flags, c.readers, got)
		}
	}
}
