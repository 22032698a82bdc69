package ruleset

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// mapped is a table whose forward chain is a map from incoming interfaces to verdicts.
func mapped(t *testing.T, elements ...Element) *Table {
	t.Helper()
	attrs := func(b []byte) netlink.Attrs {
		all, err := netlink.ParseAttrs(b)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	meta := netlink.AppendU32(netlink.AppendU32(nil, unix.NFTA_META_DREG, 1), unix.NFTA_META_KEY, unix.NFT_META_IIFNAME)
	lookup := netlink.AppendU32(netlink.AppendText(nil, unix.NFTA_LOOKUP_SET, "by"), unix.NFTA_LOOKUP_SREG, 1)
	d := &Dump{
		Key:    TableKey{unix.NFPROTO_IPV4, "filter"},
		Chains: []KernelChain{{Key: TableKey{unix.NFPROTO_IPV4, "filter"}, Name: "c", Hook: unix.NF_INET_FORWARD, Type: "filter", Policy: "accept"}},
		Rules:  []*KernelRule{{Chain: "c", Exprs: []KernelExpr{{Name: "meta", Data: attrs(meta)}, {Name: "lookup", Data: attrs(netlink.AppendU32(lookup, unix.NFTA_LOOKUP_DREG, 0))}}}},
	}
	for i, e := range elements {
		verdict := netlink.AppendAttr(nil, unix.NFTA_DATA_VERDICT, netlink.AppendU32(nil, unix.NFTA_VERDICT_CODE, binary.BigEndian.Uint32(e.last)))
		elements[i].data, elements[i].last = attrs(verdict), nil
	}
	d.AddSet(attrs(netlink.AppendText(nil, unix.NFTA_SET_NAME, "by")), elements, &Budget{})
	return d.Judged(&Budget{})
}

// from is an element for an interface; its verdict is where mapped takes it from.
func from(name string, code, flags uint32) Element {
	return Element{key: append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...), last: binary.BigEndian.AppendUint32(nil, code), flags: flags}
}

// TestMapForAllElse: of a map with an element for all else it is not certain what becomes of packets.
func TestMapForAllElse(t *testing.T) {
	other := &Packet{Conn: ConnNew, Packet: nat.Packet{Protocol: unix.IPPROTO_TCP, In: "wan0"}}
	for name, c := range map[string]struct {
		rest  []Element
		drops int
	}{"without": {nil, 0}, "with": {[]Element{{flags: catchall, last: make([]byte, 4)}}, 1}} {
		table := mapped(t, append([]Element{from("lan0", verdictAccept, 0)}, c.rest...)...)
		if got := Judge([]*Table{table}, other, "forward"); len(got.Drops) != c.drops || !got.Passes || c.drops > 0 && got.Drops[0].Doubt == 0 {
			t.Errorf("%s: %+v, want %d places that may drop it", name, got, c.drops)
		}
	}
}

// TestLargeVerdictMap: places that may drop a packet are bounded, and it is certain of what is known that it
// is dropped; what asking costs grows with the elements.
func TestLargeVerdictMap(t *testing.T) {
	var elements []Element
	for i := range 1000 {
		elements = append(elements, from("lan"+string(rune('a'+i%26))+string(rune('a'+i/26)), verdictDrop, 0))
	}
	table := mapped(t, elements...)
	table.Find("c").Policy = "drop"
	if got := Judge([]*Table{table}, &Packet{}, "forward"); got.Passes || len(got.Drops) > mostMapped+2 {
		t.Errorf("passes: %v, %d places", got.Passes, len(got.Drops))
	}
	if got := Judge([]*Table{table}, &Packet{Packet: nat.Packet{In: "lanaa"}}, "forward"); got.Passes || len(got.Drops) != 1 || got.Drops[0].Doubt != 0 {
		t.Errorf("%+v", got)
	}
	nothing := &Table{Chains: []*Chain{{Name: "n", Type: "nat", Hook: "forward", Rules: []*Rule{{}}}, {Name: "i", Hook: "input"}, {Name: "sub", Rules: []*Rule{{}}}}}
	if got := Costs([]*Table{table, nothing}); got["forward"] != 101 || got["input"] != 1 {
		t.Errorf("%v", got)
	}
}

// TestSourceByMap: the rule that translates what is a key of its map, as a prefix or pool by source does.
func TestSourceByMap(t *testing.T) {
	attrs := func(b []byte) netlink.Attrs {
		all, err := netlink.ParseAttrs(b)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	u32 := func(pairs ...uint32) (b []byte) {
		for i := 0; i < len(pairs); i += 2 {
			b = netlink.AppendU32(b, uint16(pairs[i]), pairs[i+1])
		}
		return b
	}
	saddr := u32(unix.NFTA_PAYLOAD_DREG, 1, unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER, unix.NFTA_PAYLOAD_OFFSET, 12, unix.NFTA_PAYLOAD_LEN, 4)
	lookup := append(netlink.AppendText(nil, unix.NFTA_LOOKUP_SET, "by"), u32(unix.NFTA_LOOKUP_SREG, 1, unix.NFTA_LOOKUP_DREG, 1)...)
	snat := u32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT, unix.NFTA_NAT_FAMILY, unix.NFPROTO_IPV4, unix.NFTA_NAT_REG_ADDR_MIN, 1)
	key := TableKey{unix.NFPROTO_IPV4, "nat"}
	d := &Dump{
		Key:    key,
		Chains: []KernelChain{{Key: key, Name: "c", Hook: unix.NF_INET_POST_ROUTING, Type: "nat", Policy: "accept"}},
		Rules:  []*KernelRule{{Chain: "c", Exprs: []KernelExpr{{Name: "payload", Data: attrs(saddr)}, {Name: "lookup", Data: attrs(lookup)}, {Name: "nat", Data: attrs(snat)}}}},
	}
	pc, given := netip.MustParseAddr("192.168.1.20"), netip.MustParseAddr("198.51.100.9")
	d.AddSet(attrs(netlink.AppendText(nil, unix.NFTA_SET_NAME, "by")), []Element{{key: pc.AsSlice(), data: attrs(netlink.AppendAttr(nil, unix.NFTA_DATA_VALUE, given.AsSlice()))}}, &Budget{})
	for source, want := range map[netip.Addr]bool{pc: true, pc.Next(): false} {
		by, _ := Source([]*Table{d.Judged(&Budget{})}, &Packet{Conn: ConnNew, Packet: nat.Packet{Protocol: unix.IPPROTO_UDP, Src: source, Dst: netip.MustParseAddr("203.0.113.10"), Out: "wan0"}})
		if by != nil != want {
			t.Errorf("%s: translated by %+v, want a rule: %v", source, by, want)
		}
	}
}

// TestMissing: the numbers that may be drawn and that a map has no element for.
func TestMissing(t *testing.T) {
	keys := func(numbers ...uint32) (all []interval) {
		for _, n := range numbers {
			key := binary.NativeEndian.AppendUint32(nil, n)
			all = append(all, interval{first: key, last: key})
		}
		return all
	}
	ranged := keys(0, 1)
	ranged[1].last = keys(3)[0].first
	for want, c := range map[string]struct {
		of   content
		list []interval
	}{"3": {content{draws: 4}, keys(0, 1, 2)}, "10, 12": {content{draws: 3, start: 10}, keys(11)}, "": {content{draws: 4}, ranged}} {
		if got := c.of.missing(c.list); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestDrawn: the destinations of a map by numbers, each with how many of these it has.
func TestDrawn(t *testing.T) {
	element := func(n uint32, value ...byte) interval {
		key := binary.NativeEndian.AppendUint32(nil, n)
		return interval{first: key, last: key, value: netlink.Attrs{{Kind: unix.NFTA_DATA_VALUE, Data: value}}}
	}
	kept, led := element(1, 192, 168, 1, 10), element(2, 192, 168, 1, 10, 0x1f, 0x90, 0, 0)
	ranged := kept
	ranged.last = led.first
	for want, list := range map[string][]interval{
		"[{192.168.1.10 0 2} {192.168.1.10 8080 1}]": {element(0, 192, 168, 1, 10), kept, led}, "[]": {kept, ranged},
	} {
		if got := fmt.Sprint(drawn(list, false)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
