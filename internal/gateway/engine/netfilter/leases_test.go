package netfilter

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

const pcpText = `gateway:
  interfaces: {wan: eth0, lan: eth1}
  pcp: {on: 203.0.113.7}
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - dnat: {on: 203.0.113.7, port: tcp/80, to: 192.168.0.2}
`

func lease(protocol uint8, external, internal string, left time.Duration) gateway.Lease {
	return gateway.Lease{Protocol: protocol, External: netip.MustParseAddrPort(external), Internal: netip.MustParseAddrPort(internal), Expires: time.Now().Add(left)}
}

// leasesIn are those in force, in words.
func leasesIn(f *farm) string {
	f.Helper()
	all, err := Engine{}.Leases(f.ns)
	if err != nil {
		f.Fatal(err)
	}
	var words []string
	for _, l := range all {
		if left := time.Until(l.Expires); left <= 0 || left > 2*time.Hour {
			f.Errorf("%+v is left for %s", l, left)
		}
		words = append(words, fmt.Sprint(l.Protocol, " ", l.External, " ", l.Internal))
	}
	return strings.Join(words, ", ")
}

// Leases come with the table, change by one transaction each, which is no change by hand, and end by themselves.
func TestLeases(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Hairpin)
	f := &farm{T: t, ns: testutil.Namespace(t), plan: planOfText(t, "test", pcpText)}
	want := func(what, leases string) {
		t.Helper()
		if got := leasesIn(f); got != leases {
			t.Errorf("%s: %q, want %q", what, got, leases)
		}
		if changes := f.changes(); changes != "" {
			t.Errorf("%s: %s", what, changes)
		}
	}
	if all, err := (Engine{}).Leases(f.ns); err != nil || all != nil {
		t.Errorf("without a table: %v, %v", all, err)
	}
	if err := (Engine{}).Lend(f.ns, nil); err == nil {
		t.Error("leases without a table")
	}
	f.apply()
	want("none", "")
	f.plan.Leases = []gateway.Lease{lease(unix.IPPROTO_UDP, "203.0.113.7:5000", "192.168.0.9:4000", time.Hour)}
	f.apply()
	want("with the table", "17 203.0.113.7:5000 192.168.0.9:4000")
	before := f.generation()
	more := append(f.plan.Leases, lease(unix.IPPROTO_TCP, "203.0.113.7:5000", "192.168.0.8:22", time.Hour), lease(unix.IPPROTO_TCP, "203.0.113.7:4999", "192.168.0.9:22", 0))
	if err := (Engine{}).Lend(f.ns, more); err != nil {
		t.Fatal(err)
	}
	want("one more", "6 203.0.113.7:5000 192.168.0.8:22, 17 203.0.113.7:5000 192.168.0.9:4000")
	if now := f.generation(); now != before+1 {
		t.Errorf("%d transactions", now-before)
	}
	if digest, generation := rememberedAt(f.ns); digest != gateway.Digest(f.plan) || generation != before+1 {
		t.Errorf("the table is to be read again: %q %d", digest, generation)
	}
	// The same again, with other times.
	if err := (Engine{}).Lend(f.ns, more[1:2]); err != nil {
		t.Fatal(err)
	}
	want("one less", "6 203.0.113.7:5000 192.168.0.8:22")
	if err := (Engine{}).Lend(f.ns, []gateway.Lease{lease(unix.IPPROTO_TCP, "203.0.113.7:5000", "192.168.0.8:22", 50*time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testutil.Patience(time.Minute)); leasesIn(f) != ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not end")
		}
	}
	run(t, f.ns, "nft", "flush", "chain", "inet", "natkit", "prerouting")
	if changes := f.changes(); !strings.Contains(changes, "chain prerouting") {
		t.Errorf("a change by hand: %q", changes)
	}
	if err := Remove(f.ns); err != nil {
		t.Fatal(err)
	}
	if there, err := read.HasTable(f.ns, Family, Table); err != nil || there {
		t.Error(there, err)
	}
}

// As many as there may be are written at once.
func TestManyLeases(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Hairpin)
	f := &farm{T: t, ns: testutil.Namespace(t), plan: planOfText(t, "test", pcpText)}
	f.apply()
	var all []gateway.Lease
	for i := range gateway.MostLeases {
		all = append(all, lease(unix.IPPROTO_UDP, fmt.Sprintf("203.0.113.7:%d", 10000+i), "192.168.0.9:4000", time.Hour))
	}
	for range 3 {
		if err := (Engine{}).Lend(f.ns, all); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := (Engine{}).Leases(f.ns); err != nil || len(got) != len(all) {
		t.Errorf("%d, %v", len(got), err)
	}
}

// nft(8) shows the rules, and the leases that there are.
func TestLeasesListable(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	testutil.NeedFeature(t, testutil.Hairpin)
	f := &farm{T: t, ns: testutil.Namespace(t), plan: planOfText(t, "test", pcpText)}
	f.plan.Leases = []gateway.Lease{lease(unix.IPPROTO_UDP, "203.0.113.7:5000", "192.168.0.9:4000", time.Hour)}
	f.apply()
	text := listing(t, f.ns)
	for _, want := range []string{
		"\t\tdnat ip to ip daddr . meta l4proto . th dport map @leases4 comment \"pcp\"\n\t}\n", "map @leases4-hairpin comment \"pcp\"",
		"flags timeout\n\t\telements = { 203.0.113.7 . udp . 5000 timeout ", " : 192.168.0.9 . 4000 }",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}
