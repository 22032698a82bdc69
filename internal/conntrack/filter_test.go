package conntrack

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

// masqueraded is a TCP connection whose source was changed, in zone 7 for its
// original direction only.
func masqueraded() Entry {
	orig := Tuple{
		Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("203.0.113.9"),
		Proto: unix.IPPROTO_TCP, SrcPort: 40000, DstPort: 443,
	}
	reply := orig.Mirror()
	reply.Dst, reply.DstPort = netip.MustParseAddr("198.19.0.1"), 50000
	return Entry{
		Family: unix.AF_INET, Orig: orig, Reply: reply, TCPState: TCPEstablished,
		Status: Confirmed | SeenReply, Mark: 0x12, Zone: 7, ID: 99,
		Labels: []byte{0, 2},
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestMatch(t *testing.T) {
	prefix := netip.MustParsePrefix
	nat := func(text string) NAT { return must(ParseNAT(text)) }
	status := func(text string) Filter {
		set, unset, err := ParseStatus(text)
		return Filter{Status: set, Unset: must(unset, err)}
	}
	for name, c := range map[string]struct {
		yes, no Filter
	}{
		"family":        {Filter{Family: unix.AF_INET}, Filter{Family: unix.AF_INET6}},
		"protocol":      {Filter{Proto: Is[uint8](6)}, Filter{Proto: Is[uint8](0)}},
		"source":        {Filter{Orig: Side{Src: prefix("198.18.0.0/31")}}, Filter{Orig: Side{Src: prefix("198.18.0.0/32")}}},
		"destination":   {Filter{Orig: Side{Dst: prefix("203.0.113.9/32")}}, Filter{Orig: Side{Dst: prefix("2001:db8::/0")}}},
		"reply source":  {Filter{Reply: Side{Src: prefix("203.0.113.9/32")}}, Filter{Reply: Side{Src: prefix("198.18.0.1/32")}}},
		"reply dest":    {Filter{Reply: Side{Dst: prefix("198.19.0.0/16")}}, Filter{Reply: Side{Dst: prefix("198.18.0.1/32")}}},
		"source port":   {Filter{Orig: Side{SrcPort: Is[uint16](40000)}}, Filter{Orig: Side{SrcPort: Is[uint16](0)}}},
		"dest port":     {Filter{Orig: Side{DstPort: Is[uint16](443)}}, Filter{Orig: Side{DstPort: Is[uint16](80)}}},
		"reply ports":   {Filter{Reply: Side{SrcPort: Is[uint16](443), DstPort: Is[uint16](50000)}}, Filter{Reply: Side{SrcPort: Is[uint16](443), DstPort: Is[uint16](40000)}}},
		"original zone": {Filter{Orig: Side{Zone: Is[uint16](7)}}, Filter{Reply: Side{Zone: Is[uint16](7)}}},
		"reply zone":    {Filter{Reply: Side{Zone: Is[uint16](0)}}, Filter{Orig: Side{Zone: Is[uint16](0)}}},
		"zone of both":  {Filter{}, Filter{Zone: Is[uint16](7)}},
		"state":         {Filter{States: must(ParseStates("established,TIME_WAIT"))}, Filter{States: must(ParseStates("SYN_SENT"))}},
		"state of SCTP": {Filter{}, Filter{States: must(ParseStates("COOKIE_WAIT"))}},
		"status":        {status("SEEN_REPLY,unassured"), status("ASSURED")},
		"status unset":  {status("CONFIRMED"), status("UNREPLIED")},
		"mark":          {Filter{Mark: 0x12, MarkMask: 0xff}, Filter{Mark: 0x2, MarkMask: 0xff}},
		"mark 0":        {Filter{Mark: 0x10, MarkMask: 0x10}, Filter{Mark: 0, MarkMask: ^uint32(0)}},
		"id":            {Filter{ID: Is[uint32](99)}, Filter{ID: Is[uint32](0)}},
		"labels":        {Filter{Labels: must(ParseLabels("9", nil))}, Filter{Labels: must(ParseLabels("9,127", nil))}},
		"ICMP":          {Filter{}, Filter{ICMPID: Is[uint16](0)}},
		"SNAT":          {Filter{SrcNAT: NAT{On: true}}, Filter{DstNAT: NAT{On: true}}},
		"SNAT to":       {Filter{SrcNAT: nat("198.19.0.1")}, Filter{SrcNAT: nat("198.18.0.1")}},
		"SNAT to port":  {Filter{SrcNAT: nat("198.19.0.1:50000")}, Filter{SrcNAT: nat(":40000")}},
		"any NAT":       {Filter{AnyNAT: nat("198.19.0.0/16")}, Filter{AnyNAT: nat("203.0.113.9")}},
		"both":          {Filter{Family: unix.AF_INET, MarkMask: 1}, Filter{Family: unix.AF_INET, MarkMask: 2, Mark: 0}},
	} {
		e := masqueraded()
		if !c.yes.Match(&e) {
			t.Errorf("%s: %+v does not choose the entry", name, c.yes)
		}
		if c.no.Match(&e) {
			t.Errorf("%s: %+v chooses the entry", name, c.no)
		}
	}
	e := masqueraded()
	if none := (*Filter)(nil); !none.Match(&e) || !none.Empty() || !new(Filter).Empty() {
		t.Error("no filter does not choose everything")
	}
	if n := testing.AllocsPerRun(100, func() { (&Filter{MarkMask: 2, Mark: 2, SrcNAT: NAT{On: true}}).Match(&e) }); n != 0 {
		t.Errorf("Match allocates %v times", n)
	}
}

func TestMatchOfWhatIsNotTranslated(t *testing.T) {
	e := masqueraded()
	e.Reply = e.Orig.Mirror()
	for _, f := range []Filter{{SrcNAT: NAT{On: true}}, {DstNAT: NAT{On: true}}, {AnyNAT: NAT{On: true}}} {
		if f.Match(&e) {
			t.Errorf("%+v chooses an entry without NAT", f)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"198.18.0.1": "198.18.0.1/32", "198.18.1.1/16": "198.18.0.0/16", "198.18.1.1/255.255.0.0": "198.18.0.0/16",
		"::ffff:198.18.0.1": "198.18.0.1/32", "2001:db8::1/32": "2001:db8::/32", "2001:db8::1/ffff::": "2001::/16",
		"198.18.0.1/0": "0.0.0.0/0", "198.18.0.1/0.0.0.0": "0.0.0.0/0",
		"": "", "198.18.0": "", "198.18.0.1/33": "", "198.18.0.1/255.0.255.0": "", "198.18.0.1/ffff::": "",
		"fe80::1%eth0": "", "198.18.0.1/": "", "2001:db8::/129": "", "198.18.0.1/-1": "",
	} {
		got, err := ParsePrefix(text)
		if (err != nil) != (want == "") || want != "" && got.String() != want {
			t.Errorf("ParsePrefix(%q) = %v, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string][2]uint32{
		"1": {1, ^uint32(0)}, "0x10": {16, ^uint32(0)}, "0x10/0xff": {16, 255}, "0/1": {0, 1}, "0/0": {0, 0},
	} {
		if mark, mask, err := ParseMark(text); err != nil || [2]uint32{mark, mask} != want {
			t.Errorf("ParseMark(%q) = %d, %d, %v; want %d", text, mark, mask, err, want)
		}
	}
	for _, text := range []string{"", "x", "1/", "4294967296", "3/1", "-1", "0x"} {
		if _, _, err := ParseMark(text); err == nil {
			t.Errorf("ParseMark(%q) is accepted", text)
		}
	}
	for text, want := range map[string]uint8{"tcp": 6, "UDP": 17, "icmpv6": 58, "ipv6-icmp": 58, "132": 132, "0": 0, "255": 255} {
		if got, err := nat.ParseProtocol(text); err != nil || got != want {
			t.Errorf("ParseProtocol(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "256", "tpc", "-1"} {
		if _, err := nat.ParseProtocol(text); err == nil {
			t.Errorf("ParseProtocol(%q) is accepted", text)
		}
	}
	if _, err := ParseFamily("ipx"); err == nil {
		t.Error("a family of ipx is accepted")
	}
	for _, text := range []string{"", "OFF", "ASSURED,", "ASSURED,UNASSURED"} {
		if _, _, err := ParseStatus(text); err == nil {
			t.Errorf("ParseStatus(%q) is accepted", text)
		}
	}
	for _, text := range []string{"", "UNKNOWN", "ESTABLISHED;"} {
		if _, err := ParseStates(text); err == nil {
			t.Errorf("ParseStates(%q) is accepted", text)
		}
	}
	for _, text := range []string{"", ":", ":70000", "198.18.0.1:x", "x"} {
		if n, err := ParseNAT(text); err == nil {
			t.Errorf("ParseNAT(%q) = %+v is accepted", text, n)
		}
	}
	names := &[labelsMax]string{0: "zero", 100: "far"}
	l, err := ParseLabels("zero,far,1", names)
	if want := (Labels{0: 3, 12: 16}); err != nil || l != want {
		t.Errorf("ParseLabels = %v, %v, want %v", l, err, want)
	}
	for _, words := range []string{"near", "", "0,", "128"} {
		if _, err := ParseLabels(words, names); err == nil {
			t.Errorf("ParseLabels(%q) is accepted", words)
		}
	}
}

// FuzzParse holds that no text makes a parser panic, and that what the kernel is
// asked for is never narrower than the filter.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"198.18.0.0/15", "2001:db8::/32", "0x1/0xff", "tcp", "ASSURED,UNREPLIED", "ESTABLISHED", "[2001:db8::1]:80", ":80", "7"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		filter := Filter{}
		if p, err := ParsePrefix(text); err == nil {
			filter.Orig.Src = p
		}
		if mark, mask, err := ParseMark(text); err == nil {
			filter.Mark, filter.MarkMask = mark, mask
		}
		if p, err := nat.ParseProtocol(text); err == nil {
			filter.Proto = Is(p)
		}
		if set, unset, err := ParseStatus(text); err == nil {
			filter.Status, filter.Unset = set, unset
		}
		filter.States, _ = ParseStates(text)
		if n, err := ParseNAT(text); err == nil {
			filter.AnyNAT, filter.SrcNAT = n, n
		}
		filter.Labels, _ = ParseLabels(text, nil)
		e := masqueraded()
		k := filter.Request()
		if len(k.Append(nil))%4 != 0 {
			t.Errorf("attributes of %+v are not aligned", k)
		}
		if filter.Match(&e) && !k.Match(&e) {
			t.Errorf("%q chooses the entry, the kernel would not pass it on: %+v", text, k)
		}
	})
}
