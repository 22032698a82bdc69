package tui

import (
	"fmt"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Samples for frames. Their figures are made up: they serve the layout only.

var noon = time.Date(2024, 5, 17, 12, 0, 0, 0, time.UTC)

// looked is an empty snapshot, taken the given number of seconds after noon.
func looked(at float64) *snapshot.Snapshot {
	return &snapshot.Snapshot{
		Schema: snapshot.Schema, TakenAt: noon.Add(time.Duration(at * float64(time.Second))), UptimeSeconds: 1000 + at,
		Kernel: snapshot.Kernel{Release: "6.12.9", CPUs: 8}, Netns: snapshot.Netns{Inode: 4026532250, Name: "gateway"},
	}
}

// busy is a gateway with an almost full table.
func busy() *Sample {
	before, now := looked(0), looked(2)
	now.Sysctls = snapshot.Sysctls{snapshot.ConntrackCount: "251904", snapshot.ConntrackMax: "262144"}
	counter := func(drop, failed, early uint64) *snapshot.ConntrackStat {
		return &snapshot.ConntrackStat{PerCPU: []map[string]uint64{{"drop": drop, "insert_failed": failed, "early_drop": early,
			"chaintoolong": 0, "clash_resolve": 12, "invalid": 991, "error": 0, "icmp_error": 0, "search_restart": 4, "found": 7}}}
	}
	before.ConntrackStat, now.ConntrackStat = counter(100, 4, 0), counter(2400, 4, 31)
	now.Table = &snapshot.ConntrackTable{
		Sampled: 7540, Assured: 6000, Unreplied: 940, SNAT: 7540, DNAT: 0,
		ByProtocol: map[string]int64{"tcp": 6100, "udp": 1400, "icmp": 40},
		ByTCPState: map[string]int64{"ESTABLISHED": 3100, "TIME_WAIT": 2200, "SYN_SENT": 700, "CLOSE": 60, "FIN_WAIT": 40},
	}
	for i := range 10 {
		now.Table.TopSources = append(now.Table.TopSources, snapshot.Talker{Who: fmt.Sprintf("198.18.7.%d", 200-i), Entries: int64(900 - 80*i)})
		now.Table.TopServices = append(now.Table.TopServices, snapshot.Talker{Who: fmt.Sprintf("tcp 203.0.113.%d:443", i+1), Entries: int64(2000 - 190*i)})
	}
	now.Ports = &snapshot.Ports{Pools: []snapshot.PortPool{
		{Address: "198.19.0.1", Protocol: "tcp", Destination: "203.0.113.1:443", FirstPort: 1024, LastPort: 65535, Used: 63012, Share: 0.977, Known: true, Fails: 0.312},
		{Address: "198.19.0.1", Protocol: "udp", Destination: "203.0.113.53:53", FirstPort: 1024, LastPort: 65535, Used: 9120, Share: 0.141,
			Users: []snapshot.Talker{{Who: "198.18.7.200", Entries: 4000}}},
	}}
	return &Sample{Host: "gw1", Sample: &snapshot.Sample{
		Snapshot: now, Before: before, EntriesRead: 7540, TableAt: now.TakenAt,
		Flows: &snapshot.Flows{Seconds: 2, TotalPerSecond: 12345.6, StandardErrorPerSecond: 310.2},
		Drops: &snapshot.Drops{Seconds: 2, Sites: []snapshot.DropSite{
			{Function: "nf_hook_slow", Reason: "NETFILTER_DROP", Protocol: "tcp", Packets: 2300},
			{Function: "ip_forward", Reason: "IP_INHDR", Protocol: "udp", Packets: 3},
			{Function: "tcp_v4_rcv", Protocol: "tcp", Packets: 2},
		}},
		CPU:  &snapshot.CPU{Packets: 0.231, Busy: 0.412, CPUs: 8},
		Cost: snapshot.Cost{Own: 0.0041, Table: 8400 * time.Microsecond},
	}}
}

// unread is a look for which everything failed.
func unread(parts ...snapshot.Part) *Sample {
	s := looked(0)
	s.Netns.Name = ""
	s.Parts = parts
	return &Sample{Host: "gw1", Sample: &snapshot.Sample{Snapshot: s}}
}

func withoutConntrack() *Sample {
	const why = "read net.netfilter.nf_conntrack_*: there are none: connection tracking (nf_conntrack) is not loaded"
	const netlink = "dump the connection table: no such subsystem: the kernel has no ctnetlink (CONFIG_NF_CT_NETLINK)"
	return unread(snapshot.Part{Name: snapshot.PartSysctls, Error: why}, snapshot.Part{Name: snapshot.PartTable, Error: netlink},
		snapshot.Part{Name: snapshot.PartStat, Error: netlink})
}

func withoutPrivilege() *Sample {
	const why = "dump the connection table: operation not permitted (needs CAP_NET_ADMIN)"
	s := unread(snapshot.Part{Name: snapshot.PartTable, Error: why}, snapshot.Part{Name: snapshot.PartStat, Error: why},
		snapshot.Part{Name: snapshot.PartDrops, Error: "trace drops: needs CAP_BPF to load eBPF programs and CAP_PERFMON to attach eBPF programs to the kernel's tracepoints"})
	s.Sysctls = snapshot.Sysctls{snapshot.ConntrackCount: "1000", snapshot.ConntrackMax: "262144"}
	s.CPU = &snapshot.CPU{Packets: 0.02, Busy: 0.1, CPUs: 1}
	return s
}

// idle has no entries.
func idle() *Sample {
	s := busy()
	s.Sysctls[snapshot.ConntrackCount] = "0"
	s.ConntrackStat = s.Before.ConntrackStat
	s.Table = &snapshot.ConntrackTable{Complete: true, ByProtocol: map[string]int64{}, ByTCPState: map[string]int64{}}
	s.Ports, s.Flows = &snapshot.Ports{Complete: true}, &snapshot.Flows{Seconds: 2}
	s.Drops = &snapshot.Drops{Seconds: 2}
	s.EntriesRead, s.CPU, s.Cost = 0, &snapshot.CPU{CPUs: 8}, snapshot.Cost{}
	return s
}

// full is a table at its limit, all of it read.
func full() *Sample {
	s := busy()
	s.Sysctls = snapshot.Sysctls{snapshot.ConntrackCount: "7540", snapshot.ConntrackMax: "7540"}
	s.Table.Complete = true
	return s
}

// strange has names that others chose: long ones, escape sequences, IPv6, wide letters.
func strange() *Sample {
	s := busy()
	s.Host = "a-host-name-that-is-as-long-as-host-names-can-be-and-then-some-more.example.org"
	s.Netns.Name = "cni-\x1b[31m0d8d27f8\x07-5b0d-4a1c-9d7e-网络"
	s.Kernel.Release = "6.12.9\u202e-x"
	s.Table.TopSources = []snapshot.Talker{{Who: "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe", Entries: 7000}, {Who: "2001:db8::1", Entries: 540}}
	s.Table.TopServices = []snapshot.Talker{{Who: "tcp [2001:db8:ffff:ffff:ffff:ffff:ffff:fffe]:65535", Entries: 7540}}
	s.Table.ByTCPState["\x1b]0;owned\x07"] = 9
	s.Drops.Sites[0].Function = "a_function\x1b[2J\nof_a_module"
	s.Ports.Pools[0].Address, s.Ports.Pools[0].Destination = "2001:db8:ffff:ffff:ffff:ffff:ffff:1", "[2001:db8:ffff:ffff:ffff:ffff:ffff:fffe]:443"
	return s
}

// TestScaledNumbers: what stands for more entries than were read has no digit that the
// next sample would not have.
func TestScaledNumbers(t *testing.T) {
	part, all := busy(), busy()
	part.Sysctls = snapshot.Sysctls{snapshot.ConntrackCount: "754000"}
	all.Table.Complete = true
	for _, tt := range []struct {
		s     *Sample
		n     int64
		whole int64
		share string
	}{
		{part, 0, 0, "0 %"},
		{part, 1, 100, "0.01 %"},
		{part, 12, 1200, "0.16 %"},
		{part, 873, 87_000, "11.6 %"},
		{part, 7540, 754_000, "100 %"},
		{all, 873, 873, "11.6 %"},
	} {
		if got := tt.s.whole(tt.n); got != tt.whole {
			t.Errorf("%d entries stand for %d, want %d", tt.n, got, tt.whole)
		}
		if got := units.Percent(tt.s.part(tt.n)); got != tt.share {
			t.Errorf("%d entries are %s, want %s", tt.n, got, tt.share)
		}
	}
}
