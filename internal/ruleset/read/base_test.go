package read

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
)

// policiesOf are what the forward chains do to packets that no condition is for.
func (w *world) policiesOf() map[string]string {
	w.t.Helper()
	chains, err := BaseChains(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{}
	for _, c := range chains {
		if c.Hook == "forward" {
			all[c.Table+" "+c.Chain] = c.Policy
		}
	}
	return all
}

// TestPolicyOfNftables: a rule for everything decides before the policy does, also in a
// chain that every packet comes to, as firewalld has it.
func TestPolicyOfNftables(t *testing.T) {
	w := newWorld(t)
	w.nft(`table inet t {
	chain refuses { counter reject; }
	chain returns { return; drop; }
	chain falls { goto returns; drop; }
	chain some { ct state established accept; iifname "a" drop; }
	chain c0 { type filter hook forward priority 0; ct state established accept; meta nfproto ipv4 drop; jump some; }
	chain c1 { type filter hook forward priority 1; policy drop; jump some; }
	chain c2 { type filter hook forward priority 2; jump some; log; drop; }
	chain c3 { type filter hook forward priority 3; iifname "a" accept; jump refuses; drop; }
	chain c4 { type filter hook forward priority 4; policy drop; accept; drop; }
	chain c5 { type filter hook forward priority 5; policy drop; jump returns; jump falls; accept; }
	chain c6 { type filter hook forward priority 6; goto falls; drop; }
}`)
	want := map[string]string{"t c0": "accept", "t c1": "drop", "t c2": "drop", "t c3": "reject", "t c4": "accept", "t c5": "accept", "t c6": "accept"}
	if d := cmp.Diff(want, w.policiesOf()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestPolicyOfIptables(t *testing.T) {
	for _, kind := range []string{"nft", "legacy"} {
		for _, c := range []struct{ commands, policy string }{
			{"-A FORWARD -p tcp -j DROP", "accept"},
			{"-P FORWARD DROP;-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT", "drop"},
			{"-A FORWARD -i a -j ACCEPT;-A FORWARD -j DROP", "drop"},
			{"-A FORWARD -i a -j ACCEPT;-A FORWARD -j REJECT", "reject"},
			{"-N X;-A X -j LOG;-A X -j DROP;-A FORWARD -j X", "drop"},
			{"-P FORWARD DROP;-N X;-A X -j RETURN;-A FORWARD -j X;-A FORWARD -j ACCEPT", "accept"},
		} {
			w := newWorld(t)
			for line := range strings.SplitSeq(c.commands, ";") {
				w.run("", append([]string{"iptables-" + kind}, strings.Fields(line)...)...)
			}
			if got := w.policiesOf()["filter FORWARD"]; got != c.policy {
				t.Errorf("%s: %s: %q, want %q", kind, c.commands, got, c.policy)
			}
		}
	}
}

// TestBaseChainsTooMany: sets of thousands of elements, hundreds of rules that look into
// them, and jumps that lead there in thousands of ways. What that becomes is bounded, and
// the answer says that it is not all.
func TestBaseChainsTooMany(t *testing.T) {
	const depth, rules, elements = 11, 900, 16000
	for _, operator := range []string{"==", "!="} {
		w := newWorld(t)
		var b strings.Builder
		b.WriteString("table ip hostile {\n\tset big { type ipv4_addr; elements = { ")
		for i := range elements {
			fmt.Fprintf(&b, "10.0.%d.%d, ", i>>8, i&255)
		}
		fmt.Fprintf(&b, "} ; }\n\tchain c%d {\n", depth)
		for i := range rules {
			fmt.Fprintf(&b, "\t\tip daddr %s @big tcp dport %d dnat to 192.168.9.9\n", operator, 1+i)
		}
		b.WriteString("\t}\n")
		for d := depth - 1; d >= 0; d-- {
			fmt.Fprintf(&b, "\tchain c%d { ip saddr 198.18.0.0/15 jump c%d; ip daddr 203.0.113.0/24 jump c%d; }\n", d, d+1, d+1)
		}
		b.WriteString("\tchain pre { type nat hook prerouting priority -100; jump c0; }\n}\n")
		w.nft(b.String())
		func() {
			defer testutil.Bounded(t, 2*b.Len())()
			chains, err := BaseChains(w.ns)
			if err != nil || len(chains) != 1 || !chains[0].TooMany {
				t.Fatalf("%s: %d chains, %v: not all was followed, and it is not said", operator, len(chains), err)
			}
			all, err := NAT(w.ns)
			if err != nil || !all.TooMany {
				t.Fatalf("%s: %v: not all was followed, and it is not said", operator, err)
			}
		}()
	}
}
