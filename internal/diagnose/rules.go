package diagnose

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"sort"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// Rule examines a recording for one fault. It returns the finding, nil where
// there is none, and the check with the values behind it; Run fills in the
// check's ID and Title.
type Rule struct {
	// ID is the ID of the findings, stable, kebab-case.
	ID    string
	Title string
	Check func(*snapshot.Recording) (*Finding, Check)
}

// Rules are all there are, in the order in which they are reported.
func Rules() []Rule {
	rules := []Rule{
		{"service-unanswered", "translated connections without an answer", checkServices},
		{"ct-table-full", "connection table full", checkFull},
		{"ct-table-near-full", "connection table nearly full", given(readTable, (*table).checkTableNearFull)},
		{"ct-early-drop", "connections evicted to make room", given(readTable, (*table).checkEarlyDrop)},
		{"ct-chain-cap", "too few hash buckets", given(readTable, (*table).checkChainCap)},
		{"ct-established-leak", "connections that were never closed", given(readTable, (*table).checkEstablishedLeak)},
		{"ct-flood", "few sources open many unanswered connections", given(readTable, (*table).checkFlood)},
		{"snat-ports-exhausted", "source ports used up", given(readPools, (*pools).checkPortsExhausted)},
		{"snat-ports-near-exhaustion", "source ports nearly used up", given(readPools, (*pools).checkPortsNear)},
		{"snat-race", "source ports drawn twice at once", checkRaced},
		{"snat-port-reuse-fast", "source ports given again within the destination's TIME_WAIT", given(readPools, (*pools).checkPortReuse)},
		{"lvs-affinity", "connections bound to a server by entries of former ones", given(readBalancer, (*balancer).checkAffinity)},
		{"lvs-conn-reuse", "reused client ports delayed, or sent to servers taken out", given(readBalancer, (*balancer).checkConnReuse)},
		{"udp-stale-blackhole", "UDP kept on an old translation", checkUDPStale},
		{"idle-killed", "open connections forgotten too soon", checkIdle},
		{"helper-missing", "protocols that need a helper, without one", checkHelpers},
		{"dnat-unreachable", "DNAT to an address that cannot be reached", checkDNATUnreachable},
		{"dnat-filtered", "DNAT that a filter drops", checkDNATFiltered},
		{"dnat-everywhere", "what hosts inside ask of the Internet, led to a published server", given(readAudit, (*audit).checkDNATEverywhere)},
		{"sources-listed", "clients that a list keeps out", checkListed},
		{"snat-filtered", "what is to be translated, and a filter drops", given(readCut, (*ways).checkSNATFiltered)},
		{"served-filtered", "what networks ask of this host, and a filter drops", given(readWays, (*ways).checkServedFiltered)},
		{"established-filtered", "packets of connections that a filter drops", given(readWays, (*ways).checkLaterFiltered)},
		{"bridge-filtered", "bridged packets that a filter drops", given(readWays, (*ways).checkBridgeFiltered)},
		{"ndisc-filtered", "neighbour discovery that a filter drops", given(readWays, (*ways).checkNDiscFiltered)},
		{"forwarding-off", "NAT rules, and no forwarding", checkForwarding},
		{"snat-address", "sources that answers do not come back to", given(readAudit, (*audit).checkSNATAddress)},
		{"rule-unreached", "addresses and interfaces of rules that no packet can come to", given(readAudit, (*audit).checkUnreached)},
		{"no-way-out", "hosts behind NAT whose packets are not routed", given(readAudit, (*audit).checkNoWayOut)},
		{"rule-shadowed", "NAT rules that can never match", given(readAudit, (*audit).checkShadowed)},
		{"notrack-nat", "NAT of what is not tracked", given(readAudit, (*audit).checkNotrackNAT)},
		{"rule-limits", "limits that refuse connections", given(readAudit, (*audit).checkLimits)},
		{"kube-no-endpoints", "services of Kubernetes without endpoints", given(readAudit, (*audit).checkNoEndpoints)},
		{"iptables-both", "rules in both variants of iptables", given(readAudit, (*audit).checkIptablesBoth)},
		{"ebpf-detached", "interfaces without the gateway's eBPF programs", given(readPrograms, (*programs).checkDetached)},
		{"ebpf-bypassed-filter", "what eBPF programs forward, and a filter would drop", given(readPrograms, (*programs).checkBypassed)},
		{"ebpf-no-xdp", "eBPF programs at tc that are to be at XDP", given(readPrograms, (*programs).checkNoXDP)},
		{"own-ports-exhausted", "own connections without a free port", checkOwnPorts},
		{"tw-paws-reject", "SYNs rejected in TIME_WAIT by their timestamp", given(readEndpoint, (*endpoint).checkTWPAWS)},
		{"tw-seq-reject", "SYNs rejected in TIME_WAIT by their sequence number", given(readEndpoint, (*endpoint).checkTWSeq)},
		{"tw-recycle", "tcp_tw_recycle drops SYNs of clients behind NAT", checkTWRecycle},
	}
	return append(append(rules, hostRules()...),
		Rule{"drops-unexplained", "packets dropped on their way", checkDrops},
		Rule{"netns-sick", "faults in other network namespaces", checkOthers})
}

// given makes the check of a rule from the one of what it examines, which read gets out of
// a recording: nil, with the check that ends the rule, where it is not there.
func given[T any](read func(*snapshot.Recording) (*T, Check), check func(*T) (*Finding, Check)) func(*snapshot.Recording) (*Finding, Check) {
	return func(rec *snapshot.Recording) (*Finding, Check) {
		it, end := read(rec)
		if it == nil {
			return nil, end
		}
		return check(it)
	}
}

// passed ends a rule that had its data and found nothing.
func passed(why string) (*Finding, Check) { return nil, Check{State: OK, Why: why} }

// unknown ends a rule that lacked data.
func unknown(why string) (*Finding, Check) { return nil, Check{State: NotChecked, Why: why} }

// finds reports whether one of these rules has a finding.
func finds(rec *snapshot.Recording, ids ...string) bool {
	return slices.ContainsFunc(Rules(), func(r Rule) bool {
		if !slices.Contains(ids, r.ID) {
			return false
		}
		f, _ := r.run(rec)
		return f != nil
	})
}

// run is Check; a rule that panics has come to no result, and ends no other rule.
func (r *Rule) run(rec *snapshot.Recording) (f *Finding, c Check) {
	defer func() {
		if defect := recover(); defect != nil {
			f, c = nil, Check{State: NotChecked, Defect: true, Why: defectOf("rule "+r.ID, defect)}
		}
	}()
	return r.Check(rec)
}

// defectOf describes a panic to the function that recovers from it, which calls this.
func defectOf(what string, panic any) string {
	return fmt.Sprintf("a defect of natkit: %s panicked at %s: %v; report it, with a bundle of 'natkit snapshot', at %s", what, panicked(), panic, defects)
}

// guard calls a step of a report; where it panics the report has what there is without it.
func (r *Report) guard(what string, step func()) {
	defer func() {
		if defect := recover(); defect != nil {
			if why := defectOf(what, defect); !slices.Contains(r.Defects, why) {
				r.Defects = append(r.Defects, why)
			}
		}
	}()
	step()
}

// defects is where they are reported.
const defects = "https://github.com/natkit/natkit/issues"

// panicked is the line of natkit that a panic is of, by the stack of the deferred function that recovers from it.
func panicked() string {
	var calls [32]uintptr
	frames := runtime.CallersFrames(calls[:runtime.Callers(1, calls[:])])
	for panics := false; ; {
		f, more := frames.Next()
		panics = panics || f.Function == "runtime.gopanic"
		if panics && strings.HasPrefix(f.Function, module) || !more {
			return fmt.Sprintf("%s:%d", path.Base(f.File), f.Line)
		}
	}
}

// module is what the names of natkit's functions begin with.
const module = "github.com/natkit/natkit/"

// Run applies the rules to a recording of at least two snapshots.
func Run(rec *snapshot.Recording, rules []Rule) Report {
	last := rec.Last()
	r := Report{
		Schema:     ReportSchema,
		TakenAt:    last.TakenAt,
		Kernel:     last.Kernel.Release,
		Netns:      last.Netns.Name,
		NetnsInode: last.Netns.Inode,
		Seconds:    rec.Seconds(),
		Compared:   rec.Compared,
		SinceStart: rec.SinceStart,
		SinceNstat: rec.SinceStart && rec.SinceNstat,
		Findings:   []Finding{},
		Unread:     []Unread{},
		Lost:       rec.Lost,
		Drops:      mainDrops(rec.Drops),
		Profile:    mainProfile(rec.Profile),
		SYNs:       mainSYNs(rec.SYNs),
		Followed:   mainFollowed(rec.Followed),
		Dropped:    mainDrops(rec.Dropped),
		Elsewhere:  rec.Elsewhere,
	}
	r.guard("rule netns-sick", func() { r.Others = judgeOthers(rec.Others) })
	for _, rule := range rules {
		finding, check := rule.run(rec)
		check.ID, check.Title = rule.ID, rule.Title
		if finding != nil {
			finding.ID = rule.ID
			check.State = Found
			r.Findings = append(r.Findings, *finding)
		}
		r.Checks = append(r.Checks, check)
	}
	r.Incomplete = incomplete(r.Checks)
	if rec.CutShortOf > 0 {
		r.cutShort(rec.CutShortOf)
	}
	sort.SliceStable(r.Findings, func(i, j int) bool { return r.Findings[i].Severity > r.Findings[j].Severity })
	if rec.Elsewhere {
		addCommands(r.Findings, last.Netns.Name)
	}
	r.guard("the summary of "+worst(r.Findings), func() { r.Summary = summarize(r.Findings, last.Netns.Name) })
	r.guard("the explanation of service-unanswered", func() { r.explain(rec) })
	for _, p := range last.Parts {
		if p.Error != "" {
			r.Unread = append(r.Unread, Unread{What: p.Name, Why: p.Error})
		}
	}
	r.name(rec)
	return r
}

// worst is the rule of the worst finding.
func worst(findings []Finding) string {
	if len(findings) == 0 {
		return "no finding"
	}
	return findings[0].ID
}

// mostListed bounds the places, flows and functions of a report: a recording has
// them all.
const mostListed = 20

func mainDrops(d *snapshot.Drops) *snapshot.Drops {
	if d == nil {
		return nil
	}
	c := *d
	c.Sites, c.Flows, c.Stacks = head(d.Sites), head(d.Flows), head(d.Stacks)
	return &c
}

func mainProfile(p *snapshot.Profile) *snapshot.Profile {
	if p == nil {
		return nil
	}
	c := *p
	c.Functions = head(p.Functions)
	return &c
}

func mainSYNs(s *snapshot.SYNs) *snapshot.SYNs {
	if s == nil {
		return nil
	}
	c := *s
	c.Sources = head(s.Sources)
	c.MoreSources += int64(len(s.Sources) - len(c.Sources))
	return &c
}

func mainFollowed(f *snapshot.Followed) *snapshot.Followed {
	if f == nil {
		return nil
	}
	c := *f
	c.Services = head(f.Services)
	c.MoreServices += int64(len(f.Services) - len(c.Services))
	return &c
}

func head[T any](list []T) []T { return list[:min(len(list), mostListed)] }

// Find is the finding of that ID, nil where there is none.
func (r *Report) Find(id string) *Finding {
	for i := range r.Findings {
		if r.Findings[i].ID == id {
			return &r.Findings[i]
		}
	}
	return nil
}

// IDs are those of the findings, most severe first.
func (r *Report) IDs() []string {
	ids := []string{}
	for _, f := range r.Findings {
		ids = append(ids, f.ID)
	}
	return ids
}
