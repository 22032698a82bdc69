package collect

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// TestAudit asks a real kernel whose the addresses are that rules give, and which variants of
// iptables have rules, and a bundle about the same.
func TestAudit(t *testing.T) {
	testutil.NeedRoot(t)
	for _, program := range []string{"nft", "ip", "iptables-nft", "iptables-legacy"} {
		testutil.NeedProgram(t, program)
	}
	ns := testutil.Namespace(t)
	run := func(line string) {
		t.Helper()
		if err := ns.Do(func() error {
			words := strings.Fields(line)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s", line, out)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		"ip link add wan0 type veth peer name other", "ip link set other up", "ip link set lo up", "ip link set wan0 up",
		"ip addr add 198.18.0.1/24 dev wan0", "ip addr add 2001:db8::1/64 dev wan0 nodad", "ip addr add 198.18.9.1/24 dev other",
		"ip route add local 198.18.0.4 dev lo", "ip route add blackhole 198.18.0.5", "ip route add 198.18.0.6 via 198.18.0.9", "ip route add default via 198.18.0.9",
		"ip neigh add proxy 198.18.0.8 dev wan0", "ip -6 neigh add proxy 2001:db8::8 dev wan0",
	} {
		run(line)
	}
	var rules strings.Builder
	for i := range 9 {
		fmt.Fprintf(&rules, "ip daddr 198.18.77.%d oifname wan0 snat ip to 198.18.0.%d; ", i, i+1)
	}
	run("nft table inet t { chain c { type nat hook postrouting priority 100; " + rules.String() +
		"ip daddr 198.18.78.1 oifname wan0 snat ip to 203.0.112.0-203.0.113.255; ip daddr 198.18.78.2 oifname wan0 snat ip to 198.18.8.0-198.18.9.255; oifname other snat ip to 198.18.0.33; snat ip to 203.0.113.1; snat ip6 to 2001:db8::8; ip6 daddr 2001:db8:9::/64 snat ip6 to 2001:db8::9; }; }")
	run("iptables-nft -t nat -A POSTROUTING -o wan0 -j MASQUERADE")
	run("iptables-legacy -A FORWARD -p tcp --dport 81 -j DROP")
	onLink := map[string]string{}
	for _, host := range []int{2, 3, 7, 8, 9} {
		onLink[fmt.Sprintf("198.18.0.%d", host)] = "wan0"
	}
	for _, address := range []string{"198.18.0.5", "198.18.0.6", "198.18.0.33", "203.0.113.1", "2001:db8::8"} {
		onLink[address] = "" // a blackhole, a route, another interface, another network, a proxy
	}
	onLink["2001:db8::9"], onLink["203.0.112.0"] = "wan0", "" // the latter is of a range, of which this host has nothing
	check := func(s *snapshot.Snapshot) {
		t.Helper()
		if s.Audit == nil {
			t.Fatalf("%+v", s.Parts)
		}
		got := map[string]string{}
		for _, e := range s.Audit.Elsewhere {
			got[e.Address.String()] = e.OnLink
		}
		if d := cmp.Diff(onLink, got); d != "" {
			t.Errorf("addresses that are elsewhere (-want +got)\n%s", d)
		}
		want := []snapshot.Interface{
			{Name: "other", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.18.9.1/24")}},
			{Name: "wan0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.18.0.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		}
		slices.SortFunc(s.Audit.Interfaces, func(a, b snapshot.Interface) int { return strings.Compare(a.Name, b.Name) })
		if d := cmp.Diff(want, s.Audit.Interfaces, cmpopts.EquateComparable(netip.Prefix{})); d != "" {
			t.Errorf("interfaces (-want +got)\n%s", d)
		}
		var programs []string
		for _, table := range s.Audit.Iptables {
			programs = append(programs, table.Program+" "+table.Table)
		}
		slices.Sort(programs)
		if d := cmp.Diff([]string{"iptables-legacy filter", "iptables-nft nat"}, programs); d != "" {
			t.Errorf("tables of iptables (-want +got)\n%s", d)
		}
		if _, err := json.Marshal(s.Audit); err != nil {
			t.Error(err)
		}
	}
	var bundle strings.Builder
	rec, err := WriteBundle(t.Context(), &bundle, RecordOptions{Options: Options{Netns: ns}})
	if err != nil {
		t.Fatal(err)
	}
	check(rec.Last())
	if rec, err = ReadBundle(strings.NewReader(bundle.String()), nil); err != nil {
		t.Fatal(err)
	}
	check(rec.Last())
}
