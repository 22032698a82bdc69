package names

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/snapshot"
)

func TestFIBTrie(t *testing.T) {
	got := ParseFIBTrie(string(recorded(t, "fib_trie.txt")))
	if d := cmp.Diff(addrs("127.0.0.1", "198.18.77.2"), got, equalAddr); d != "" {
		t.Error(d)
	}
	// A prefix that is local as a whole has no single address; what was cut off has none either.
	if got := ParseFIBTrie("Main:\n  |-- 198.18.0.0\n     /16 host LOCAL\n  |-- 198.18.9.9\n     /32 ho"); len(got) != 0 {
		t.Error(got)
	}
}

func TestIfInet6(t *testing.T) {
	text := "fe800000000000007001eafffebf869b 02 40 20 80     eth0\n" +
		"00000000000000000000000000000001 01 80 10 80       lo\n" +
		"fd000079000000000000000000000002 02 40 00 80     eth0\n" +
		"fd000079000000000000000000000003 02 40 00 c0     eth0\n" + // tentative
		"fd00 02 40\nzz\n"
	got := ParseIfInet6(text)
	if d := cmp.Diff(addrs("fe80::7001:eaff:febf:869b", "::1", "fd00:79::2"), got, equalAddr); d != "" {
		t.Error(d)
	}
}

func TestHosts(t *testing.T) {
	text := "127.0.0.1 localhost\n198.18.5.1\tdb1.example db1 # the old one\n#198.18.5.2 off\nfd00::5 six\nfe80::1%eth0 router\nnot an address\n198.18.5.3\n"
	got, whole := ParseHosts(text)
	want := []HostLine{{netip.MustParseAddr("127.0.0.1"), "localhost"}, {netip.MustParseAddr("198.18.5.1"), "db1.example"},
		{netip.MustParseAddr("fd00::5"), "six"}, {netip.MustParseAddr("fe80::1"), "router"}}
	if d := cmp.Diff(want, got, equalAddr); d != "" || !whole {
		t.Error(d, whole)
	}
	if got, whole := ParseHosts(strings.Repeat("0.0.0.0 ads.example\n", mostHosts+1)); len(got) != mostHosts || whole {
		t.Errorf("%d lines, whole: %v", len(got), whole)
	}
}

func FuzzFiles(f *testing.F) {
	f.Add(string(recorded(f, "fib_trie.txt")))
	f.Add("fd000079000000000000000000000002 02 40 00 80 eth0\n198.18.5.1 db1\n")
	f.Add("0::/system.slice/docker-" + dockerWeb + ".scope\n0::/machine.slice/systemd-nspawn@a\\x2d.service\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range append(ParseFIBTrie(text), ParseIfInet6(text)...) {
			if !a.IsValid() {
				t.Error("an address that is none")
			}
		}
		lines, _ := ParseHosts(text)
		for _, l := range lines {
			if !l.Address.IsValid() || l.Name == "" {
				t.Errorf("%+v", l)
			}
		}
		var o snapshot.Owner
		if ByCgroup(&o, text); (o.Container == "") != (o.Runtime == "") {
			t.Errorf("%+v", o)
		}
	})
}

func name(kind snapshot.NameKind, text string) snapshot.Name {
	return snapshot.Name{Kind: kind, Text: text}
}

// TestBook: what is certain comes first, and where sources differ there is no name.
func TestBook(t *testing.T) {
	var b Book
	add := func(rank Rank, address string, n snapshot.Name) { b.Add(rank, netip.MustParseAddr(address), n) }
	eth0, web, db, host := name(snapshot.NameInterface, "eth0"), name(snapshot.NameContainer, "web"), name(snapshot.NameContainer, "db"), name(snapshot.NameHosts, "db1")
	add(Written, "198.18.0.1", host)
	add(Kernel, "198.18.0.1", web)
	add(Own, "198.18.0.1", eth0)
	add(Kernel, "198.18.0.2", web)
	add(Kernel, "198.18.0.2", web)
	add(Recorded, "198.18.0.2", db) // out of date
	add(Kernel, "198.18.0.3", web)  // two containers behind bridges of their own
	add(Kernel, "198.18.0.3", db)
	add(Written, "198.18.0.3", host)
	add(Kernel, "127.0.0.1", web)
	add(Kernel, "fe80::1", web)
	add(Own, "fe80::2", eth0)
	add(Written, "0.0.0.0", host)
	add(Written, "::ffff:198.18.0.4", host)
	b.AddFirst(Written, netip.MustParseAddr("198.18.0.4"), db)
	add(Kernel, "198.18.0.5", name(snapshot.NameProcess, strings.Repeat("x", 1000)))
	got, whole := b.Addresses()
	want := map[netip.Addr]snapshot.Name{}
	for address, n := range map[string]snapshot.Name{"198.18.0.1": eth0, "198.18.0.2": web, "fe80::2": eth0, "198.18.0.4": host,
		"198.18.0.5": name(snapshot.NameProcess, strings.Repeat("x", mostText))} {
		want[netip.MustParseAddr(address)] = n
	}
	if d := cmp.Diff(want, got, equalAddr); d != "" || !whole {
		t.Error(d, whole)
	}
}

// TestBookIsBounded: what is certain is kept, whatever else there is.
func TestBookIsBounded(t *testing.T) {
	var b Book
	at := netip.MustParseAddr("198.18.0.0")
	for range MostAddresses + 10 {
		at = at.Next()
		b.Add(Written, at, name(snapshot.NameHosts, "x"))
	}
	b.Add(Own, netip.MustParseAddr("198.19.255.1"), name(snapshot.NameInterface, "eth0"))
	got, whole := b.Addresses()
	if len(got) != MostAddresses || whole || got[netip.MustParseAddr("198.19.255.1")].Text != "eth0" {
		t.Errorf("%d addresses, whole: %v", len(got), whole)
	}
	c := b.Copy()
	c.Add(Own, netip.MustParseAddr("198.19.255.2"), name(snapshot.NameInterface, "eth1"))
	if got, _ := b.Addresses(); got[netip.MustParseAddr("198.19.255.2")].Text != "" {
		t.Error("a copy shares its pages")
	}
}

func known() *snapshot.Names {
	n := &snapshot.Names{From: 4026531833, Addresses: map[netip.Addr]snapshot.Name{}, Netns: map[uint64]snapshot.Name{4026532327: name(snapshot.NameContainer, "web")},
		Sockets: map[string]snapshot.Name{
			"tcp 0.0.0.0:80":   {Kind: snapshot.NameProcess, Text: "nginx", PID: 812, Unit: "nginx.service"},
			"udp [::]:53":      {Kind: snapshot.NameProcess, Text: "dnsmasq", PID: 7},
			"tcp 198.18.0.1:9": {Kind: snapshot.NameProcess, Text: "discard", PID: 8},
		}}
	for address, name := range map[string]snapshot.Name{
		"198.18.0.1": name(snapshot.NameInterface, "eth0"), "fd00::1": name(snapshot.NameInterface, "eth0"),
		"10.244.1.7": name(snapshot.NamePod, "shop/web-7d9f"), "198.18.0.9": name(snapshot.NameHost, "host"),
	} {
		n.Addresses[netip.MustParseAddr(address)] = name
	}
	return n
}

func TestBeside(t *testing.T) {
	n := known()
	for _, tt := range []struct{ protocol, end, want string }{
		{"", "10.244.1.7", "10.244.1.7 (pod shop/web-7d9f)"},
		{"tcp", "10.244.1.7:80", "10.244.1.7:80 (pod shop/web-7d9f)"},
		{"tcp", "[::ffff:10.244.1.7]:80", "[::ffff:10.244.1.7]:80 (pod shop/web-7d9f)"},
		{"tcp", "198.18.0.1:80", "198.18.0.1:80 (eth0, nginx pid 812 of nginx.service)"},
		{"", "198.18.0.1:80", "198.18.0.1:80 (eth0)"},
		{"udp", "198.18.0.1:80", "198.18.0.1:80 (eth0)"},
		{"tcp", "198.18.0.1:9", "198.18.0.1:9 (eth0, discard pid 8)"},
		{"udp", "198.18.0.1:53", "198.18.0.1:53 (eth0, dnsmasq pid 7)"},
		{"udp", "[fd00::1]:53", "[fd00::1]:53 (eth0, dnsmasq pid 7)"},
		{"tcp", "[fd00::1]:80", "[fd00::1]:80 (eth0)"},
		{"tcp", "198.18.0.9:80", "198.18.0.9:80 (this host)"},
		{"tcp", "203.0.113.1:80", "203.0.113.1:80"}, // of another host: it is not this one's socket
		{"tcp", "rubbish", "rubbish"}, {"tcp", "", ""},
	} {
		if got := Beside(n, tt.protocol, tt.end); got != tt.want {
			t.Errorf("%s %q: %q, want %q", tt.protocol, tt.end, got, tt.want)
		}
		if got := Beside(nil, tt.protocol, tt.end); got != tt.end {
			t.Errorf("without names %q becomes %q", tt.end, got)
		}
	}
	for _, tt := range []struct {
		netns     uint64
		end, want string
	}{
		{n.From, "198.18.0.1:80", "198.18.0.1:80 (eth0, nginx pid 812 of nginx.service)"},
		{n.From + 1, "198.18.0.1:80", "198.18.0.1:80"}, // another host's address there
		{n.From + 1, "10.244.1.7:80", "10.244.1.7:80 (pod shop/web-7d9f)"},
	} {
		if got := BesideIn(n, tt.netns, "tcp", tt.end); got != tt.want {
			t.Errorf("in %d: %q, want %q", tt.netns, got, tt.want)
		}
	}
	if got := BesideWho(n, "tcp 198.18.0.1:80"); got != "tcp 198.18.0.1:80 (eth0)" {
		t.Error(got)
	}
}

func TestMentioned(t *testing.T) {
	text := `{"a": "10.244.1.7:80", "b": "198.18.0.1", "cmd": "iptables -d 10.244.1.7/32", "c": "[fd00::1]:443", "d": "::ffff:198.18.0.9",
		"e": "0.0.0.0:80", "netns": 4026532327, "f": "6.1.0.13", "g": "12:34:56", "h": "999.1.1.1", "i": 4026531999}`
	found, list := Mentioned(text, nil, known())
	want := []Mention{{"10.244.1.7", "pod shop/web-7d9f"}, {"198.18.0.1", "eth0"}, {"fd00::1", "eth0"}, {"198.18.0.9", "this host"},
		{"tcp 0.0.0.0:80", "nginx pid 812 of nginx.service"}}
	if d := cmp.Diff(want, list); d != "" {
		t.Error(d)
	}
	if len(found.Addresses) != 4 || len(found.Sockets) != 1 || len(found.Netns) != 1 || found.From != known().From {
		t.Errorf("%+v", found)
	}
	if found, list := Mentioned("203.0.113.1 and 4026532999", known()); found != nil || list != nil {
		t.Errorf("%+v %v", found, list)
	}
	// The first that knows an address is asked.
	newer := &snapshot.Names{Addresses: map[netip.Addr]snapshot.Name{netip.MustParseAddr("10.244.1.7"): name(snapshot.NamePod, "shop/new")}}
	if _, list := Mentioned("10.244.1.7 198.18.0.1", newer, known()); fmt.Sprint(list) != "[{10.244.1.7 pod shop/new} {198.18.0.1 eth0}]" {
		t.Error(list)
	}
}

// FuzzMentioned: whatever the text, only what is known is named, and each once.
func FuzzMentioned(f *testing.F) {
	f.Add("10.244.1.7:80 [fd00::1]:443 ::ffff:198.18.0.9 0.0.0.0:80 4026532327")
	f.Add("1.1.1.1.1:99999999 [::::]:1 4999999999")
	f.Fuzz(func(t *testing.T, text string) {
		found, list := Mentioned(text, known())
		seen := map[string]bool{}
		for _, m := range list {
			if seen[m.What] || m.Name == "" {
				t.Errorf("%v", list)
			}
			seen[m.What] = true
		}
		if found != nil && len(list) != len(found.Addresses)+len(found.Sockets) {
			t.Errorf("%+v: %v", found, list)
		}
	})
}
