package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"strconv"

	"github.com/natkit/natkit/internal/state"
)

// All are the metrics, in the order of the documentation.
var All = described(
	[]Metric{
		{Name: "natkit_build_info", Kind: Gauge, Help: "1, with the version of natkit and the release of the kernel.", Labels: []string{"version", "kernel"},
			ofHost: func(s *state.State, emit emit) { emit(1, s.Version, s.Kernel.Release) }},
		{Name: "natkit_namespaces", Kind: Gauge, Help: "Network namespaces that are watched.",
			ofHost: func(s *state.State, emit emit) { emit(float64(len(s.Namespaces))) }},
		{Name: "natkit_namespaces_left_out", Kind: Gauge, Help: "Network namespaces that are not watched, as they are too many or could not be entered.",
			ofHost: func(s *state.State, emit emit) { emit(float64(s.LeftOut)) }},
		{Name: "natkit_table_cpu_seconds_total", Kind: Counter, Help: "CPU time that reading connection tables took.",
			ofHost: func(s *state.State, emit emit) { emit(s.Self.TableCPUSeconds) }},
		{Name: "natkit_reading_cpu_seconds", Kind: Histogram, Help: "CPU time of reading one network namespace: its counters, or an examination, with the table where that was due.", Labels: []string{"reading"},
			histograms: func(s *state.State) map[string]state.Histogram { return s.Self.Readings }},
		{Name: "natkit_data_age_seconds", Kind: Gauge, Help: "Time since a part of the data was read: counters, table, services, ports, drops, stack, findings.", Labels: []string{"part"},
			of: func(n *state.Namespace, emit emit) {
				for part, age := range n.Ages() {
					emit(age, part)
				}
			}},
		{Name: "natkit_read_failed", Kind: Gauge, Help: "1 for each part of the kernel's data that could not be read at the last attempt, and can be read here.", Labels: []string{"part"},
			of: func(n *state.Namespace, emit emit) { unread(n, false, emit) }},
		{Name: "natkit_unavailable", Kind: Gauge, Help: "1 for each part of the kernel's data that cannot be read here at all: a privilege is missing, or in a container /dev/kmsg.", Labels: []string{"part"},
			of: func(n *state.Namespace, emit emit) { unread(n, true, emit) }},
	},
	ofCounters(), ofTable(), ofServices(), ofPorts(), ofDrops(), ofStack(), ofFindings())

// unread are the parts that could not be read: those that cannot be read here at all, or the others.
func unread(n *state.Namespace, unavailable bool, emit emit) {
	for _, u := range n.Unread {
		if u.Unavailable == unavailable {
			emit(1, u.Part)
		}
	}
}

// described gives each its description.
func described(parts ...[]Metric) (all []Metric) {
	for _, part := range parts {
		all = append(all, part...)
	}
	for i := range all {
		all[i].desc = prometheus.NewDesc(all[i].Name, all[i].Help, all[i].AllLabels(), nil)
	}
	return all
}

// conntrackCounters are those of the kernel that are exported, with their meaning (nf_conntrack_core.c; conntrack -S).
// Kernels have some of them.
var conntrackCounters = []struct{ name, help string }{
	{"insert_failed", "Entries that could not be inserted: the tuple was taken, or the hash chain too long. The packet was lost."},
	{"drop", "Packets that connection tracking dropped: the table was full, or memory was missing, or the entry could not be inserted."},
	{"early_drop", "Entries without an answer that were removed to make room for new ones in a full table."},
	{"chaintoolong", "Entries that were not inserted as their hash chain was too long: too few buckets (Linux 5.15)."},
	{"clash_resolve", "Entries of two packets of one connection at the same time that were merged; none was lost (Linux 5.10)."},
	{"invalid", "Packets that were not valid for their connection; they are not translated."},
	{"error", "Packets with a wrong checksum or header."},
	{"icmp_error", "ICMP errors that could not be tracked."},
	{"search_restart", "Searches that began anew as an entry moved, such as when the hash was resized."},
	{"found", "Searches that found an entry."},
	{"expect_new", "Expectations that helpers met (such as FTP data connections)."},
	{"expect_create", "Expectations that helpers made."},
	{"expect_delete", "Expectations that were removed."},
}

func ofCounters() []Metric {
	all := []Metric{
		{Name: "natkit_conntrack_entries", Kind: Gauge, Help: "Entries of the connection table.",
			of: func(n *state.Namespace, emit emit) {
				if n.Counters != nil {
					emit(float64(n.Counters.Entries))
				}
			}},
		{Name: "natkit_conntrack_entries_limit", Kind: Gauge, Help: "Entries that the connection table may have (net.netfilter.nf_conntrack_max).",
			of: func(n *state.Namespace, emit emit) {
				if n.Counters != nil && n.Counters.Limit > 0 {
					emit(float64(n.Counters.Limit))
				}
			}},
		{Name: "natkit_conntrack_buckets", Kind: Gauge, Help: "Buckets of the connection table's hash (net.netfilter.nf_conntrack_buckets).",
			of: func(n *state.Namespace, emit emit) {
				if n.Counters != nil && n.Counters.Buckets > 0 {
					emit(float64(n.Counters.Buckets))
				}
			}},
	}
	for _, c := range conntrackCounters {
		all = append(all, Metric{Name: "natkit_conntrack_" + c.name + "_total", Kind: Counter, Help: c.help,
			of: func(n *state.Namespace, emit emit) {
				if n.Counters == nil {
					return
				}
				if v, known := n.Counters.Conntrack[c.name]; known {
					emit(float64(v))
				}
			}})
	}
	return all
}

// inTable makes a metric of the table, where it could be read.
func inTable(name, help string, labels []string, of func(*state.Table, emit)) Metric {
	return Metric{Name: name, Kind: Gauge, Help: help, Labels: labels, of: func(n *state.Namespace, emit emit) {
		if n.Table != nil {
			of(n.Table, emit)
		}
	}}
}

func ofTable() []Metric {
	return []Metric{
		inTable("natkit_conntrack_sampled_entries", "Entries that the last reading of the table had; other numbers of entries by kind are scaled from these.", nil,
			func(t *state.Table, emit emit) { emit(float64(t.Sampled)) }),
		inTable("natkit_conntrack_table_complete", "1 where the last reading had all entries, 0 where it had a sample.", nil,
			func(t *state.Table, emit emit) { emit(bool01(t.Complete)) }),
		inTable("natkit_conntrack_protocol_entries", "Entries by protocol.", []string{"protocol"}, func(t *state.Table, emit emit) { counts(t.Protocols, emit) }),
		inTable("natkit_conntrack_tcp_state_entries", "TCP entries by state.", []string{"state"}, func(t *state.Table, emit emit) { counts(t.TCPStates, emit) }),
		inTable("natkit_conntrack_kind_entries", "Entries by kind; one may be of several: assured, unreplied, snat, dnat, offloaded, idle (established TCP without a packet for 2 h 4 min).", []string{"kind"},
			func(t *state.Table, emit emit) {
				for kind, n := range map[string]int64{"assured": t.Assured, "unreplied": t.Unreplied, "snat": t.SNAT, "dnat": t.DNAT, "offloaded": t.Offloaded, "idle": t.IdleLong} {
					if n >= 0 {
						emit(float64(n), kind)
					}
				}
			}),
		inTable("natkit_conntrack_memory_bytes", "Memory of the connection table: entries and extensions of the namespace, by the sizes of the kernel's objects, and buckets, which all namespaces share.", []string{"of"},
			func(t *state.Table, emit emit) {
				if m := t.Memory; m != nil {
					emit(float64(m.EntriesBytes), "entries")
					emit(float64(m.ExtensionsBytes), "extensions")
					emit(float64(m.BucketsBytes), "buckets")
				}
			}),
		inTable("natkit_conntrack_new_per_second", "New connections per second that were still there at the next reading: an estimate by two readings of the table.", nil,
			func(t *state.Table, emit emit) {
				if t.Flows != nil {
					emit(t.Flows.NewPerSecond)
				}
			}),
		inTable("natkit_conntrack_new_standard_error_per_second", "Standard error of natkit_conntrack_new_per_second.", nil,
			func(t *state.Table, emit emit) {
				if t.Flows != nil {
					emit(t.Flows.StandardErrorPerSecond)
				}
			}),
		inTable("natkit_conntrack_class_new_per_second", "New connections per second, by protocol and the state that they were in.", []string{"class"},
			func(t *state.Table, emit emit) {
				if t.Flows != nil {
					for class, rate := range t.Flows.ByClass {
						emit(rate, class)
					}
				}
			}),
		inTable("natkit_conntrack_source_entries", "Entries of the sources that have most, up to --top.", []string{"source"},
			func(t *state.Table, emit emit) { talkers(t.TopSources, emit) }),
		inTable("natkit_conntrack_destination_entries", "Entries of the destinations (protocol, address and port) that have most, up to --top.", []string{"destination"},
			func(t *state.Table, emit emit) { talkers(t.TopServices, emit) }),
	}
}

func counts(of map[string]int64, emit emit) {
	for name, n := range of {
		emit(float64(n), name)
	}
}

func talkers(all []state.Talker, emit emit) {
	for _, t := range all {
		emit(float64(t.Entries), t.Who)
	}
}

func bool01(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// serviceLabels name a service.
var serviceLabels = []string{"kind", "protocol", "service", "target", "given"}

func ofServices() []Metric {
	each := func(name, help string, labels []string, of func(*state.Service, emit)) Metric {
		return Metric{Name: name, Kind: Gauge, Help: help, Labels: append(append([]string{}, serviceLabels...), labels...), of: func(n *state.Namespace, emit emit) {
			if n.Services == nil {
				return
			}
			for i := range n.Services.All {
				s := &n.Services.All[i]
				of(s, func(v float64, labels ...string) {
					emit(v, append([]string{s.Kind, s.Protocol, s.Service, s.Target, s.Given}, labels...)...)
				})
			}
		}}
	}
	return []Metric{
		each("natkit_service_connections", "Connections of a translated service among the entries that were read, by what became of them lately: answered, unanswered, half_open, waiting, open, stalled, reset.", []string{"outcome"},
			func(s *state.Service, emit emit) {
				for outcome, n := range map[string]int64{"answered": s.Answered, "unanswered": s.Unanswered, "half_open": s.HalfOpen,
					"waiting": s.Waiting, "open": s.Open, "stalled": s.Stalled, "reset": s.Reset} {
					emit(float64(n), outcome)
				}
			}),
		each("natkit_service_answered_ratio", "Answered connections of a translated service, of those that were answered or failed lately.", nil,
			func(s *state.Service, emit emit) {
				if s.AnsweredShare >= 0 {
					emit(s.AnsweredShare)
				}
			}),
		each("natkit_service_new_per_second", "New connections per second of a service with DNAT; absent where a sample of the table was read.", nil,
			func(s *state.Service, emit emit) {
				if s.NewPerSecond >= 0 {
					emit(s.NewPerSecond)
				}
			}),
		{Name: "natkit_services", Kind: Gauge, Help: "Translated services that are known; the metrics by service are of those that fail most, up to --top.",
			of: func(n *state.Namespace, emit emit) {
				if n.Services != nil {
					emit(float64(n.Services.Total))
				}
			}},
		{Name: "natkit_services_answered_ratio", Kind: Gauge, Help: "Answered connections of all translated services, of those that were answered or failed lately.",
			of: func(n *state.Namespace, emit emit) {
				if n.Services != nil && n.Services.AnsweredShare >= 0 {
					emit(n.Services.AnsweredShare)
				}
			}},
	}
}

func ofPorts() []Metric {
	each := func(name, help string, of func(*state.Address) float64) Metric {
		return Metric{Name: name, Kind: Gauge, Help: help, Labels: []string{"address", "protocol", "ports", "zone"}, of: func(n *state.Namespace, emit emit) {
			if n.Ports == nil {
				return
			}
			for i := range n.Ports.Addresses {
				a := &n.Ports.Addresses[i]
				if v := of(a); v >= 0 {
					emit(v, a.Address, a.Protocol, a.Range.String(), zoneOf(a.Zone))
				}
			}
		}}
	}
	return []Metric{
		each("natkit_snat_ports_used", "Ports of an address that NAT gives, of a range (label ports), that are in use towards the destination with most.", func(a *state.Address) float64 { return float64(a.Used) }),
		each("natkit_snat_ports_limit", "Ports that the range has. One of fewer than 16 is that of one program, and all of them may be in use.", func(a *state.Address) float64 { return float64(a.Ports) }),
		each("natkit_snat_ports_time_wait", "Ports in use of connections in TIME_WAIT.", func(a *state.Address) float64 { return float64(a.TimeWait) }),
		each("natkit_snat_ports_used_ratio", "natkit_snat_ports_used as a part of natkit_snat_ports_limit.", func(a *state.Address) float64 { return a.UsedShare }),
		each("natkit_snat_connection_failure_ratio", "Chance that a new connection finds no port; absent where a sample of the table was read.", func(a *state.Address) float64 { return a.Fails }),
		each("natkit_snat_exhaustion_seconds", "Time until all ports are in use at the present rate; absent where that is never, or not known.", func(a *state.Address) float64 { return a.SecondsLeft }),
		{Name: "natkit_snat_pools", Kind: Gauge, Help: "Pairs of an address that NAT gives and a destination.",
			of: func(n *state.Namespace, emit emit) {
				if n.Ports != nil {
					emit(float64(n.Ports.Pools))
				}
			}},
	}
}

// zoneOf is the label of a conntrack zone: empty for that of those that have none.
func zoneOf(zone uint16) string {
	if zone == 0 {
		return ""
	}
	return strconv.Itoa(int(zone))
}

func ofDrops() []Metric {
	return []Metric{
		{Name: "natkit_drops_total", Kind: Counter, Help: "Packets that the kernel dropped since the exporter started, by its reason (enum skb_drop_reason; none before Linux 5.17).", Labels: []string{"reason"},
			of: func(n *state.Namespace, emit emit) {
				if n.Drops == nil {
					return
				}
				for _, r := range n.Drops.Reasons {
					if r.Reason == "" {
						r.Reason = "none"
					}
					emit(float64(r.Packets), r.Reason)
				}
			}},
	}
}

func ofStack() []Metric {
	return []Metric{
		{Name: "natkit_stack_events_total", Kind: Counter, Help: "Counters of the network stack beside connection tracking that doctor looks at, by the names of nstat: packets lost or refused, retransmissions, rejected timestamps.", Labels: []string{"counter"},
			of: func(n *state.Namespace, emit emit) {
				if n.Stack == nil {
					return
				}
				for name, v := range n.Stack.Counters {
					emit(float64(v), name)
				}
			}},
		{Name: "natkit_tcp_sockets", Kind: Gauge, Help: "TCP sockets of the host itself: in_use, time_wait, orphan (of all network namespaces).", Labels: []string{"state"},
			of: func(n *state.Namespace, emit emit) {
				if n.Stack != nil {
					counts(n.Stack.Sockets, emit)
				}
			}},
	}
}

func ofFindings() []Metric {
	return []Metric{
		{Name: "natkit_finding", Kind: Gauge, Help: "1 for each finding of 'natkit doctor' that stands, with its severity: notice, warning, critical.", Labels: []string{"id", "severity"},
			of: func(n *state.Namespace, emit emit) {
				if n.Findings == nil {
					return
				}
				for _, f := range n.Findings.All {
					emit(1, f.ID, f.Severity.String())
				}
			}},
		{Name: "natkit_checks", Kind: Gauge, Help: "Rules of 'natkit doctor' by their last result: ok, finding, not-checked.", Labels: []string{"state"},
			of: func(n *state.Namespace, emit emit) {
				if n.Findings == nil {
					return
				}
				for state, count := range n.Findings.Checks {
					emit(float64(count), string(state))
				}
			}},
		{Name: "natkit_examinations_total", Kind: Counter, Help: "Examinations by the rules of 'natkit doctor' since the exporter started.",
			of: func(n *state.Namespace, emit emit) {
				if n.Findings != nil {
					emit(float64(n.Findings.Reports))
				}
			}},
	}
}
