package netfilter

import (
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

const uplinksText = `gateway:
  interfaces: {wan: [{interface: eth0, weight: 3, via: 203.0.113.1}, {interface: ppp0}], lan: lan0}
  nat: [masquerade: {}]
  ipv6: [masquerade: {}]
`

// nft(8) has no words for a named map that a hash is looked up in, so that what it shows is compared, and not what
// it makes of a file.
func TestUplinks(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	ns, p := testutil.Namespace(t), planOfText(t, "uplinks", uplinksText)
	if err := Apply(ns, p); err != nil {
		t.Fatal(err)
	}
	text := listing(t, ns)
	for _, want := range []string{
		`meta mark set meta mark & 0xf1ffffff | 0x01000000 comment "wan eth0"`, `ct mark set ct mark & 0xf1ffffff | 0x01000000 comment "wan eth0"`, `accept comment "wan eth0"`,
		`meta mark set meta mark & 0xf2ffffff | 0x02000000 comment "wan ppp0"`, `ct mark set ct mark & 0xf2ffffff | 0x02000000 comment "wan ppp0"`, `accept comment "wan ppp0"`,
		`type filter hook prerouting priority mangle + 5; policy accept;`, `type route hook output priority mangle + 5; policy accept;`,
		`ct mark & 0x0f000000 vmap { 0x01000000 : jump uplink-1, 0x02000000 : jump uplink-2 } comment "wan of the connection"`,
		`meta mark & 0x0f000000 vmap { 0x01000000 : jump uplink-1, 0x02000000 : jump uplink-2 } comment "wan by another program's mark"`,
		`ct state new,untracked iifname vmap { "eth0" : jump uplink-1, "ppp0" : jump uplink-2 } comment "wan in"`,
		`ct state new,untracked iifname "lan0" jhash ip saddr mod 64 seed 0x6e61746b vmap @uplinks4 comment "wan out"`,
		`ct state new,untracked iifname "lan0" jhash ip6 saddr mod 64 seed 0x6e61746b vmap @uplinks6 comment "wan out"`,
		"0x0000002f : jump uplink-1", "0x00000030 : jump uplink-2",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(text, "jump uplink-1"); n != 5+2*48 {
		t.Errorf("%d times uplink-1", n)
	}
	if t.Failed() {
		t.Log(text)
	}
}

// Steer changes which uplink slots have, and nothing else: the table counts as it was written.
func TestSteer(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	ns, p := testutil.Namespace(t), planOfText(t, "uplinks", uplinksText)
	seal, err := Engine{}.Apply(ns, p, "d")
	if err != nil {
		t.Fatal(err)
	}
	before := listing(t, ns)
	slots := p.Slots(func(i int) bool { return i == 1 })
	if err := (Engine{}).Steer(ns, slots, nil); err != nil {
		t.Fatal(err)
	}
	after := listing(t, ns)
	of := func(text, name string) string {
		_, text, _ = strings.Cut(text, "map "+name+" {")
		text, _, _ = strings.Cut(text, "\n\t}\n")
		return text
	}
	if got := of(after, "uplinks4"); strings.Contains(got, "uplink-1") || strings.Count(got, "jump uplink-2") != len(slots) {
		t.Errorf("IPv4: %s", got)
	}
	if of(after, "uplinks6") != of(before, "uplinks6") {
		t.Errorf("IPv6: %s", of(after, "uplinks6"))
	}
	if s, err := (Engine{}).Read(ns, seal, nil); err != nil || len(s.Changes) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := (Engine{}).Steer(ns, p.Slots(func(int) bool { return true }), nil); err != nil {
		t.Fatal(err)
	}
	lines := func(text string) []string {
		words := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' })
		for i := range words {
			words[i] = strings.Trim(words[i], " \t={}elmns")
		}
		slices.Sort(words)
		return words
	}
	if again := listing(t, ns); !slices.Equal(lines(again), lines(before)) {
		t.Errorf("back again:\n%s\nbefore:\n%s", again, before)
	}
}
