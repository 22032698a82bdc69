package netfilter_test

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// one sends a datagram and returns it as it arrives; nil where nothing does.
func (b *bed) one(from, to behaviour.Host, source, destination, data string) *frame.Frame {
	b.Helper()
	got := b.send(from, to, behaviour.UDPPacket(netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination), data))
	if len(got) != 1 || got[0].Protocol != 17 {
		return nil
	}
	return &got[0]
}

// TestHelpers: data of TFTP comes from another port than it was asked from. With the helper it reaches who asked, and is
// translated as the request was.
func TestHelpers(t *testing.T) {
	const rules = `
  nat:
    - masquerade: {from: 192.168.0.0/24}
    - dnat: {on: 203.0.113.7, port: udp/6969, to: "192.168.0.4:69"}
`
	testutil.NeedFeature(t, testutil.NATHelpers)
	const request = "\x00\x01file\x00octet\x00"
	b := newBed(t, netfilter.Apply, rules)
	for _, with := range []bool{false, true} {
		port := "4000"
		if with {
			port = "4001"
			b.use("  helpers: [tftp, ftp, sip, pptp]\n" + rules)
		}
		if asked := b.one(behaviour.A, behaviour.X, "192.168.0.2:"+port, "198.18.0.10:69", request); asked == nil || asked.Tuple().Src.String() != "203.0.113.1:"+port {
			t.Fatalf("with the helper %v: the request: %+v", with, asked)
		}
		var data *frame.Frame
		if with { // otherwise the gateway itself answers that nobody listens
			data = b.one(behaviour.X, behaviour.A, "198.18.0.10:5555", "203.0.113.1:"+port, "\x00\x03\x00\x01data")
			if data == nil || data.Tuple().Dst.String() != "192.168.0.2:"+port {
				t.Errorf("data came as %+v", data)
			}
		}
		if asked := b.one(behaviour.X, behaviour.A, "198.18.0.10:"+port, "203.0.113.7:6969", request); asked == nil || asked.Tuple().Dst.String() != "192.168.0.4:69" {
			t.Fatalf("with the helper %v: the request from outside: %+v", with, asked)
		}
		data = b.one(behaviour.A, behaviour.X, "192.168.0.4:5555", "198.18.0.10:"+port, "\x00\x03\x00\x01data")
		if want := map[bool]string{false: "203.0.113.1:5555", true: "203.0.113.7:5555"}[with]; data == nil || data.Tuple().Src.String() != want {
			t.Errorf("with the helper %v: data from inside came as %+v, not from %s", with, data, want)
		}
	}
}

// TestHelpersGo: a table of which something is kept loses helpers that the file has no more.
func TestHelpersGo(t *testing.T) {
	testutil.NeedFeature(t, testutil.NATHelpers)
	const rules = "  limits: {connections-per-source: 100}\n  nat: [masquerade: {}]\n"
	b := newBed(t, netfilter.Apply, rules)
	for _, helpers := range []string{"[ftp, sip]", "[ftp, sip]", "[tftp]", ""} {
		want := 0
		if helpers != "" {
			b.use("  helpers: " + helpers + "\n" + rules)
			want = map[string]int{"[ftp, sip]": 3, "[tftp]": 1}[helpers]
		} else {
			b.use(rules)
		}
		table, err := read.TableNamed(b.engine.ns, netfilter.Family, netfilter.Table)
		if err != nil {
			t.Fatal(err)
		}
		if len(table.Objects) != want {
			t.Errorf("helpers %s: %+v", helpers, table.Objects)
		}
	}
}

// TestTTL: what is forwarded to the WAN has the TTL of the file, whatever it came with, and checksums that are right;
// other packets lose one.
func TestTTL(t *testing.T) {
	b := newBed(t, netfilter.Apply, `
  ttl: 33
  nat: [masquerade: {from: 192.168.0.0/24}]
  ipv6: [masquerade: {from: "fd00:1::/64"}]
`)
	for _, c := range []struct {
		from, to            behaviour.Host
		source, destination string
		want                uint8
	}{
		{behaviour.A, behaviour.X, "192.168.0.2:4000", "198.18.0.10:53", 33},
		{behaviour.A, behaviour.X, "[fd00:1::2]:4000", "[2001:db8:f:1::10]:53", 33},
		{behaviour.A, behaviour.C, "192.168.0.2:4000", "172.17.0.2:53", 63},
		{behaviour.A, behaviour.C, "[fd00:1::2]:4000", "[fd00:2::2]:53", 63},
	} {
		if got := b.one(c.from, c.to, c.source, c.destination, "x"); got == nil || max(got.IPv4.TTL, got.IPv6.HopLimit) != c.want {
			t.Errorf("%s -> %s: %+v, want TTL %d", c.source, c.destination, got, c.want)
		}
	}
}
