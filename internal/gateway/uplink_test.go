package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseUplinks(t *testing.T) {
	const text = `gateway:
  interfaces: {wan: [{interface: eth0, weight: 3, via: [203.0.113.1, "fe80::1"], probe: 192.0.2.1}, ppp0, {interface: lte0, weight: 0, probe: 192.0.2.1:443}], lan: eth1}
  marks: 0xf0
  nat:
    - masquerade: {}
`
	f, err := Parse("gateway.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Compile(&f.Config, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	via := []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("fe80::1")}
	want := []Uplink{
		{Interface: "eth0", Weight: 3, Via: via, Probe: &Probe{netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 0)}, Mark: 0x10, Table: 27001},
		{Interface: "ppp0", Weight: 1, Mark: 0x20, Table: 27002},
		{Interface: "lte0", Probe: &Probe{netip.MustParseAddrPort("192.0.2.1:443")}, Mark: 0x30, Table: 27003},
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	ports := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := cmp.Diff(want, p.Uplinks, same, ports); diff != "" || p.Marks != 0xf0 {
		t.Errorf("marks 0x%x\n%s", p.Marks, diff)
	}
	if got := uplinksString(p); got != "eth0 weight 3 via 203.0.113.1 via fe80::1 probe 192.0.2.1, ppp0, lte0 standby probe 192.0.2.1:443" {
		t.Error(got)
	}
	again, err := Parse("again.yaml", Marshal(&f.Config))
	if err != nil {
		t.Fatalf("%v\n%s", err, Marshal(&f.Config))
	}
	if q, err := Compile(&again.Config, Facts{}); err != nil || Digest(q) != Digest(p) {
		t.Errorf("%v\n%s", err, Marshal(&f.Config))
	}
	for _, names := range []string{"eth0", "[eth0, eth1]"} {
		f, err := Parse("gateway.yaml", []byte("gateway:\n  interfaces: {wan: "+names+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := Compile(&f.Config, Facts{}); err != nil || len(p.Uplinks) > 0 || p.Marks != 0 {
			t.Errorf("%s: %+v, %v", names, p, err)
		}
	}
}

func TestParseUplinksRefused(t *testing.T) {
	for wan, column := range map[string]int{
		"[{interface: eth0, weight: 1001}, eth1]":      48,
		"[{interface: eth0, mapping: true}, eth1]":     40,
		"[{interface: \"ppp*\"}, eth1]":                22,
		"[{interface: eth0}, \"ppp*\"]":                21,
		"[{weight: 1}, eth1]":                          22,
		"[{interface: eth0}, eth0]":                    41,
		"[{interface: eth0, wight: 1}, eth1]":          40,
		"[{interface: eth0, via: [1.1.1.1, 1.1.1.2]}]": 55,
		"[{interface: eth0, probe: eth0}]":             47,
		"[{interface: eth0, probe: 192.0.2.1:80-90}]":  47,
		"[{interface: \"eth 0\"}]":                     22,
	} {
		_, err := Parse("gateway.yaml", []byte("gateway:\n  interfaces: {wan: "+wan+"}\n"))
		if err == nil || place(err) != fmt.Sprintf("gateway.yaml:2:%d", column) {
			t.Errorf("%s: want column %d, got %v", wan, column, err)
		}
	}
	for _, marks := range []string{"0", "0x1", "0x5", "0xf0f", "x"} {
		if _, err := Parse("gateway.yaml", []byte("gateway:\n  marks: "+marks+"\n")); err == nil {
			t.Errorf("marks %s is taken", marks)
		}
	}
}

// place is FILE:LINE:COLUMN of an error.
func place(err error) string {
	var file string
	var line, column int
	fmt.Sscanf(err.Error(), "%12s:%d:%d", &file, &line, &column)
	return fmt.Sprintf("%s:%d:%d", file, line, column)
}

func uplinksOf(weights ...int) *Plan {
	p := &Plan{}
	for i, w := range weights {
		p.Uplinks = append(p.Uplinks, Uplink{Interface: fmt.Sprint("eth", i), Weight: w})
	}
	return p
}

// Slots are in proportion to the weights; those of an uplink that is down are the only ones that move.
func TestSlots(t *testing.T) {
	count := func(slots []int, n int) []int {
		all := make([]int, n)
		for _, s := range slots {
			all[s]++
		}
		return all
	}
	for _, c := range []struct {
		weights, down, want []int
	}{
		{weights: []int{3, 1}, want: []int{96, 32}},
		{weights: []int{3, 1}, down: []int{0}, want: []int{0, 128}},
		{weights: []int{3, 1}, down: []int{0, 1}, want: []int{96, 32}},
		{weights: []int{1, 1, 1}, want: []int{43, 43, 43}},
		{weights: []int{1, 1, 1}, down: []int{1}, want: []int{65, 0, 64}},
		{weights: []int{6, 3, 1}, down: []int{0}, want: []int{0, 98, 32}},
		{weights: []int{1, 0}, want: []int{128, 0}},
		{weights: []int{1, 0}, down: []int{0}, want: []int{0, 128}},
		{weights: []int{1, 0, 0}, down: []int{0}, want: []int{0, 64, 64}},
		{weights: []int{1, 0, 0}, down: []int{0, 1}, want: []int{0, 0, 128}},
		{weights: []int{0, 0}, want: []int{64, 64}},
		{weights: []int{0, 0}, down: []int{1}, want: []int{128, 0}},
		{weights: []int{1000, 1}, want: []int{1000, 1}},
	} {
		p := uplinksOf(c.weights...)
		all := p.Slots(func(int) bool { return true })
		got := p.Slots(func(i int) bool { return !slices.Contains(c.down, i) })
		if diff := cmp.Diff(c.want, count(got, len(c.weights))); diff != "" {
			t.Errorf("weights %v without %v:%s", c.weights, c.down, diff)
		}
		for i := range all {
			if !slices.Contains(c.down, all[i]) && got[i] != all[i] {
				t.Errorf("weights %v without %v: slot %d goes from %d to %d", c.weights, c.down, i, all[i], got[i])
			}
		}
	}
}

// An uplink that leads on in one family alone is not down; it lacks the other, which counts where it is forwarded.
func TestUplinkOfOneFamily(t *testing.T) {
	f := Facts{Known: true, Interfaces: []Interface{{Name: "eth0", Up: true}}, Defaults: []DefaultRoute{{Interface: "eth0", Via: netip.MustParseAddr("203.0.113.1")}}}
	u := &Uplink{Interface: "eth0"}
	const lacks = "no next hop of IPv6 is known"
	for _, c := range []struct {
		plan        Plan
		route       bool
		down, lacks string
	}{
		{Plan{IPv4: true, IPv6: true}, true, "", lacks}, {Plan{IPv4: true}, true, "", ""}, {Plan{IPv6: true}, true, lacks, ""},
		{Plan{IPv4: true, IPv6: true}, false, "no next hop of IPv4 and IPv6 is known", ""},
	} {
		facts := f
		if !c.route {
			facts.Defaults = nil
		}
		if down, without := facts.WhyDown(u, &c.plan), facts.Lacks(u, &c.plan); down != c.down || without != c.lacks {
			t.Errorf("IPv4 %t, IPv6 %t: down %q, lacks %q, want %q, %q", c.plan.IPv4, c.plan.IPv6, down, without, c.down, c.lacks)
		}
	}
}

// An uplink without an address carries nothing of a family whose connections are to get its address.
func TestUplinkWithoutAddress(t *testing.T) {
	const text = "gateway:\n  interfaces: {wan: [{interface: eth0, via: [203.0.113.1, \"2001:db8::1\"]}, eth1], lan: lan0}\n"
	facts := Facts{Known: true, Interfaces: []Interface{{Name: "eth0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24"), netip.MustParsePrefix("fe80::7/64")}}}}
	for rules, want := range map[string]string{
		"  nat: [masquerade: {}]\n  ipv6: [masquerade: {}]\n":                                                           "eth0 has no address of IPv6",
		"  nat: [masquerade: {}]\n  ipv6: [netmap: {inside: \"fd00::/64\", outside: \"2001:db8:1::/64\", out: eth0}]\n": "",
	} {
		f, err := Parse("gateway.yaml", []byte(text+rules))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Compile(&f.Config, facts)
		if err != nil {
			t.Fatal(err)
		}
		if got := facts.Lacks(&p.Uplinks[0], p); got != want {
			t.Errorf("%s: %q, want %q", rules, got, want)
		}
	}
}

// That the kernel computes the same is seen to by TestUplinks of the engine.
func TestSlotOf(t *testing.T) {
	seen := map[int]int{}
	for i := range 256 {
		n := SlotOf(netip.AddrFrom4([4]byte{192, 168, 0, byte(i)}), 64)
		if n < 0 || n > 63 {
			t.Fatal(n)
		}
		seen[n]++
	}
	if len(seen) < 48 {
		t.Errorf("256 addresses share %d of 64 slots", len(seen))
	}
}

func TestNextHop(t *testing.T) {
	via := netip.MustParseAddr("203.0.113.1")
	f := Facts{
		Interfaces: []Interface{
			{Name: "eth0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24")}},
			{Name: "eth1", Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24")}},
			{Name: "ppp0", Up: true, PointToPoint: true, Addresses: []netip.Prefix{netip.MustParsePrefix("100.64.0.1/32")}},
		},
		Defaults: []DefaultRoute{{Interface: "eth0", Via: netip.MustParseAddr("203.0.113.2"), Metric: 200}, {Interface: "eth0", Via: via, Metric: 100}, {Interface: "eth1", Via: via}},
	}
	for _, c := range []struct {
		uplink Uplink
		v6     bool
		want   NextHop
		ok     bool
	}{
		{uplink: Uplink{Interface: "eth0"}, want: NextHop{Via: via}, ok: true},
		{uplink: Uplink{Interface: "eth0"}, v6: true},
		{uplink: Uplink{Interface: "eth0", Via: []netip.Addr{netip.MustParseAddr("203.0.113.9")}}, want: NextHop{Via: netip.MustParseAddr("203.0.113.9")}, ok: true},
		{uplink: Uplink{Interface: "eth0", Via: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, want: NextHop{netip.MustParseAddr("10.0.0.1"), true}, ok: true},
		{uplink: Uplink{Interface: "eth0", Via: []netip.Addr{netip.MustParseAddr("fe80::1")}}, v6: true, want: NextHop{Via: netip.MustParseAddr("fe80::1")}, ok: true},
		{uplink: Uplink{Interface: "eth1"}}, // down
		{uplink: Uplink{Interface: "eth9"}},
		{uplink: Uplink{Interface: "ppp0"}, ok: true},
		{uplink: Uplink{Interface: "ppp0"}, v6: true},
	} {
		if got, ok := f.NextHop(&c.uplink, c.v6); got != c.want || ok != c.ok {
			t.Errorf("%s, IPv6 %v: %+v, %v", &c.uplink, c.v6, got, ok)
		}
	}
}

const twoWANs = "interfaces: {wan: [{interface: eth0, weight: 3}, {interface: eth1}], lan: lan0}\n"

func TestCheckUplinks(t *testing.T) {
	for text, want := range map[string][]string{
		"interfaces: {wan: [{interface: eth0}]}\n":                                                                                            {"wan-alone"},
		"interfaces: {wan: [{interface: a}, b, c, d]}\nmarks: 0x3\n":                                                                          {"too-many-wans"},
		"interfaces: {wan: [eth0, eth1]}\nmarks: 0xf0\n":                                                                                      {"marks-unused"},
		"interfaces: {wan: [{interface: eth0, via: 0.0.0.0}, {interface: eth1, probe: \"127.0.0.1:80\"}]}\nnat: [masquerade: {}]\n":           {"unusable-address", "unusable-address"},
		"interfaces: {wan: [{interface: eth0, weight: 0}, {interface: eth1, weight: 0}]}\nnat: [masquerade: {}]\n":                            {"wan-all-standby"},
		"interfaces: {wan: [{interface: eth0, weight: 0}, eth1]}\nnat: [masquerade: {}]\n":                                                    nil,
		twoWANs + "nat: [masquerade: {}]\n":                                                                                                   nil,
		twoWANs + "nat: [masquerade: {mark: 0x10}]\n":                                                                                         {"mark-collides"},
		twoWANs + "nat: [masquerade: {mark: 0x10/0xf0}]\n":                                                                                    nil,
		twoWANs + "nat: [masquerade: {except-mark: [0x10/0xf0, 0x1000000/0x1000000]}]\n":                                                      {"mark-collides"},
		twoWANs + "nat: [masquerade: {from: 192.168.0.0/16, out: eth0}]\n":                                                                    {"wan-untranslated"},
		twoWANs + "nat: [masquerade: {from: 192.168.0.0/16, out: eth0}, masquerade: {from: 192.168.0.0/17, out: eth1}]\n":                     {"wan-untranslated"},
		twoWANs + "nat: [masquerade: {from: 192.168.0.0/16, out: eth0}, masquerade: {from: [192.168.0.0/17, 192.168.128.0/17], out: eth1}]\n": nil,
		twoWANs + "nat: [masquerade: {from: 192.168.0.0/16, out: eth0}, masquerade: {}]\n":                                                    nil,
		twoWANs + "nat: [masquerade: {}, snat: {from: 10.0.0.1, port: tcp/25, to: 203.0.113.8, out: eth0}]\n":                                 nil,
	} {
		f, err := Parse("gateway.yaml", []byte("gateway:\n"+indentText(text)))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var got []string
		for _, found := range Check(f, Facts{}) {
			got = append(got, found.ID)
		}
		if len(got)+len(want) > 0 && !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// indentText puts a file below its key.
func indentText(text string) string {
	return "  " + strings.TrimSpace(strings.ReplaceAll(text, "\n", "\n  ")) + "\n"
}

func TestCheckUplinksOnHost(t *testing.T) {
	f, err := Parse("gateway.yaml", []byte("gateway:\n"+indentText(twoWANs+"nat: [snat: {from: 10.0.0.0/8, to: 203.0.113.7}, masquerade: {}]\n")))
	if err != nil {
		t.Fatal(err)
	}
	facts := Facts{Known: true, Interfaces: []Interface{
		{Name: "eth0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24")}},
		{Name: "eth1", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.7/24")}}, {Name: "lan0", Up: true}},
		Defaults: []DefaultRoute{{Interface: "eth0", Via: netip.MustParseAddr("203.0.113.1")}, {Interface: "eth1", Via: netip.MustParseAddr("198.51.100.1")}}}
	ids := func(facts Facts) (all []string) {
		for _, found := range Check(f, facts) {
			all = append(all, found.ID)
		}
		return all
	}
	if got := ids(facts); !slices.Equal(got, []string{"snat-of-other-wan"}) {
		t.Errorf("%v", got)
	}
	snat := f
	for text, want := range map[string]bool{"203.0.113.8 10.0.0.8": true, "203.0.112.8 10.0.0.8": false, "192.0.2.1 10.0.0.8, 198.51.100.0 10.0.0.9, 198.51.100.255 10.0.0.10": true} {
		f = withSetFiles(t, nil, "gateway:\n"+indentText(twoWANs+"sets: {p: {pairs: ["+text+"]}}\nnat: [static: {pairs: $p}]\n"))
		if got := ids(facts); slices.Contains(got, "snat-of-other-wan") != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	f = snat
	for id, edit := range map[string]func(*Facts){
		"wan-without-route": func(f *Facts) { f.Defaults = f.Defaults[:1] },
		"wan-without-carrier": func(f *Facts) {
			f.Interfaces = slices.Clone(f.Interfaces)
			f.Interfaces[1].NoCarrier = true
		},
		"mark-taken": func(f *Facts) { f.Rules = []PolicyRule{{Priority: 100, Mark: 0x2000000, Mask: 0x2000000, Table: 7}} },
		"rule-taken": func(f *Facts) { f.Rules = []PolicyRule{{Priority: 20002, Table: 7}} },
	} {
		other := facts
		edit(&other)
		if got := ids(other); !slices.Contains(got, id) || len(got) != 2 {
			t.Errorf("%s: %v", id, got)
		}
	}
	for via, want := range map[string]bool{"203.0.113.9": false, "198.51.100.9": true, "fe80::1": false, "2001:db8::1": false} {
		f, err := Parse("gateway.yaml", []byte("gateway:\n  interfaces: {wan: [{interface: eth0, via: \""+via+"\"}, {interface: eth1}], lan: lan0}\n  nat: [masquerade: {}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		all := Check(f, facts)
		i := slices.IndexFunc(all, func(f Finding) bool { return f.ID == "via-off-link" })
		if i >= 0 != want || want && !strings.Contains(all[i].Message, "(203.0.113.0/24)") {
			t.Errorf("via %s: %v", via, all)
		}
	}
	other := facts
	other.Rules = []PolicyRule{{Priority: 5210, Mark: 0x80000, Mask: 0xff0000, Table: 52}, {Priority: 20003, Table: 7}}
	if got := ids(other); len(got) != 1 {
		t.Errorf("Tailscale's: %v", got)
	}
}
