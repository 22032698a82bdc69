package observe

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// Status is how a gateway fares at one moment.
type Status struct {
	// Present is false where natkit has no table in the namespace.
	Present bool `json:"present"`
	// Foreign is true where what is there is not one that natkit made. Name is what an
	// administrator knows it by, Removal the command that removes it.
	Foreign bool   `json:"foreign,omitempty"`
	Name    string `json:"-"`
	Removal string `json:"-"`
	// Removed is the plan that natkit put in force and whose table another program removed;
	// empty where there is a table, or natkit removed it.
	Removed string `json:"removed_plan,omitempty"`
	// Plan is the digest of the plan that the table was written for; PlanUnknown why
	// natkit does not have that plan: then only the table's own counters are reported.
	Plan        string `json:"plan,omitempty"`
	PlanUnknown string `json:"plan_unknown,omitempty"`
	// Applied is when that plan was put in force, which is since when the table counts;
	// nil where the journal does not say.
	Applied *time.Time     `json:"applied_at,omitempty"`
	Engine  gateway.Engine `json:"engine,omitempty"`
	// Integrity reports whether the table is as natkit wrote it, Changes what is not.
	Integrity gateway.Integrity `json:"integrity,omitempty"`
	Changes   []string          `json:"changes,omitempty"`
	// Confirm is the transaction that waits for confirmation.
	Confirm *Confirmation `json:"confirm,omitempty"`

	// Programs are how eBPF programs are attached, by interface, with the reason where not at XDP; empty where there are
	// none.
	Programs map[string]string `json:"programs,omitempty"`

	// Rules are those of the file, in its order.
	Rules []Rule `json:"rules"`
	// Checker is the service that checks hosts with health; Unchecked is true where none does.
	Checker   string `json:"health_checked_by,omitempty"`
	Unchecked bool   `json:"health_unchecked,omitempty"`
	// Pools are addresses whose ports these rules give, worst first.
	Pools []Pool `json:"pools,omitempty"`
	Drops Drops  `json:"drops"`
	// Counters are those of the table that count neither rules of the file nor drops:
	// "mss" the SYNs that were bounded, "flowtable" packets offered to the fast path.
	Counters []Counter `json:"counters,omitempty"`
	Flows    Flows     `json:"flows"`
	// NotForwarding are the sysctls that are 0 and by which the host does not forward what the
	// plan is for. CutHairpins are bridges behind which a host does not reach itself by a
	// rule with hairpin.
	NotForwarding []string     `json:"not_forwarding,omitempty"`
	CutHairpins   []CutHairpin `json:"cut_hairpins,omitempty"`
	// Precedences are other programs' rules that translate packets of the plan's before it.
	Precedences []gateway.Precedence `json:"foreign_first,omitempty"`
	// Missing are interfaces that the plan names and that do not exist; its rules for
	// them hold when they come. Waiting are rules about addresses that are not there.
	Missing []string          `json:"missing_interfaces,omitempty"`
	Waiting []gateway.Waiting `json:"waiting,omitempty"`
	// Off are rules of the file that are not enabled.
	Off []gateway.Off `json:"off,omitempty"`
	// Uplinks are the WAN interfaces among which connections are divided.
	Uplinks []Uplink `json:"uplinks,omitempty"`
	// Zones are parts of what is inside whose addresses overlap.
	Zones []Zone `json:"zones,omitempty"`
	// Leases are the ports that hosts inside have opened by PCP.
	Leases []Lease `json:"leases,omitempty"`
	// Accounting: the kernel counts packets and bytes of connections.
	Accounting bool     `json:"accounting"`
	Notes      []string `json:"notes,omitempty"`
}

// Confirmation is what waits for one.
type Confirmation struct {
	ID string `json:"id"`
	// SecondsLeft until it is rolled back automatically; 0 where that time has passed.
	SecondsLeft float64 `json:"seconds_left"`
}

// Rule is one rule of the file.
type Rule struct {
	Rule gateway.Ref `json:"rule"`
	// Text says what it does.
	Text string `json:"text,omitempty"`
	// New is how many first packets of connections its rules in the kernel translated
	// since they were written: those of connections that then failed too, each time that
	// they were sent. Absent where the kernel does not count.
	New *uint64 `json:"new_connections,omitempty"`
	// NewPerSecond is their rate since the previous reading; absent in the first one.
	NewPerSecond *float64 `json:"new_per_second,omitempty"`
	// Dropped is how many of these first packets were dropped behind the rule, as their
	// connection clashed with another one, or found no free port; since Drops.ByRule
	// says, and absent without it.
	Dropped *uint64 `json:"dropped_first_packets,omitempty"`
	// DroppedPerSecond is their rate since the previous reading; absent in the first one.
	DroppedPerSecond *float64 `json:"dropped_first_packets_per_second,omitempty"`
	// ByPrograms are the packets that eBPF programs translated by it; absent where they do not carry it out.
	ByPrograms *Translated `json:"by_programs,omitempty"`
	// Ports are those of the address, protocol and destination that has the largest part
	// of them in use; absent where the rule gives none, or none is in use.
	Ports *PortsLeft `json:"ports,omitempty"`
	// Hosts are those that it chooses from, where these are several.
	Hosts []Host `json:"hosts,omitempty"`
	Usage
}

// Translated are packets that programs translated since they were attached, both directions together.
type Translated struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// PacketsPerSecond is their rate since the previous reading; absent in the first one.
	PacketsPerSecond *float64 `json:"packets_per_second,omitempty"`
}

// Host is one of several that connections go to.
type Host struct {
	// Host is its address, with its port where the rule gives it one.
	Host   string `json:"host"`
	Weight uint32 `json:"weight"`
	// InUse is whether new connections go to it; absent where that is not known.
	InUse *bool `json:"in_use,omitempty"`
	// Up is what its checks found, Since when, and LastError why the last check failed; absent where it is not checked,
	// nobody checks it now, or that was so before the checks began.
	Up        *bool      `json:"up,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	LastError string     `json:"last_check_error,omitempty"`
	// Flows are connections that it has now.
	Flows int64 `json:"flows"`
}

// Lease is a port outside that a host inside has opened to itself.
type Lease struct {
	Protocol string         `json:"protocol"`
	External netip.AddrPort `json:"external"`
	Internal netip.AddrPort `json:"internal"`
	// SecondsLeft until it ends, unless its host asks again.
	SecondsLeft float64 `json:"seconds_left"`
	// Flows are connections to it.
	Flows int64 `json:"flows"`
}

// LeasesOf are those of a plan.
func LeasesOf(p *gateway.Plan, now time.Time) (all []Lease) {
	for _, l := range p.Leases {
		all = append(all, Lease{Protocol: nat.ProtocolName(l.Protocol), External: l.External, Internal: l.Internal, SecondsLeft: max(0, l.Expires.Sub(now).Seconds())})
	}
	return all
}

// CutHairpin is a bridge that takes what it carries through netfilter, with its ports that
// send nothing back that came in by them.
type CutHairpin struct {
	Bridge string   `json:"bridge"`
	Ports  []string `json:"ports"`
}

// Usage is of connections that there are now.
type Usage struct {
	Flows int64 `json:"flows"`
	// Packets and Bytes passed in both directions, where the kernel counts them.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Unanswered: no packet came back.
	Unanswered int64 `json:"unanswered_flows"`
}

// PortsLeft are what is left of the ports that a rule gives.
type PortsLeft struct {
	// Left of Size ports.
	Left int64 `json:"left"`
	Size int64 `json:"size"`
}

// PortsLeftOf is what a pool has left.
func PortsLeftOf(p *snapshot.PortPool) PortsLeft {
	size := int64(p.LastPort) - int64(p.FirstPort) + 1
	return PortsLeft{Left: max(0, size-p.Used), Size: size}
}

// InUse is the part that is not left.
func (p PortsLeft) InUse() float64 { return 1 - float64(p.Left)/float64(p.Size) }

// Pool is what is left of the ports of one address, for one protocol and
// destination.
type Pool struct {
	Rule *gateway.Ref `json:"rule,omitempty"`
	PortsLeft
	snapshot.PortPool
}

// Drops are packets and connections that were lost.
type Drops struct {
	// Counters are those of the table: "limits connections-per-source"; "untranslatable",
	// packets that the tracker took for invalid and a rule would have had to translate.
	Counters []Counter `json:"counters,omitempty"`
	// NoEntry is conntrack's counter "drop": packets for which no entry could be made, as
	// the table was full, and those of InsertFailed. InsertFailed is "insert_failed": first
	// packets whose entry clashed with another, or that found no free port. Both since
	// the namespace was made, and whoever's connections they were: the kernel finds a
	// port taken after the rules (__nf_conntrack_confirm, nf_ct_resolve_clash).
	NoEntry      *uint64 `json:"conntrack_drop,omitempty"`
	InsertFailed *uint64 `json:"conntrack_insert_failed,omitempty"`
	// The same per second, since the previous reading; absent in the first one.
	NoEntryPerSecond      *float64 `json:"conntrack_drop_per_second,omitempty"`
	InsertFailedPerSecond *float64 `json:"conntrack_insert_failed_per_second,omitempty"`
	// ByRule has the rules' own counts of drops; nil unless they are counted.
	ByRule *DropsByRule `json:"by_rule,omitempty"`
}

// DropsByRule are first packets of connections that were dropped behind the rules.
type DropsByRule struct {
	// Seconds is for how long they have been counted.
	Seconds float64 `json:"seconds"`
	// NoRule are those of connections that none of the rules translated; Untold those
	// of which it is not known, as they were of too many different connections.
	NoRule uint64 `json:"no_rule_first_packets"`
	Untold uint64 `json:"untold_first_packets"`
}

// Counter is one of the table.
type Counter struct {
	// What is the writer's comment: "limits connections-per-source".
	What    string `json:"what"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// PacketsPerSecond is its rate since the previous reading; absent in the first one.
	PacketsPerSecond *float64 `json:"packets_per_second,omitempty"`
}

// Flows is of the connection table.
type Flows struct {
	// Table is how many entries there are of Max; 0 is not known.
	Table int64 `json:"table_entries"`
	Max   int64 `json:"table_max,omitempty"`
	// Sampled entries were read; where Complete is false the flows of rules are
	// scaled up from them.
	Sampled  int64 `json:"sampled_entries"`
	Complete bool  `json:"complete"`
	// Stranger flows are translated by none of these rules: others' on the same host,
	// or those of an earlier plan.
	Stranger int64 `json:"stranger_flows"`
	// Related flows were announced by others, and translated as those by a helper of the tracker.
	Related int64 `json:"related_flows,omitempty"`
	// Stale flows have a source translated to an address that a masquerade rule gave
	// and that this host no longer has: nothing comes back for them.
	Stale          int64    `json:"stale_flows"`
	StaleAddresses []string `json:"stale_addresses,omitempty"`
	// Untranslated flows pass as they are although a rule is for them: they began before
	// the rule was in force. AtLeast: there may be more, as routes were asked for a part.
	Untranslated        int64 `json:"untranslated_flows"`
	UntranslatedAtLeast bool  `json:"untranslated_at_least,omitempty"`
}

// RulesOf are the rules of the file that a plan has entries for or waits with, in the
// file's order, with what each does.
func RulesOf(p *gateway.Plan) (all []Rule) {
	for _, r := range gateway.TextsOf(p) {
		all = append(all, Rule{Rule: r.Rule, Text: r.Text})
	}
	return all
}

// Fine reports whether a host gets new connections and its last check did not fail, as far as known.
func (h *Host) Fine() bool {
	return (h.InUse == nil || *h.InUse) && (h.Up == nil || *h.Up) && h.LastError == ""
}

// HostsOf are the hosts of each rule of a plan that chooses from several.
func HostsOf(p *gateway.Plan) map[gateway.Ref][]Host {
	all := map[gateway.Ref][]Host{}
	for i := range p.Destinations {
		d := &p.Destinations[i]
		if len(d.Action.Backends) < 2 || all[d.Rule] != nil {
			continue
		}
		for _, b := range d.Action.Backends {
			all[d.Rule] = append(all[d.Rule], Host{Host: b.String(), Weight: b.Share()})
		}
	}
	return all
}

// SortRules puts rules in the order of the file, those of nat before those of ipv6.
func SortRules(all []Rule) {
	slices.SortStableFunc(all, func(a, b Rule) int { return a.Rule.Compare(b.Rule) })
}

// Busiest are the n rules with most connections, those first that lose some, in the
// order of the file.
func Busiest(rules []Rule, n int) []Rule {
	all := slices.Clone(rules)
	slices.SortStableFunc(all, func(a, b Rule) int {
		return cmp.Or(compareCounts(b.Dropped, a.Dropped), cmp.Compare(b.Flows, a.Flows), compareCounts(b.New, a.New))
	})
	all = all[:min(n, len(all))]
	SortRules(all)
	return all
}

// compareCounts takes what is not known for 0.
func compareCounts(a, b *uint64) int {
	var none uint64
	return cmp.Compare(*cmp.Or(a, &none), *cmp.Or(b, &none))
}
