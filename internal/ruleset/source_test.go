package ruleset

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// TestExempts: the rule that keeps the tracker from this packet.
func TestExempts(t *testing.T) {
	for rules, want := range map[string]bool{
		"-A PREROUTING -p udp --dport 53 -j CT --notrack\n":                                           true,
		":A - [0:0]\n-A PREROUTING -i lan0 -j A\n-A A -p udp -j NOTRACK\n":                            true,
		"-A PREROUTING -p udp --sport 53 -j CT --notrack\n":                                           false,
		"-A PREROUTING -d 192.168.1.1 -p udp --dport 53 -j CT --notrack\n":                            false,
		"-A PREROUTING -p udp -m time --timestart 01:00 -j CT --notrack\n":                            false,
		"-A PREROUTING ! -d 192.168.1.1 -j ACCEPT\n-A PREROUTING -p udp --dport 53 -j CT --notrack\n": false,
	} {
		tables := Parse("*raw\n:PREROUTING ACCEPT [0:0]\n"+rules+"COMMIT\n", 4).Tables
		by := Exempts(tables, &Packet{Conn: ConnNew, Packet: nat.Packet{Protocol: 17, Src: netip.MustParseAddr("192.168.1.20"), SrcPort: 40000, Dst: netip.MustParseAddr("203.0.113.10"), DstPort: 53, In: "lan0"}}, "prerouting")
		if by != nil != want {
			t.Errorf("%s: %+v, want a rule: %v", rules, by, want)
		}
	}
}

// TestSource: which rule translates what leaves, or keeps it from that.
func TestSource(t *testing.T) {
	for name, c := range map[string]struct{ rules, by, spared string }{
		"translated":                    {"-A POSTROUTING -s 10.244.0.0/16 -j MASQUERADE\n", "-s 10.244.0.0/16 -j MASQUERADE", ""},
		"for others":                    {"-A POSTROUTING -s 10.9.0.0/16 -j MASQUERADE\n", "", ""},
		"spared in a chain of its own":  {":A - [0:0]\n-A POSTROUTING -m addrtype ! --dst-type LOCAL -j A\n-A A -d 10.0.0.0/8 -j RETURN\n-A A -j MASQUERADE\n", "", "-A A -d 10.0.0.0/8 -j RETURN"},
		"accepted":                      {"-A POSTROUTING -d 10.0.0.0/8 -j ACCEPT\n-A POSTROUTING -o wan0 -j MASQUERADE\n", "", "-A POSTROUTING -d 10.0.0.0/8 -j ACCEPT"},
		"left out":                      {"-A POSTROUTING ! -d 10.0.0.0/8 -o wan0 -j MASQUERADE\n", "", "! -d 10.0.0.0/8 -o wan0 -j MASQUERADE"},
		"returned, translated behind":   {":A - [0:0]\n-A POSTROUTING -j A\n-A A -d 10.0.0.0/8 -j RETURN\n-A A -j MASQUERADE\n-A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1\n", "-o wan0 -j SNAT --to-source 198.51.100.1", ""},
		"returned, nothing translates":  {"-A POSTROUTING -d 10.0.0.0/8 -j RETURN\n-A POSTROUTING -o wan1 -j MASQUERADE\n", "", ""},
		"what is marked is translated":  {"-A POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n-A POSTROUTING -j MASQUERADE\n", "", ""},
		"a condition that is not known": {"-A POSTROUTING -m time --timestart 01:00 -j MASQUERADE\n", "", ""},
	} {
		tables := Parse("*nat\n:POSTROUTING ACCEPT [0:0]\n"+c.rules+"COMMIT\n", 4).Tables
		by, spared := Source(tables, &Packet{Conn: ConnNew, Flags: tcpSYN, Packet: nat.Packet{Protocol: 6, Src: netip.MustParseAddr("10.244.1.10"), SrcPort: 40000,
			Dst: netip.MustParseAddr("10.50.0.10"), DstPort: 5432, In: "cni0", Out: "wan0"}})
		for what, pair := range map[string]struct {
			got  *snapshot.RulePlace
			want string
		}{"by": {by, c.by}, "spared": {spared, c.spared}} {
			if pair.got == nil != (pair.want == "") || pair.got != nil && !strings.HasSuffix(pair.got.Text, pair.want) {
				t.Errorf("%s: %s: %+v, want %q", name, what, pair.got, pair.want)
			}
		}
	}
}

// TestAcceptsBefore: the rule that would accept a packet with the destination that it had before its translation; not
// one of another chain, for another port, or of others' sources.
func TestAcceptsBefore(t *testing.T) {
	for name, c := range map[string]struct{ rules, want string }{
		"the address":           {"-A FORWARD -d 198.51.100.1/32 -p tcp -m multiport --dports 25,587 -j ACCEPT\n", "--dports 25,587 -j ACCEPT"},
		"the port":              {"-A FORWARD -d 192.168.1.10/32 -p tcp --dport 587 -j ACCEPT\n", "--dport 587 -j ACCEPT"},
		"in a chain of its own": {":A - [0:0]\n-A FORWARD -i wan0 -j A\n-A A -d 198.51.100.1/32 -p tcp --dport 587 -j ACCEPT\n", "--dport 587 -j ACCEPT"},
		"for this host":         {":A - [0:0]\n-A INPUT -j A\n-A A -d 198.51.100.1/32 -p tcp --dport 587 -j ACCEPT\n", ""},
		"another port":          {"-A FORWARD -d 198.51.100.1/32 -p tcp --dport 443 -j ACCEPT\n", ""},
		"for a source":          {"-A FORWARD -s 203.0.113.0/24 -d 198.51.100.1/32 -p tcp --dport 587 -j ACCEPT\n", ""},
	} {
		tables := Parse("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n"+c.rules+"-A FORWARD -j DROP\nCOMMIT\n", 4).Tables
		f := Filter(tables, &Packet{Conn: ConnNew | ConnDNAT, Flags: tcpSYN, Packet: nat.Packet{Protocol: 6, Src: netip.MustParseAddr("198.51.100.9"), SrcPort: 40000, In: "wan0", Out: "lan0",
			Dst: netip.MustParseAddr("192.168.1.10"), DstPort: 1587, OriginalDst: netip.MustParseAddr("198.51.100.1"), OriginalPort: 587}}, "forward")
		if f.Passes || (f.AcceptsBefore != nil) != (c.want != "") || f.AcceptsBefore != nil && !strings.HasSuffix(f.AcceptsBefore.Text, c.want) {
			t.Errorf("%s: %+v", name, f.AcceptsBefore)
		}
	}
}
