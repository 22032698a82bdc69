package collect

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/natkit/natkit/internal/anonymize"
)

// TestEveryAnswerIsAnonymized: what collectors ask, anonymized bundles have.
func TestEveryAnswerIsAnonymized(t *testing.T) {
	asked := regexp.MustCompile(`question\{"[^"]+", "([^"]+)"\}`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range asked.FindAllStringSubmatch(string(text), -1) {
			if n++; answerTypes[m[1]] == nil {
				t.Errorf("%s asks for %s, which is not in answerTypes", name, m[1])
			}
		}
	}
	if n < 10 {
		t.Errorf("%d questions found", n)
	}
}

// TestAnonymousLog: what the rules read of the log is as it was, and names are not.
func TestAnonymousLog(t *testing.T) {
	a := anonymize.New(anonymize.Key{})
	for _, text := range []string{
		"nf_conntrack: nf_conntrack: table full in netns 4026532246, dropping packet",
		"net_ratelimit: 13429 callbacks suppressed",
		"nf_conntrack: falling back to vmalloc.",
		"nf_conntrack: default automatic helper assignment has been turned off for security reasons",
		"neighbour: arp_cache: neighbor table overflow!",
		"TCP: request_sock_TCP: Possible SYN flooding on port 81.2.69.142:80. Sending cookies.  Check SNMP counters.",
		"UDP: bad checksum. From 81.2.69.142:5353 to 10.77.3.5:53 ulen 30",
		"TCP: time wait bucket table overflow",
		"nf_ct_proto_6: invalid packet ignored in state ESTABLISHED  IN= OUT=acmewan SRC=81.2.69.142 DST=10.77.3.5 LEN=40",
		"watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [acmed:812]",
		"RIP: 0010:nf_nat_setup_info+0x3a/0x1a0 [nf_nat]",
		"IPv4: martian source 10.77.3.5 from 81.2.69.142, on dev acmewan",
		"acmewan ate my IP address",
	} {
		record := fmt.Sprintf("4,7,1000000,-;%s\n SUBSYSTEM=net\n DEVICE=+net:acmewan\n", text)
		was, interesting := parseLine([]byte(record))
		if !interesting {
			t.Errorf("%q is of no interest", text)
		}
		out := anonymousLog(a, []byte(record+"4,8,1,-;usb acme stick\n"))
		is, interesting := parseLine(out)
		if !interesting || is.Seq != was.Seq || is.UptimeSeconds != was.UptimeSeconds || is.Netns != was.Netns || is.Suppressed != was.Suppressed {
			t.Errorf("%q becomes %q", text, out)
		}
		if got := string(out); strings.Contains(got, "acme") || strings.Contains(got, "81.2.69") || strings.Contains(got, "10.77.3.") {
			t.Errorf("%q comes through", got)
		}
		if named := strings.Contains(text, "acme") || strings.Contains(text, "81.2."); !named && is.Text != was.Text {
			t.Errorf("%q becomes %q", was.Text, is.Text)
		}
	}
}

// TestAnonymousIPVS: services and connections are the same ones, with replaced addresses, in both versions of IP.
func TestAnonymousIPVS(t *testing.T) {
	a := anonymize.New(anonymize.Key{})
	services := `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  5102458E:01BB wrr persistent 300000 FFFFFF00
  -> 0A4D0305:01BB      Route   1      12         52000     
FWM  0A4D0305 rr persistent 300000 FFFFFFFF
  -> 0A4D0305:0000      Masq    1      0          0         
TCP  [2a02:06b8:0005:0000:0000:0000:0000:0160]:01BB wlc 
  -> [fd42:0001:0002:0003:0000:0000:0000:0005]:01BB      Route   1      0          1         
`
	was, err := parseIPVSServices(strings.NewReader(services))
	if err != nil {
		t.Fatal(err)
	}
	is, err := parseIPVSServices(strings.NewReader(string(anonymousFile(a, procIPVS, []byte(services)))))
	if err != nil {
		t.Fatal(err)
	}
	mapped := func(socket string) string {
		s, err := netip.ParseAddrPort(socket)
		if err != nil { // a firewall mark
			return socket
		}
		return a.AddrPort(s).String()
	}
	for i := range was.Services {
		was.Services[i].Address = mapped(was.Services[i].Address)
		for j := range was.Services[i].Servers {
			was.Services[i].Servers[j].Address = mapped(was.Services[i].Servers[j].Address)
		}
	}
	if d := cmp.Diff(was, is); d != "" || len(is.Services) != 3 {
		t.Error(d)
	}

	connections := `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 51024501 0800 5102458E 01BB 0A4D0305 01BB TIME_WAIT       117
UDP 51024502 13C4 5102458E 13C4 0A4D0306 13C4 UDP             299 sip acme-call-id@81.2.69.2
TCP 2a02:06b8:0005:0000:0000:0000:0000:0001 9C40 2a02:06b8:0005:0000:0000:0000:0000:0160 01BB fd42:0001:0002:0003:0000:0000:0000:0005 01BB TIME_WAIT        60
TCP 51024503 0800 5102`
	read := func(text string) (all []ipvsConnection) {
		t.Helper()
		if err := parseIPVSConnections(strings.NewReader(text), func(c *ipvsConnection) { all = append(all, *c) }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	secret := string(anonymousFile(a, procIPVSConnections, []byte(connections)))
	before, after := read(connections), read(secret)
	for i := range before {
		c := &before[i]
		c.Client, c.Service, c.Server = a.AddrPort(c.Client), a.AddrPort(c.Service), a.AddrPort(c.Server)
	}
	if d := cmp.Diff(before, after, cmpopts.EquateComparable(netip.AddrPort{}), cmp.AllowUnexported(ipvsConnection{})); d != "" || len(after) != 3 {
		t.Error(d)
	}
	for _, leak := range []string{"acme", "sip", "510245", "0A4D03", "81.2.", "06b8"} {
		if strings.Contains(secret, leak) {
			t.Errorf("%s comes through: %s", leak, secret)
		}
	}
}

// TestUnknownMembers: what a later natkit wrote is left out, as nobody knows what is in it.
func TestUnknownMembers(t *testing.T) {
	a := anonymize.New(anonymize.Key{})
	for _, name := range []string{"0/0/later.json", "0/0/files/proc/self/mountinfo", "0/0/files/etc/hostname", "0/later.json", "0/0/files/proc/sys/kernel/hostname.d/x"} {
		if data, err := anonymous(a, name, []byte("acme")); data != nil || err != nil {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if data, err := anonymous(a, "0/0/files/proc/sys/net/ipv4/later", []byte("acme 7\n")); strings.Contains(string(data), "acme") || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := anonymous(a, "later.json", nil); err == nil {
		t.Error("a member of no recording was taken")
	}
}
