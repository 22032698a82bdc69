package web

import (
	"math"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/tune"
)

// zone is one that no test machine is in.
var zone = time.FixedZone("NPT", 5*3600+45*60)

// noon is the time of the tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, zone)

func at(ago time.Duration) state.Reading { return state.Reading{At: noon.Add(-ago).UTC()} }

// healthy is a gateway on which all is well.
func healthy() *state.State {
	return &state.State{Schema: state.Schema, At: noon, Started: noon.Add(-26 * time.Hour), Version: "0.9.0-test", EverySeconds: 5,
		Kernel:     snapshot.Kernel{Release: "6.18.44", Arch: "x86_64", CPUs: 2},
		Self:       state.Self{CPUSeconds: 184.22, TableCPUSeconds: 61.4},
		Namespaces: []state.Namespace{healthyNamespace()}}
}

func healthyNamespace() state.Namespace {
	n := state.Namespace{Inode: 4026531840,
		Counters: &state.Counters{Reading: at(3 * time.Second), Entries: 81_240, Limit: 262_144, Buckets: 65_536,
			Conntrack: map[string]uint64{"drop": 0, "insert_failed": 12, "early_drop": 0, "invalid": 8_113, "chaintoolong": 0, "search_restart": 311},
			PerSecond: map[string]float64{"drop": 0, "insert_failed": 0, "early_drop": 0, "invalid": 0.4, "chaintoolong": 0, "search_restart": 0}},
		Table: &state.Table{Reading: at(8 * time.Second), Sampled: 16_384, Entries: 81_190, Protocols: map[string]int64{"tcp": 77_330, "udp": 3_801, "icmp": 59},
			TCPStates: map[string]int64{"ESTABLISHED": 40_112, "TIME_WAIT": 35_020, "SYN_SENT": 130, "CLOSE": 2_068}, SNAT: 60_001, DNAT: 21_100, Unreplied: 412, IdleLong: 12_000,
			TopSources:  []state.Talker{{Who: "198.18.0.23", Entries: 20_101, Share: 0.2476}, {Who: "198.18.0.7", Entries: 9_070, Share: 0.1117}},
			TopServices: []state.Talker{{Who: "tcp 198.19.0.1:443", Entries: 44_000, Share: 0.5419}},
			Flows:       &state.Flows{NewPerSecond: 1_204.6, StandardErrorPerSecond: 31.2},
			Memory: &state.TableMemory{EntriesBytes: 81_240 * 256, ExtensionsBytes: 81_240 * 128, BucketsBytes: 65_536 * 8, LimitEntriesBytes: 64 << 20, LimitExtensionsBytes: 32 << 20,
				SlabBytes: 25 << 20, Source: "/proc/slabinfo"}},
		Services: &state.Services{Reading: at(8 * time.Second), WindowSeconds: 60, Total: 3, Answered: 70_120, Failed: 31, AnsweredShare: 70_120.0 / 70_151,
			All: []state.Service{
				{Name: "tcp 198.19.0.1:443 -> 10.0.0.5:8443", Kind: snapshot.ServiceDNAT, Answered: 21_000, Unanswered: 31, Waiting: 4, Open: 5_101, NewPerSecond: -1, AnsweredShare: 21_000.0 / 21_031},
				{Name: "tcp from 198.19.0.1", Kind: snapshot.ServiceSNAT, Answered: 49_120, Open: 31_100, NewPerSecond: -1, AnsweredShare: 1},
				{Name: "udp 198.19.0.1:53 -> 10.0.0.9:53", Kind: snapshot.ServiceDNAT, NewPerSecond: -1, AnsweredShare: -1}}},
		Ports: &state.Ports{Reading: at(8 * time.Second), Pools: 190, Addresses: []state.Address{
			{Address: "198.19.0.1", Protocol: "tcp", Range: nat.Ports{First: 1024, Last: 65535}, Destination: "203.0.113.80:443", Used: 14_120, TimeWait: 9_000, Ports: 64_512, UsedShare: 0.2189, Fails: -1, SecondsLeft: -1, NewPerSecond: -1}}},
		Drops: &state.Drops{Reading: at(3 * time.Second), Since: noon.Add(-26 * time.Hour), Packets: 913, PerSecond: 0.2,
			Reasons: []state.DropReason{{Reason: "NETFILTER_DROP", Packets: 900, PerSecond: 0.2}, {Reason: "NO_SOCKET", Packets: 13}},
			Places:  []state.DropPlace{{Function: "nft_do_chain", Reason: "NETFILTER_DROP", Protocol: "tcp", Packets: 900}}},
		Stack: &state.Stack{Reading: at(3 * time.Second), Sockets: map[string]int64{"in_use": 41, "time_wait": 7, "orphan": 0},
			Counters: map[string]uint64{"IpForwDatagrams": 1_204_119_004, "TcpRetransSegs": 812, "TcpExtListenOverflows": 0}},
		Findings: &state.Findings{Reading: at(6 * time.Second), WindowSeconds: 10, All: []state.Finding{}, Checks: map[diagnose.State]int{diagnose.OK: 61}, Reports: 9_360},
		History:  course(func(i float64) float64 { return 80_000 + 9_000*math.Sin(i/40) }, 0)}
	return n
}

// course is an hour of history, with a gap, and with losses after the first half.
func course(entries func(float64) float64, losses float64) state.History {
	h := state.History{Series: map[string][]state.Value{}}
	for i := range state.HistoryPoints {
		x := float64(i)
		h.Times = append(h.Times, float64(noon.Unix())-5*float64(state.HistoryPoints-1-i))
		lost := 0.0
		if i > state.HistoryPoints/2 {
			lost = losses * (1 + 0.2*math.Sin(x/3))
		}
		for name, v := range map[string]float64{
			state.SeriesEntries: math.Round(entries(x)), state.SeriesLimit: 262_144, state.SeriesNew: 1_200 + 90*math.Sin(x/25),
			state.SeriesAnswered: 0.999 - min(0.95, lost/400), state.SeriesPorts: 0.2 + 0.02*math.Sin(x/30), state.SeriesDrops: 0.2 + lost,
			state.SeriesDrop: lost, state.SeriesInsertFailed: lost / 10, state.SeriesEarlyDrop: 0,
		} {
			if i > 300 && i < 330 {
				v = math.NaN()
			}
			h.Series[name] = append(h.Series[name], state.Value(v))
		}
	}
	return h
}

// restarted is a gateway whose exporter was started ten minutes ago.
func restarted() *state.State {
	s := healthy()
	h := &s.Namespaces[0].History
	h.Times = h.Times[state.HistoryPoints-120:]
	for name, values := range h.Series {
		h.Series[name] = values[state.HistoryPoints-120:]
	}
	return s
}

// night is a recording: losses for two hours, and two hours in which nothing was recorded.
func night(_ *state.Namespace, from, to time.Time) (state.History, error) {
	h := state.History{Series: map[string][]state.Value{}}
	for at := from; at.Before(to); at = at.Add(10 * time.Second) {
		hours := at.Sub(noon).Hours()
		if hours > -7 && hours < -5 {
			continue
		}
		lost := 0.0
		if hours > -11 && hours < -9 {
			lost = 300 + 40*math.Sin(200*hours)
		}
		h.Times = append(h.Times, float64(at.Unix()))
		for name, v := range map[string]float64{
			state.SeriesEntries: math.Round(90_000 + 60_000*math.Sin(hours/3) + 300*lost), state.SeriesLimit: 262_144, state.SeriesNew: 1_200 + 400*math.Sin(hours/3),
			state.SeriesAnswered: 0.999 - lost/400, state.SeriesPorts: 0.3 + 0.2*math.Sin(hours/3), state.SeriesDrops: 0.2 + lost,
			state.SeriesDrop: lost, state.SeriesInsertFailed: lost / 10, state.SeriesEarlyDrop: 0,
		} {
			h.Series[name] = append(h.Series[name], state.Value(v))
		}
	}
	return h, nil
}

// faulty is a gateway whose table is full, while the ports of its address run out.
func faulty() *state.State {
	s := healthy()
	n := &s.Namespaces[0]
	n.Counters.Entries = 262_144
	n.Counters.Conntrack["drop"], n.Counters.PerSecond["drop"] = 812_004, 402.4
	n.Counters.Conntrack["insert_failed"], n.Counters.PerSecond["insert_failed"] = 80_120, 40.2
	n.Table.Entries = 262_144
	n.Services.Answered, n.Services.Failed, n.Services.AnsweredShare = 9_001, 24_102, 9_001.0/33_103
	n.Services.All[0] = state.Service{Name: "tcp 198.19.0.1:443 -> 10.0.0.5:8443", Answered: 0, Unanswered: 20_022, HalfOpen: 2_000, Waiting: 310, Open: 5_101, NewPerSecond: 201.5}
	n.Services.All[1].Answered, n.Services.All[1].Unanswered, n.Services.All[1].AnsweredShare = 9_001, 2_080, 9_001.0/11_081
	n.Ports.Complete = true
	n.Ports.Addresses[0] = state.Address{Address: "198.19.0.1", Protocol: "tcp", Range: nat.Ports{First: 1024, Last: 65535}, Destination: "203.0.113.80:443", Used: 62_900, TimeWait: 31_000, Ports: 64_512,
		UsedShare: 0.975, Fails: 0.021, SecondsLeft: 95, NewPerSecond: 310.2}
	n.Ports.Addresses = append(n.Ports.Addresses, state.Address{Address: "2001:db8:1234:5678:9abc:def0:1234:5678", Protocol: "udp", Range: nat.Ports{First: 1024, Last: 65535},
		Destination: "[2001:db8:ffff:ffff:ffff:ffff:ffff:1]:51820", Used: 54_000, Ports: 64_512, UsedShare: 0.837, Fails: 0, SecondsLeft: 3_100, NewPerSecond: 2.5})
	n.Drops.PerSecond, n.Drops.Packets = 431.1, 990_112
	n.Drops.Reasons = append([]state.DropReason{{Reason: "", Packets: 980_000, PerSecond: 430.9}}, n.Drops.Reasons...)
	n.Findings.Checks = map[diagnose.State]int{diagnose.OK: 57, diagnose.Found: 2, diagnose.NotChecked: 2}
	n.Findings.Incomplete = []diagnose.Missing{{Why: "kernel log: open /dev/kmsg: operation not permitted (CAP_SYSLOG)", Checks: []string{"ct-table-full-log", "neighbour-overflow"}}}
	n.Findings.All = faults()
	n.Findings.Summary = &diagnose.Summary{Finding: "ct-table-full", Text: "the connection table is full: new connections are dropped, for 24 min at least",
		First: "raise the limit of tracked connections (natkit doctor --fix)"}
	n.History = course(func(i float64) float64 { return min(262_144, 80_000+700*i) }, 400)
	return s
}

func faults() []state.Finding {
	full := &diagnose.Finding{ID: "ct-table-full", Severity: diagnose.Critical, Title: "the connection table is full: new connections are dropped", Confidence: "certain",
		Evidence: []diagnose.Evidence{{What: "tracked connections", Value: int64(262_144), Source: "net.netfilter.nf_conntrack_count"},
			{What: "limit", Value: int64(262_144), Source: "net.netfilter.nf_conntrack_max"},
			{What: "kernel log", Value: "nf_conntrack: nf_conntrack: table full, dropping packet", Source: "/dev/kmsg"}},
		Cause:       "every connection needs an entry, and the table has as many as net.netfilter.nf_conntrack_max allows",
		Consequence: "packets that begin a connection are dropped; clients see timeouts",
		Remedies: []diagnose.Remedy{
			{Title: "raise the limit of tracked connections", Automatic: true, Predicts: "the table holds 524,288 connections", Cost: "160 MiB of memory for a full table", Risk: "none to connections",
				Changes: []tune.Change{{Kind: tune.Sysctl, Target: "net.netfilter.nf_conntrack_max", Before: "262144", After: "524288"}}},
			{Title: "let ended connections expire earlier", Risk: "a connection that pauses for longer loses its entry"}}}
	near := &diagnose.Finding{ID: "snat-ports-near-exhausted", Severity: diagnose.Warning, Title: "source ports of 198.19.0.1 are nearly used up towards 203.0.113.80:443", Confidence: "likely",
		Evidence: []diagnose.Evidence{{What: "ports in use", Value: int64(62_900), Source: "connection table"}}, Cause: "one address serves all connections to one destination",
		Remedies: []diagnose.Remedy{{Title: "give NAT another address"}}}
	return []state.Finding{
		{Standing: diagnose.Standing{ID: full.ID, Severity: full.Severity, Title: full.Title, Since: noon.Add(-24 * time.Minute), Times: 1}, Finding: full},
		{Standing: diagnose.Standing{ID: near.ID, Severity: near.Severity, Title: near.Title, Since: noon.Add(-9 * time.Minute), Times: 3}, Finding: near}}
}

// stale is a gateway whose data the exporter no longer renews.
func stale() *state.State {
	s := healthy()
	n := &s.Namespaces[0]
	for _, r := range []*state.Reading{&n.Counters.Reading, &n.Table.Reading, &n.Services.Reading, &n.Ports.Reading, &n.Drops.Reading, &n.Stack.Reading, &n.Findings.Reading} {
		r.At = r.At.Add(-10 * time.Minute)
	}
	return s
}

// empty is an exporter that has just started.
func empty() *state.State {
	return &state.State{Schema: state.Schema, At: noon, Started: noon, Version: "0.9.0-test", EverySeconds: 5, Namespaces: []state.Namespace{{Inode: 4026531840}}}
}

// unprivileged may read next to nothing.
func unprivileged() *state.State {
	s := healthy()
	n := &s.Namespaces[0]
	n.Table, n.Services, n.Ports, n.Drops = nil, nil, nil, nil
	n.Findings.Checks = map[diagnose.State]int{diagnose.OK: 8, diagnose.NotChecked: 53}
	n.Findings.Incomplete = []diagnose.Missing{{Why: "conntrack table: operation not permitted (CAP_NET_ADMIN)", Checks: []string{"ct-near-full"}}}
	n.Unread = []state.Unread{{Part: snapshot.PartTable, Why: "conntrack table: operation not permitted (CAP_NET_ADMIN)"}, {Part: snapshot.PartDrops, Why: "attach to skb:kfree_skb: operation not permitted (CAP_BPF, CAP_PERFMON)"}}
	n.History = state.History{}
	return s
}

// several is a host with three namespaces, the last of which has faults.
func several() *state.State {
	s := healthy()
	second, third := healthyNamespace(), faulty().Namespaces[0]
	second.Name, second.Inode = "blue", 4026532001
	third.Name, third.Inode, third.Owner = "pid 4711", 4026532002, &snapshot.Owner{PID: 4711, Process: "gw", Runtime: "docker", Container: "0123456789abcdef0123", ContainerName: "edge-gateway"}
	s.Namespaces = append(s.Namespaces, second, third)
	s.LeftOut = 2
	return s
}
