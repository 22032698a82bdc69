package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestRejectedBeyond: an ICMP error of a filter names the server, or who is before it, and what to change there.
func TestRejectedBeyond(t *testing.T) {
	for name, c := range map[string]struct {
		by            string
		kind, code    uint8
		protocol      string
		place, advice string
	}{
		"the server":             {"192.168.1.10", 3, 10, "tcp", "the server 192.168.1.10 rejects it by a filter of its own", "on 192.168.1.10, let its filter accept tcp to port 8080"},
		"the server, by default": {"192.168.1.10", 3, 3, "tcp", "the server 192.168.1.10 rejects it by a filter of its own", "on 192.168.1.10, let its filter accept tcp to port 8080"},
		"a firewall before it":   {"192.168.1.2", 3, 13, "tcp", "a filter beyond this host, at 192.168.1.2, rejects it", "on 192.168.1.2, let its filter"},
		"IPv6":                   {"2001:db8::2", 1, 1, "tcp", "a filter beyond this host, at 2001:db8::2, rejects it", "on 2001:db8::2, let its filter"},
		"a closed port of UDP":   {"192.168.1.10", 3, 3, "udp", "192.168.1.10 refuses it (ICMP: port unreachable)", ""},
		"a router without route": {"192.168.1.2", 3, 0, "tcp", "192.168.1.2, beyond this host, does not lead it on (ICMP: network unreachable: no route)", ""},
	} {
		s := left(snapshot.StepUnreachable, stranger, outside+"80", inside+"8080", "", "lan0", snapshot.FailedPlace{})
		s.Protocol, s.Failed.By, s.Failed.ICMPType, s.Failed.ICMPCode = c.protocol, netip.MustParseAddr(c.by), c.kind, c.code
		got := followedOnes(household(s))
		if len(got) != 1 || got[0].place != c.place || got[0].decided != (c.advice != "") || c.advice != "" && !strings.HasPrefix(got[0].advice.Title, c.advice) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
