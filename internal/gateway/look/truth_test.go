package look

import (
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// TestUntranslatedConnectionsAreCounted: those that began before the rule that is for them,
// as long as they last, and none that a rule is not for.
func TestUntranslatedConnectionsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.run("nft", "add table ip tracks")
	w.run("nft", "add chain ip tracks c { type filter hook prerouting priority 0 ; }")
	w.run("nft", "add rule ip tracks c ct state new accept")
	w.send(w.inside, "203.0.113.100:7", 3)
	w.send(w.inside, "192.168.0.1:9", 2) // for the gateway itself
	w.send(w.outside, "203.0.113.1:8080", 1)
	testutil.Eventually(t, "6 connections tracked", func() bool { return w.tracked() == 6 })
	const text = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - dnat: {on: 203.0.113.1, port: udp/8080, to: 192.168.0.2:8080}
`
	w.apply(text, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 2) // translated
	if f := w.look().Flows; f.Untranslated != 4 || f.UntranslatedAtLeast {
		t.Errorf("%+v, want 4 untranslated", f)
	}
}

// TestForwardingThatIsOffIsTold: by the interface that it is off for, and not where it is on.
func TestForwardingThatIsOffIsTold(t *testing.T) {
	testutil.NeedFeature(t, testutil.Hairpin)
	w := newWorld(t)
	w.apply(hairpinned, w.facts())
	for _, c := range []struct{ name, value, reported string }{
		{"net/ipv4/conf/lan0/forwarding", "0", "net.ipv4.conf.lan0.forwarding"},
		{"net/ipv4/ip_forward", "0", "net.ipv4.ip_forward"},
		{"net/ipv4/ip_forward", "1", ""},
	} {
		w.sysctl(c.name, c.value)
		var want []string
		if c.reported != "" {
			want = []string{c.reported}
		}
		if off := w.look().NotForwarding; !slices.Equal(off, want) {
			t.Errorf("%s=%s: %q, want %q", c.name, c.value, off, want)
		}
	}
}

// TestCutHairpinIsTold: a bridge inside that takes what it carries through netfilter, until
// its ports send back what came in by them.
func TestCutHairpinIsTold(t *testing.T) {
	testutil.NeedFeature(t, testutil.BridgeNetfilter)
	testutil.NeedFeature(t, testutil.Hairpin)
	w := newWorld(t)
	w.run("ip", "link", "add", "br0", "type", "bridge")
	w.run("ip", "link", "add", "port1", "master", "br0", "type", "veth", "peer", "name", "port2")
	w.sysctl("net/bridge/bridge-nf-call-iptables", "0")
	w.apply(`gateway:
  interfaces: {wan: wan0, lan: br0}
  nat:
    - dnat: {on: 203.0.113.1, port: udp/8080, to: 192.168.0.2:8080, hairpin: on}
`, w.facts())
	reported := func(want bool, when string) {
		t.Helper()
		cut := w.look().CutHairpins
		if len(cut) > 0 != want || want && (cut[0].Bridge != "br0" || !slices.Equal(cut[0].Ports, []string{"port1"})) {
			t.Errorf("%s: %+v", when, cut)
		}
	}
	reported(false, "off")
	w.sysctl("net/bridge/bridge-nf-call-iptables", "1")
	reported(true, "on")
	w.sysctl("net/bridge/bridge-nf-call-iptables", "0")
	w.run("ip", "link", "set", "br0", "type", "bridge", "nf_call_iptables", "1")
	reported(true, "on for the bridge")
	w.run("ip", "link", "set", "port1", "type", "bridge_slave", "hairpin", "on")
	reported(false, "its port sends back")
}

// TestForeignRuleThatComesFirstIsTold: by a set and by a map, of the rule that it is for.
func TestForeignRuleThatComesFirstIsTold(t *testing.T) {
	testutil.NeedFeature(t, testutil.Hairpin)
	w := newWorld(t)
	w.apply(hairpinned, w.facts())
	l := New(w.options()) // as with --watch
	reported := func() (all []string) {
		now, err := l.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range now.Precedences {
			all = append(all, p.Rule.String())
		}
		return all
	}
	if all := reported(); len(all) > 0 {
		t.Errorf("nothing comes first, and it reports %q", all)
	}
	w.run("nft", "add table ip first")
	w.run("nft", "add set ip first ports { type inet_service ; elements = { 8080, 8443 } ; }")
	w.run("nft", "add chain ip first c { type nat hook prerouting priority -100 ; }")
	w.run("nft", "add rule ip first c udp dport @ports dnat to 192.168.0.66:8")
	if all := reported(); !slices.Equal(all, []string{"nat[1] dnat"}) {
		t.Errorf("a rule with a set: %q", all)
	}
	if all := reported(); len(all) != 1 {
		t.Errorf("at the next look: %q", all)
	}
	w.run("nft", "delete table ip first")
	if all := reported(); len(all) > 0 {
		t.Errorf("it is gone, and it reports %q", all)
	}
}
