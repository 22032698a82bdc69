package ruleset

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// TestLargeMap: a map of more elements than become rules of their own is one rule, and
// costs nothing for each.
func TestLargeMap(t *testing.T) {
	const n = 100_000
	attrs := func(b []byte) netlink.Attrs {
		all, err := netlink.ParseAttrs(b)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	numbers := func(pairs ...uint32) (b []byte) {
		for i := 0; i < len(pairs); i += 2 {
			b = netlink.AppendU32(b, uint16(pairs[i]), pairs[i+1])
		}
		return b
	}
	rule := &KernelRule{Chain: "post", Exprs: []KernelExpr{
		{Name: "payload", Data: attrs(numbers(unix.NFTA_PAYLOAD_DREG, 1, unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER, unix.NFTA_PAYLOAD_OFFSET, 12, unix.NFTA_PAYLOAD_LEN, 4))},
		{Name: "lookup", Data: attrs(append(netlink.AppendText(nil, unix.NFTA_LOOKUP_SET, "sources"), numbers(unix.NFTA_LOOKUP_SREG, 1, unix.NFTA_LOOKUP_DREG, 1)...))},
		{Name: "nat", Data: attrs(numbers(unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT, unix.NFTA_NAT_FAMILY, unix.NFPROTO_IPV4, unix.NFTA_NAT_REG_ADDR_MIN, 1))},
	}}
	d := &Dump{Key: TableKey{unix.NFPROTO_IPV4, "nat"}, Rules: []*KernelRule{rule}, Elements: map[string][]Element{}}
	for i := range uint32(n) {
		key, value := binary.BigEndian.AppendUint32(nil, 0x0a000000+2*i), binary.BigEndian.AppendUint32(nil, 0xc6120000+(i*7)%n)
		d.Elements["sources"] = append(d.Elements["sources"], Element{key: key, data: attrs(netlink.AppendAttr(nil, unix.NFTA_DATA_VALUE, value))},
			Element{key: binary.BigEndian.AppendUint32(nil, 0x0a000000+2*i+1), flags: unix.NFT_SET_ELEM_INTERVAL_END})
	}
	var rules []*Rule
	if allocations := testing.AllocsPerRun(3, func() { rules = d.Table(&Budget{}).Find("post").Rules }); allocations > 200 {
		t.Errorf("%v allocations", allocations)
	}
	if len(rules) != 1 {
		t.Fatalf("%d rules", len(rules))
	}
	if r := rules[0].Target; r.First != netip.MustParseAddr("198.18.0.0") || r.Last != netip.MustParseAddr("198.19.134.159") || !r.AddrsVary {
		t.Errorf("from %s to %s, vary: %v", r.First, r.Last, r.AddrsVary)
	}
}
