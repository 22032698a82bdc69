package behaviour

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/testutil"
)

// How many random tables of others TestExplainForeignSets takes, and packets through each.
const (
	foreignTables  = 60
	foreignPackets = 20
)

// foreignPre and foreignPost are rules of other programs that look into sets, ranges, maps
// and verdict maps, with places for one of several words (ruleWords).
var (
	foreignPre = []string{
		"ip daddr ON tcp dport {80, 8080} dnat to TARGET",
		"udp dport 50-60 dnat to TARGET:5353",
		"ip daddr ON udp dport {53-54, 8000-9000} dnat to TARGET",
		"ip daddr {203.0.113.7, 203.0.113.9} meta l4proto {tcp, udp} th dport {53, 80} dnat to TARGET",
		"ip daddr ON dnat to tcp dport map {80: 192.168.0.3, 8080: 172.17.0.2}",
		"ip daddr ON dnat to udp dport map {53: 192.168.0.3 . 5353, 55: 172.17.0.2 . 55}",
		"ip daddr . tcp dport {203.0.113.7 . 80, 203.0.113.9 . 8080} dnat to TARGET",
		"ip daddr ON udp dport vmap {53: jump one, 55: goto two, 80: accept}",
		"ip saddr vmap {198.18.0.0/24: jump one, 192.168.0.2: return, 10.1.0.0/24: goto two}",
		"ip daddr @addresses udp dport @ports dnat to TARGET",
		"ip saddr 198.18.0.1-198.18.0.9 ip daddr ON dnat to TARGET",
		"ip daddr != {203.0.113.1, 198.51.100.0/24, 203.0.113.11} iifname \"wan\" udp dport 53 dnat to TARGET",
		"iifname {\"wan\", \"lan\"} tcp dport 8080-8090 ip daddr ON dnat to TARGET",
		"tcp dport {80, 8080} jump three",
		"ip daddr ON udp dport 53-55 jump three",
	}
	foreignPost = []string{
		"ip saddr {192.168.0.2, 172.17.0.0/24} oifname \"wan\" snat to 203.0.113.7",
		"oifname \"wan\" snat to ip saddr map {192.168.0.2: 203.0.113.40, 192.168.0.3: 203.0.113.41}",
		"ip saddr 192.168.0.2-192.168.0.4 oifname != \"lan\" masquerade",
		"udp dport {53, 55} oifname \"wan\" masquerade",
		"oifname vmap {\"wan\": jump out, \"lan\": accept}",
		"ip daddr @addresses accept",
		"tcp dport 1-1023 oifname \"wan\" snat to 203.0.113.64/29 random",
	}
)

// foreignTable is another program's table that comes before natkit's.
func (s *sample) foreignTable() string {
	var b strings.Builder
	b.WriteString(`table ip theirs {
	set addresses { type ipv4_addr; flags interval; elements = { 203.0.113.7, 203.0.113.9, 198.51.100.0/24, 198.18.0.0/24 }; }
	set ports { type inet_service; flags interval; elements = { 53, 55-60 }; }
	chain one { ip daddr 203.0.113.7 dnat to 192.168.0.2; }
	chain two { dnat to 172.17.0.3; }
	chain three { udp dport 53 dnat to 172.17.0.2; tcp dport 80 dnat to 192.168.0.3:8080; }
	chain out { ip saddr { 192.168.0.0/24, 10.1.0.0/24 } masquerade; }
	chain pre { type nat hook prerouting priority -100
`)
	for range 1 + s.r.IntN(4) {
		fmt.Fprintf(&b, "\t\t%s\n", s.fill(pick(s.r, foreignPre)))
	}
	b.WriteString("\t}\n\tchain post { type nat hook postrouting priority 100\n")
	for range s.r.IntN(3) {
		fmt.Fprintf(&b, "\t\t%s\n", pick(s.r, foreignPost))
	}
	return b.String() + "\t}\n}\n"
}

// TestExplainForeignSets: where rules of others that look into sets, ranges, maps and
// verdict maps come first, a packet is traced as the kernel takes it, and nothing of it
// is left open.
func TestExplainForeignSets(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	testutil.NeedFeature(t, testutil.Hairpin)
	w := explainedWorld(t)
	s := sample{t: t, world: w, r: rand.New(rand.NewPCG(16, 5)), seen: map[string]int{}}
	for range foreignTables {
		table := s.foreignTable()
		err := w.gateway.Do(func() error {
			nft := exec.Command("nft", "-f", "-")
			nft.Stdin = strings.NewReader("table ip theirs\ndelete table ip theirs\n" + table)
			if out, err := nft.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, table)
		}
		if s.facts, err = host.Read(t.Context(), w.gateway, host.Options{}); err != nil {
			t.Fatal(err)
		}
		for _, f := range s.facts.Foreign {
			for _, r := range f.NAT {
				if r.Partial {
					t.Errorf("%s: not understood: %+v\n%s", f.Chain, r, table)
				}
			}
		}
		s.draw()
		if err := w.Apply(s.plan); err != nil {
			t.Fatalf("%v\n%s", err, s.text)
		}
		s.text += table
		for range foreignPackets {
			from, p, b := s.packet()
			s.send(from, p, b)
		}
	}
	if s.seen["theirs"] < 50 || s.seen["dnat"] < 5 {
		t.Errorf("the sample says little: %v", s.seen)
	}
	t.Logf("%v", s.seen)
}
