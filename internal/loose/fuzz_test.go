package loose

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
)

// readerSeeds are texts of each kind that a reader takes, by its name.
var readerSeeds = map[string][]string{
	"conntrack -S":               {someStats, "entries  33\ninsert_failed 4\ndrop 9\nicmp_error 2\n"},
	"iptables-save":              {"*nat\n:POSTROUTING ACCEPT [0:0]\n[1:2] -A POSTROUTING -s 10.0.0.0/8 -o eth0 -j SNAT --to-source 192.0.2.1-192.0.2.3:1024-2047 --random-fully\nCOMMIT\n"},
	"iptables -S":                {"-P INPUT ACCEPT -c 5 300\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-N DOCKER\n-A FORWARD -c 1 2 -o docker0 -j DOCKER\n"},
	"nft list ruleset":           {"table inet t {\n\tset s { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 } }\n\tchain c {\n\t\ttype nat hook postrouting priority 100; policy accept;\n\t\tip saddr @s counter packets 1 bytes 2 snat to 192.0.2.1:1024-2047 fully-random # handle 9\n\t}\n}\n"},
	"ipvsadm -Ln":                {"IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\nTCP  [2001:db8::1]:80 rr persistent 60\n  -> 198.18.0.2:80 Masq 1 2 3\nFWM  7 wrr\n"},
	"ipvsadm -Lnc":               {"IPVS connection entries\npro expire state       source             virtual            destination\nTCP 01:00 ESTABLISHED 198.18.0.2:5 198.18.0.1:80 198.18.0.3:80\n"},
	"nstat":                      {"#kernel\nIpInReceives 2432660 0.0\nTcpExtTW 0 0.0\nIp6InReceives 5 0.0\n", `{"kernel":{"IpInReceives":1}}` + "\n"},
	"ss -s":                      {"Total: 16\nTCP:   3 (estab 0, closed 2, orphaned 0, timewait 2/0)\n\nTransport Total IP IPv6\nTCP 1 1 0\n"},
	"ss -tan":                    {"State  Recv-Q Send-Q Local Address:Port  Peer Address:Port\nLISTEN 0 128 [::1]%lo:22 *:*\nESTAB 0 0 198.18.0.1:1 198.18.0.2:2\n", "tcp6 0 0 :::22 :::* LISTEN\n"},
	"netstat -s":                 {"Ip:\n    5 total packets received\nIcmp:\n    ICMP input histogram:\n        destination unreachable: 3\nTcp:\n    12 active connection openings\nTcpExt:\n    874 times the listen queue of a socket overflowed\n    TCPTimeWaitOverflow: 3\n"},
	"tc -s qdisc":                {"qdisc fq_codel 0: dev eth0 root refcnt 2\n Sent 5 bytes 1 pkt (dropped 3, overlimits 4 requeues 5)\n backlog 1Kb 2p requeues 0\nclass htb 1:1 dev eth0 root\n"},
	"ip -s link":                 {"1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN\n    link/loopback 00:00:00:00:00:00\n    RX:  bytes packets errors dropped  missed   mcast\n 1 2 3 4 5 6\n    TX:  bytes packets errors dropped carrier collsns\n 1 2 3 4 5 6\n"},
	"ip addr":                    {"2: a@b: <UP> mtu 1\\\\    inet 1.2.3.4 peer 1.2.3.5/32 scope global tentative a\n3: c    inet6 fe80::1/64 scope link\n"},
	"ip rule":                    {"0:\tfrom all lookup local\n100: not from 10.0.0.0/8 to 1.2.3.4 iif a fwmark 0x1/0xff ipproto tcp dport 1-2 lookup 5\n9: from all unreachable\n"},
	"ip neigh":                   {"192.0.2.1 dev eth0 lladdr 02:fc:00:00:00:05 REACHABLE\nfe80::1 dev a proxy FAILED\n"},
	"ip route":                   {"default via 1.2.3.4 dev a metric 5\n\tnexthop via inet6 fe80::1 dev b weight 1 dead\nunreachable 10.0.0.0/8 table 9\n"},
	"dmesg":                      {someDmesg, "kern  :warn  : [ 1234.500000] x\n[Sun Mar  1 11:00:00 2026] y\n"},
	"journalctl -k":              {"Mar  1 11:00:00 gw kernel: [ 12.000000] nf_conntrack: table full\n", "2026-03-01T11:00:00.123456+0000 gw kernel: x\n"},
	"sysctl -a":                  {someSysctl},
	"/proc/sys":                  {"1\n"},
	"conntrack -C":               {"65530\n"},
	"/proc/version":              {"Linux version 6.1.0-13-amd64 (x) #1 SMP\n"},
	kindUname:                    {"Linux gw 6.1.0-13-amd64 #1 SMP x86_64 GNU/Linux\n"},
	"/proc/uptime":               {"12345.67 54321.00\n"},
	"uptime":                     {" 10:00:00 up 3 days,  4:05,  1 user,  load average: 0.00, 0.01, 0.05\n"},
	"readlink /proc/self/ns/net": {"lrwxrwxrwx 1 root root 0 /proc/self/ns/net -> net:[4026531840]\n"},
	"bridge fdb":                 {"33:33:00:00:00:01 dev eth0 self permanent\n"},
	"os-release":                 {"PRETTY_NAME=\"x\"\n"},
	kindDate:                     {"Sun Mar  1 10:00:00 UTC 2026\n"},
}

// readerHints name a file where its content alone does not say what it is.
var readerHints = map[string]string{"/proc/sys": "proc/sys/net/ipv4/ip_forward", "conntrack -C": "conntrack_-C", kindDate: "date"}

func textOf(name, text string) *Text {
	return &Text{File: readerHints[name], At: noon, Data: []byte(text)}
}

// TestReaderSeeds: each reader has a text that it is fuzzed from, which is recognised as its own and read.
func TestReaderSeeds(t *testing.T) {
	for _, k := range kinds() {
		if k.read != nil && readerSeeds[k.name] == nil {
			t.Errorf("no text of %s", k.name)
		}
	}
	for name, texts := range readerSeeds {
		for _, text := range texts {
			one := textOf(name, text)
			if one.kind = kindOf(one); one.kind == nil || one.kind.name != name {
				t.Errorf("%q is not recognised as %s: %+v", text, name, one.kind)
				continue
			}
			if err := one.kind.read(newSample(), one); err != nil {
				t.Errorf("%s: %q: %v", name, text, err)
			}
		}
	}
}

// fuzzReader gives a reader whatever is recognised as its text: it makes no panic, no more of a text than that has room
// for, and the same each time.
func fuzzReader(f *testing.F, name string) {
	for _, text := range readerSeeds[name] {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		one := textOf(name, text)
		if one.kind = kindOf(one); len(text) > 1<<15 || one.kind == nil || one.kind.name != name {
			return
		}
		read := func() *Sample {
			s := newSample()
			if err := one.kind.read(s, one); err != nil && strings.Contains(err.Error(), "\n") {
				t.Fatalf("an error of several lines: %q", err)
			}
			s.finish()
			s.setClock()
			return s
		}
		s, again := read(), read()
		size := 0
		for _, data := range s.Files {
			size += len(data)
		}
		if size > 64*len(text)+4096 || len(s.Log)+len(s.Sockets)+len(s.Routes)+len(s.Neighbours)+len(s.RoutingRules)+len(s.Addresses)+len(s.Links)+len(s.Queues) > len(text) {
			t.Fatalf("%d bytes become %d", len(text), size)
		}
		if !maps.EqualFunc(s.Files, again.Files, bytes.Equal) || !slices.Equal(s.notes, again.notes) {
			t.Fatal("read twice, it is another")
		}
	})
}

func FuzzStats(f *testing.F)           { fuzzReader(f, "conntrack -S") }
func FuzzSaved(f *testing.F)           { fuzzReader(f, "iptables-save") }
func FuzzListedRules(f *testing.F)     { fuzzReader(f, "iptables -S") }
func FuzzNft(f *testing.F)             { fuzzReader(f, "nft list ruleset") }
func FuzzIPVS(f *testing.F)            { fuzzReader(f, "ipvsadm -Ln") }
func FuzzIPVSConnections(f *testing.F) { fuzzReader(f, "ipvsadm -Lnc") }
func FuzzNstat(f *testing.F)           { fuzzReader(f, "nstat") }
func FuzzSocketSums(f *testing.F)      { fuzzReader(f, "ss -s") }
func FuzzSockets(f *testing.F)         { fuzzReader(f, "ss -tan") }
func FuzzNetstat(f *testing.F)         { fuzzReader(f, "netstat -s") }
func FuzzQdiscs(f *testing.F)          { fuzzReader(f, "tc -s qdisc") }
func FuzzLinks(f *testing.F)           { fuzzReader(f, "ip -s link") }
func FuzzAddresses(f *testing.F)       { fuzzReader(f, "ip addr") }
func FuzzRoutingRules(f *testing.F)    { fuzzReader(f, "ip rule") }
func FuzzNeighbours(f *testing.F)      { fuzzReader(f, "ip neigh") }
func FuzzRoutes(f *testing.F)          { fuzzReader(f, "ip route") }
func FuzzDmesg(f *testing.F)           { fuzzReader(f, "dmesg") }
func FuzzJournal(f *testing.F)         { fuzzReader(f, "journalctl -k") }
func FuzzSysctls(f *testing.F)         { fuzzReader(f, "sysctl -a") }
func FuzzUptime(f *testing.F)          { fuzzReader(f, "uptime") }
func FuzzDate(f *testing.F)            { fuzzReader(f, kindDate) }
