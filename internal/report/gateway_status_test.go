package report

import (
	"bytes"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/snapshot"
)

var (
	statusApplied = time.Date(2026, 3, 1, 4, 5, 6, 0, time.Local)
	statusTime    = statusApplied.Add(3 * time.Hour)
)

func pointer[T any](v T) *T { return &v }

func exampleStatus() *observe.Status {
	snat := gateway.Ref{List: "nat", Index: 1, Kind: "snat"}
	return &observe.Status{
		Present: true, Plan: "0123456789abcdef0123456789abcdef", Engine: gateway.EngineNetfilter, Integrity: gateway.RulesIntact, Accounting: true, Applied: &statusApplied,
		Rules: []observe.Rule{
			{Rule: gateway.Ref{List: "nat", Index: 0, Kind: "masquerade"}, Text: "from 192.168.0.0/16 out eth0 becomes the interface's address",
				New: pointer(uint64(123456)), NewPerSecond: pointer(76.5), Dropped: pointer(uint64(0)), DroppedPerSecond: pointer(0.0), Usage: observe.Usage{Flows: 4321, Packets: 99000, Bytes: 123 << 20}},
			{Rule: snat, Text: "from 10.0.0.0/16 out eth0 becomes 203.0.113.8-203.0.113.15 ports 1024-65535 random fully persistent",
				New: pointer(uint64(7)), NewPerSecond: pointer(float64(0)), Dropped: pointer(uint64(12)), DroppedPerSecond: pointer(1.5), Ports: &observe.PortsLeft{Left: 1290, Size: 64512}, Usage: observe.Usage{Flows: 3, Packets: 12, Bytes: 1024}},
			{Rule: gateway.Ref{List: "nat", Index: 2, Kind: "dnat"}, Text: "on 203.0.113.7 tcp/8080 becomes 172.17.0.2:80"},
		},
		Pools: []observe.Pool{{Rule: &snat, PortsLeft: observe.PortsLeft{Left: 1290, Size: 64512}, PortPool: snapshot.PortPool{
			Address: "203.0.113.8", Protocol: "tcp", Destination: "198.51.100.9:443", FirstPort: 1024, LastPort: 65535, Used: 63222, Share: 0.98,
			Users: []snapshot.Talker{{Who: "10.0.0.77", Entries: 31000}}}}},
		Counters: []observe.Counter{{What: "mss", Packets: 123456, PacketsPerSecond: pointer(76.5)}},
		Drops: observe.Drops{Counters: []observe.Counter{{What: "limits connections-per-source", Packets: 42, PacketsPerSecond: pointer(1.5)}, {What: "untranslatable", Packets: 7}},
			NoEntry: pointer(uint64(0)), InsertFailed: pointer(uint64(15)), ByRule: &observe.DropsByRule{Seconds: 35, NoRule: 2, Untold: 1}},
		Flows: observe.Flows{Table: 5000, Max: 262144, Sampled: 5000, Complete: true},
	}
}

func gatewayStatusText(t *testing.T, s *observe.Status, top int) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := (GatewayStatus{Gateway: s, Source: "network namespace gw", Args: " --netns gw", Top: top, At: statusTime}).Text(&out, Style{}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestGatewayStatus(t *testing.T) {
	golden(t, "gateway-status.txt", gatewayStatusText(t, exampleStatus(), 40))
}

// TestGatewayStatusHosts: those that are checked, those that are not, and those that nobody checks.
func TestGatewayStatusHosts(t *testing.T) {
	s := exampleStatus()
	down, known := statusTime.Add(-90*time.Second), statusTime.Add(-2*time.Hour)
	s.Rules[2].Text, s.Checker = "on 203.0.113.7 tcp/8080 becomes 172.17.0.2:80, 172.17.0.3:80, 172.17.0.4:80 by round-robin", "'natkit gateway run web.yaml' (pid 7)"
	s.Rules[2].Hosts = []observe.Host{
		{Host: "172.17.0.2:80", Weight: 1, InUse: pointer(true), Up: pointer(true), Since: &known, Flows: 1234},
		{Host: "172.17.0.3:80", Weight: 30, InUse: pointer(false), Up: pointer(false), Since: &down, LastError: "connection refused", Flows: 5},
		{Host: "172.17.0.4:80", Weight: 1, InUse: pointer(true), Up: pointer(true), LastError: "no answer within 1s"},
	}
	golden(t, "gateway-status-hosts.txt", gatewayStatusText(t, s, 40))
	s.Checker, s.Unchecked = "", true
	for i := range s.Rules[2].Hosts {
		h := &s.Rules[2].Hosts[i]
		h.Up, h.Since, h.LastError = nil, nil, ""
	}
	for range 20 {
		s.Rules[2].Hosts = append(s.Rules[2].Hosts, observe.Host{Host: "172.17.0.9:80", Weight: 1})
	}
	golden(t, "gateway-status-unchecked.txt", gatewayStatusText(t, s, 40))
}

// TestGatewayStatusLeases: ports that hosts inside have opened; of many the first ones.
func TestGatewayStatusLeases(t *testing.T) {
	s := exampleStatus()
	for i := range 22 {
		s.Leases = append(s.Leases, observe.Lease{Protocol: "udp", External: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), uint16(40000+i)),
			Internal: netip.MustParseAddrPort("192.168.0.9:5000"), SecondsLeft: 3600, Flows: int64(i)})
	}
	text := string(gatewayStatusText(t, s, 40))
	if !regexp.MustCompile(`(?m)^udp 203\.0\.113\.7:40003 +192\.168\.0\.9:5000 +60 min +3$`).MatchString(text) || strings.Contains(text, ":40020") || !strings.Contains(text, "… and 2 ports") {
		t.Error(text)
	}
}

func TestGatewayStatusOfUplinks(t *testing.T) {
	s := exampleStatus()
	s.Rules, s.Pools = s.Rules[:1], nil
	s.Uplinks = []observe.Uplink{
		{Interface: "eth0", Weight: 3, Down: "192.0.2.1 does not answer", Flows: 1},
		{Interface: "ppp0", Weight: 1, Share: 0.75, Flows: 1234}, {Interface: "eth1", Weight: 1, Share: 0.25}, {Interface: "wwan0", Lacks: "no next hop of IPv6 is known"},
		{Interface: "eth2", Weight: 1, Out: "out since 2026-01-31 12:00:00"}, {Interface: "eth3", Weight: 1, Share: 0.25, Down: "eth3 has no carrier"},
	}
	golden(t, "gateway-status-uplinks.txt", gatewayStatusText(t, s, 40))
}

func TestGatewayStatusInTrouble(t *testing.T) {
	s := exampleStatus()
	s.Integrity, s.Changes = gateway.RulesChanged, []string{"chain postrouting: 3 rules instead of 2", "set \x1b[2Jmine: is not natkit's"}
	s.Confirm = &observe.Confirmation{ID: "t0007", SecondsLeft: 41.8}
	s.Accounting, s.Drops.ByRule = false, nil
	s.Flows = observe.Flows{Table: 1000000, Max: 1048576, Sampled: 131072, Stranger: 17, Stale: 1, StaleAddresses: []string{"203.0.113.250"}}
	for i := range 7 {
		s.Off = append(s.Off, gateway.Off{Rule: gateway.Ref{List: "nat", Index: 3 + i, Kind: "dnat"}, Text: "{on: eth7, to: 10.0.0.1}"})
	}
	s.Missing, s.Waiting = []string{"ppp0"}, []gateway.Waiting{{Rule: gateway.Ref{List: "nat", Index: 2, Kind: "dnat"}, Interface: "ppp0"}}
	s.Notes = []string{"the table was resized while it was read"}
	for i := range s.Rules {
		s.Rules[i].NewPerSecond, s.Rules[i].Dropped, s.Rules[i].DroppedPerSecond = nil, nil, nil
	}
	golden(t, "gateway-status-trouble.txt", gatewayStatusText(t, s, 2))
}

// Each command that status names is for the namespace that it is of.
func TestGatewayStatusCommands(t *testing.T) {
	ref := gateway.Ref{List: "nat", Kind: "dnat"}
	trouble := exampleStatus()
	trouble.Integrity, trouble.NotForwarding, trouble.Confirm = gateway.RulesChanged, []string{"net.ipv4.ip_forward"}, &observe.Confirmation{ID: "t0007", SecondsLeft: 9}
	trouble.Pools, trouble.Rules = slices.Repeat(trouble.Pools, fewPools+1), nil
	trouble.Flows.Stale, trouble.Flows.Untranslated, trouble.Drops.ByRule = 1, 1, nil
	trouble.CutHairpins = []observe.CutHairpin{{Bridge: "br0", Ports: []string{"lan1"}}}
	trouble.Precedences = slices.Repeat([]gateway.Precedence{{Rule: ref}}, fewPrecedences+1)
	others := map[string]bool{"'nft flush ruleset'": true, "'accounting: on'": true} // no commands to give
	quoted, found := regexp.MustCompile(`'[a-z][^']+ [^']+'`), 0
	overdue := *trouble
	overdue.Confirm, overdue.Removal = &observe.Confirmation{ID: "t0008"}, "nft delete table inet natkit"
	foreign := observe.Status{Present: true, Foreign: true, Name: "table inet natkit", Removal: "nft delete table inet natkit", Confirm: overdue.Confirm}
	for _, s := range []*observe.Status{trouble, {Removed: trouble.Plan}, &overdue, &foreign} {
		var out bytes.Buffer
		v := GatewayStatus{Gateway: s, Source: "network namespace gw", Args: " --netns gw", Enter: "ip netns exec gw", At: statusTime}
		if err := v.Text(&out, Style{Columns: 10000}); err != nil {
			t.Fatal(err)
		}
		for _, text := range quoted.FindAllString(out.String(), -1) {
			if found++; !others[text] && !strings.HasPrefix(text, "'ip netns exec gw ") && !(strings.HasPrefix(text, "'natkit ") && strings.Contains(text, " --netns gw")) {
				t.Errorf("%s is for this namespace", text)
			}
		}
	}
	if found != 23 {
		t.Errorf("%d commands", found)
	}
}

func TestGatewayStatusOfNothing(t *testing.T) {
	golden(t, "gateway-status-none.txt", gatewayStatusText(t, &observe.Status{}, 0))
}

func TestGatewayStatusOfWhatIsGone(t *testing.T) {
	golden(t, "gateway-status-removed.txt", gatewayStatusText(t, &observe.Status{Removed: "0123456789abcdef0123456789abcdef"}, 0))
}

func TestGatewayStatusWithoutPlan(t *testing.T) {
	s := exampleStatus()
	s.Plan, s.PlanUnknown, s.Integrity = "", "the table does not say for which plan it was written: another program made or changed it", gateway.RulesUnknown
	s.Applied, s.Drops.ByRule = nil, nil
	s.Pools, s.Rules, s.Flows = nil, s.Rules[:1], observe.Flows{Table: 5000}
	s.Rules[0].Text = ""
	s.Confirm = &observe.Confirmation{ID: "t0007"}
	golden(t, "gateway-status-unknown.txt", gatewayStatusText(t, s, 0))
}

// A connection that found no port counts as "drop" and as "insert_failed".
func TestGatewayLossesCountOnce(t *testing.T) {
	for _, tt := range []struct {
		drop, failed uint64
		want         string
	}{
		{0, 0, ""},
		{4, 4, "4 first packets dropped as they clashed with another connection, or found no port"},
		{7, 4, "3 first packets dropped as the connection table had no room|4 first packets dropped"},
		{7, 0, "7 first packets dropped as the connection table had no room"},
		{2, 4, "4 first packets dropped"}, // Linux 5.4 counts clashes that it resolved as failed, too
	} {
		var b strings.Builder
		p := &printer{w: &b, style: Style{Columns: 300}}
		p.gatewayLosses(GatewayStatus{Watch: true}, &observe.Drops{NoEntry: &tt.drop, InsertFailed: &tt.failed})
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		want := strings.Split(tt.want, "|")
		if len(lines) != len(want) {
			t.Errorf("%d %d: %q", tt.drop, tt.failed, lines)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(lines[i], want[i]) {
				t.Errorf("%d %d: %q, want %q", tt.drop, tt.failed, lines[i], want[i])
			}
		}
	}
}

func TestGatewayLossesHaveRates(t *testing.T) {
	var b strings.Builder
	p := &printer{w: &b, style: Style{Columns: 300}}
	p.gatewayLosses(GatewayStatus{Watch: true}, &observe.Drops{NoEntry: pointer(uint64(9)), InsertFailed: pointer(uint64(4)), NoEntryPerSecond: pointer(2.0), InsertFailedPerSecond: pointer(1.5)})
	for _, want := range []string{"5 first packets dropped as the connection table had no room", "it was made), 0.50/s now\n", "it was made), 1.50/s now\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// TestGatewayStatusOfPrograms: packets and bytes by rule and by reason, and where programs run.
func TestGatewayStatusOfPrograms(t *testing.T) {
	s := exampleStatus()
	s.Rules[2].ByPrograms = &observe.Translated{Packets: 4200, Bytes: 5 << 20}
	s.Programs = map[string]string{"eth0": "xdp", "eth1": "tc: another XDP program is attached, number 7"}
	s.Counters = []observe.Counter{{What: "given to the stack: no route", Packets: 3, Bytes: 300}}
	s.Drops.Counters = []observe.Counter{{What: "no room for an Ethernet header", Packets: 2, Bytes: 90}}
	golden(t, "gateway-status-programs.txt", gatewayStatusText(t, s, 40))
}
