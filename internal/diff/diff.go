// Package diff compares two recordings, of two times or of two hosts, in what matters to NAT.
package diff

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Schema names the JSON form of a Document.
const Schema = "natkit.diff/1"

// Document is what differs between two sides, A and B, by network namespace.
type Document struct {
	Schema string `json:"schema"`
	// Namespaces are those that both have, OnlyA and OnlyB those of one of them.
	Namespaces []Namespace `json:"namespaces"`
	OnlyA      []string    `json:"only_a,omitempty"`
	OnlyB      []string    `json:"only_b,omitempty"`
}

// Differs reports whether anything does.
func (d *Document) Differs() bool {
	return len(d.OnlyA)+len(d.OnlyB) > 0 || slices.ContainsFunc(d.Namespaces, func(n Namespace) bool { return n.Count() > 0 })
}

// Complete reports whether all was compared.
func (d *Document) Complete() bool {
	return !slices.ContainsFunc(d.Namespaces, func(n Namespace) bool { return len(n.NotCompared) > 0 })
}

// Namespace is what differs in one network namespace.
type Namespace struct {
	// Name is whose it is; empty of the one that natkit ran in.
	Name string `json:"name,omitempty"`
	A    Side   `json:"a"`
	B    Side   `json:"b"`
	// Changes are in the order of Kinds.
	Changes []Change `json:"changes"`
	// New findings are of B alone, Gone of A alone, Kept of both.
	New  []Finding `json:"new_findings"`
	Gone []Finding `json:"gone_findings"`
	Kept []Finding `json:"kept_findings"`
	// NotCompared are the parts that one of the sides lacks.
	NotCompared []Missing `json:"not_compared"`
}

// Count is the number of differences.
func (n *Namespace) Count() int { return len(n.Changes) + len(n.New) + len(n.Gone) }

// Side is one of both.
type Side struct {
	// Source is the file, or "this host".
	Source  string    `json:"source"`
	TakenAt time.Time `json:"taken_at"`
	Kernel  string    `json:"kernel"`
	// Seconds lie between its last two snapshots, of which the rates are.
	Seconds float64 `json:"seconds"`
	// SinceStart is true where it has one alone, and counters are since the start of the host.
	SinceStart bool `json:"since_start,omitempty"`
}

// Kind is what a change is about.
type Kind string

// What Change.Kind may be, in the order in which changes are listed.
const (
	Kernel     Kind = "kernel"
	Memory     Kind = "memory"
	Sysctl     Kind = "sysctl"
	NATRule    Kind = "nat-rule"
	Refusal    Kind = "refusing-rule"
	RuleTable  Kind = "iptables-table"
	Program    Kind = "gateway-program"
	Interface  Kind = "interface"
	Queue      Kind = "queue"
	Route      Kind = "route"
	IPVS       Kind = "ipvs"
	IPsec      Kind = "ipsec-policy"
	Subscriber Kind = "event-listeners"
	Rate       Kind = "rate"
)

// Change is one difference: A is empty for what B alone has, and B for what A alone has.
type Change struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
}

// Finding is one of doctor's.
type Finding struct {
	ID       string            `json:"id"`
	Severity diagnose.Severity `json:"severity"`
	Title    string            `json:"title"`
}

// Missing is a part that was not compared, and why.
type Missing struct {
	Part string `json:"part"`
	Why  string `json:"why"`
}

// Input is a recording with its source, and what doctor found in it.
type Input struct {
	Source    string
	Recording *snapshot.Recording
	Report    *diagnose.Report
}

// name is whose the namespace is: the name that people gave it, as others change with each start.
func (i *Input) name() string {
	o := i.Recording.Owner
	if o == nil {
		return ""
	}
	for _, name := range []string{o.Pod, o.ContainerName, o.Netns, o.Unit, o.Container, o.Process} {
		if name != "" {
			return name
		}
	}
	return o.Path
}

// Of compares the recordings of two sides. Where each has one, these are compared whatever their names; of several,
// those of the same name.
func Of(a, b []Input) *Document {
	d := &Document{Schema: Schema, Namespaces: []Namespace{}}
	if len(a) == 1 && len(b) == 1 {
		d.Namespaces = append(d.Namespaces, compare(&a[0], &b[0]))
		return d
	}
	taken := make([]bool, len(b))
	for i := range a {
		j := slices.IndexFunc(b, func(o Input) bool { return o.name() == a[i].name() })
		for j >= 0 && taken[j] { // several of one name
			next := slices.IndexFunc(b[j+1:], func(o Input) bool { return o.name() == a[i].name() })
			if j += 1 + next; next < 0 {
				j = -1
			}
		}
		if j < 0 {
			d.OnlyA = append(d.OnlyA, a[i].name())
			continue
		}
		taken[j] = true
		d.Namespaces = append(d.Namespaces, compare(&a[i], &b[j]))
	}
	for j := range b {
		if !taken[j] {
			d.OnlyB = append(d.OnlyB, b[j].name())
		}
	}
	return d
}

func compare(a, b *Input) Namespace {
	n := Namespace{
		Name: b.name(), A: a.side(), B: b.side(),
		Changes: []Change{}, New: []Finding{}, Gone: []Finding{}, Kept: []Finding{}, NotCompared: []Missing{},
	}
	was, is := a.Recording.Last(), b.Recording.Last()
	n.missing(a.Source, b.Source, was, is)
	for _, c := range comparisons {
		before, after := c.of(was), c.of(is)
		if before == nil || after == nil { // one of them was not read
			continue
		}
		if c.kind == Sysctl && (a.Recording.SomeSysctls || b.Recording.SomeSysctls) {
			before, after = n.common(a.Source, b.Source, before, after)
		}
		n.Changes = append(n.Changes, differences(c.kind, before, after)...)
	}
	n.Changes = append(n.Changes, rates(a.Recording, b.Recording)...)
	n.findings(a.Report, b.Report)
	return n
}

func (i *Input) side() Side {
	last := i.Recording.Last()
	return Side{i.Source, last.TakenAt, last.Kernel.Release, i.Recording.Seconds(), i.Recording.SinceStart}
}

// missing notes the parts that could not be read on one side, or are on one side alone.
func (n *Namespace) missing(a, b string, was, is *snapshot.Snapshot) {
	for _, side := range []struct {
		source string
		s      *snapshot.Snapshot
	}{{a, was}, {b, is}} {
		for _, p := range side.s.Parts {
			known := slices.ContainsFunc(n.NotCompared, func(m Missing) bool { return m.Part == p.Name })
			if p.Error != "" && !known {
				n.NotCompared = append(n.NotCompared, Missing{p.Name, side.source + ": " + p.Error})
			}
		}
	}
}

// common returns the items whose names both sides have, and notes how many one of them lacks: texts with some of the
// sysctls do not say that there are no others.
func (n *Namespace) common(a, b string, before, after []item) (_, _ []item) {
	lacks := func(of []item) func(item) bool {
		return func(i item) bool { return !slices.ContainsFunc(of, func(o item) bool { return o.name == i.name }) }
	}
	onlyA, onlyB := slices.DeleteFunc(slices.Clone(before), func(i item) bool { return !lacks(after)(i) }), slices.DeleteFunc(slices.Clone(after), func(i item) bool { return !lacks(before)(i) })
	for _, side := range []struct {
		source string
		only   []item
	}{{b, onlyA}, {a, onlyB}} {
		if len(side.only) > 0 {
			n.NotCompared = append(n.NotCompared, Missing{snapshot.PartSysctls, fmt.Sprintf("%s: %s not among the files, such as %s", side.source, units.Plural(int64(len(side.only)), "sysctl is", "sysctls are"), side.only[0].name)})
		}
	}
	return slices.DeleteFunc(before, lacks(after)), slices.DeleteFunc(after, lacks(before))
}

// item is something that both sides may have: what it is called, and its value. Several may have one name.
type item struct{ name, value string }

// differences are the items whose value changed, and those of one side alone. Of several of one name, as rules
// without a value, each stands for itself.
func differences(kind Kind, a, b []item) (all []Change) {
	taken := make([]bool, len(b))
	take := func(match func(item) bool) int {
		for j := range b {
			if !taken[j] && match(b[j]) {
				taken[j] = true
				return j
			}
		}
		return -1
	}
	changed := []item{}
	for _, i := range a {
		if take(func(o item) bool { return o == i }) < 0 {
			changed = append(changed, i)
		}
	}
	for _, i := range changed {
		c := Change{Kind: kind, Name: i.name, A: present(i)}
		if j := take(func(o item) bool { return o.name == i.name }); j >= 0 {
			c.B = present(b[j])
		}
		all = append(all, c)
	}
	for j, i := range b {
		if !taken[j] {
			all = append(all, Change{Kind: kind, Name: i.name, B: present(i)})
		}
	}
	return all
}

// Present is the value of what is there without one, such as a rule.
const Present = "present"

func present(i item) string {
	if i.value == "" {
		return Present
	}
	return i.value
}

func (n *Namespace) findings(a, b *diagnose.Report) {
	for _, f := range b.Findings {
		if slices.ContainsFunc(a.Findings, func(o diagnose.Finding) bool { return o.ID == f.ID }) {
			n.Kept = append(n.Kept, finding(f))
		} else {
			n.New = append(n.New, finding(f))
		}
	}
	for _, f := range a.Findings {
		if !slices.ContainsFunc(b.Findings, func(o diagnose.Finding) bool { return o.ID == f.ID }) {
			n.Gone = append(n.Gone, finding(f))
		}
	}
}

func finding(f diagnose.Finding) Finding { return Finding{f.ID, f.Severity, f.Title} }

// rates are the counters that count at another rate: at least twice as fast, by more than chance would have it.
func rates(a, b *snapshot.Recording) (all []Change) {
	was, is := counted(a), counted(b)
	s, t := a.Seconds(), b.Seconds()
	if s <= 0 || t <= 0 {
		return nil
	}
	names := []string{}
	for name := range was {
		if _, both := is[name]; both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if n, m := was[name], is[name]; other(n, s, m, t) {
			all = append(all, Change{Rate, name, perSecond(n, s), perSecond(m, t)})
		}
	}
	return all
}

// deviations is by how many standard deviations two rates have to differ, of counts that are a Poisson process's: of a
// hundred counters none does by chance.
const deviations = 5

func other(n uint64, s float64, m uint64, t float64) bool {
	a, b := float64(n)/s, float64(m)/t
	return max(a, b) >= 2*min(a, b) && math.Abs(a-b) > deviations*math.Sqrt(float64(n)/(s*s)+float64(m)/(t*t))
}

func perSecond(n uint64, seconds float64) string { return units.Rate(float64(n)/seconds) + "/s" }

// counted is what the counters of troubles, of conntrack and of the namespace's protocols, grew by between the last
// two snapshots.
func counted(r *snapshot.Recording) map[string]uint64 {
	first, last := r.First(), r.Last()
	grown := map[string]uint64{}
	if last.ConntrackStat != nil && len(last.ConntrackStat.PerCPU) > 0 {
		for name := range last.ConntrackStat.PerCPU[0] {
			if n, ok := last.ConntrackStat.Delta(first.ConntrackStat, name); ok && !lookups[name] {
				grown["conntrack "+name] = n
			}
		}
	}
	if last.TCP != nil && first.TCP != nil {
		more := last.TCP.Counters.Grown(first.TCP.Counters)
		for name := range last.TCP.Counters {
			if _, both := first.TCP.Counters[name]; both && troubles.MatchString(name) {
				grown[name] = more[name]
			}
		}
	}
	return grown
}

// lookups are counters of the tracker's work, of which natkit's own reading is a part.
var lookups = map[string]bool{"searched": true, "found": true, "new": true, "ignore": true, "insert": true, "delete": true, "delete_list": true, "search_restart": true}

// troubles are the counters of what is lost, refused, or sent again, by the kernel's names (Documentation/networking/
// snmp_counter.rst): what merely passes is another load, and no difference of the host.
var troubles = regexp.MustCompile(`Drop|Fail|Err|Discard|Overflow|Invalid|Lost|Retrans|Timeout|Rej|Full|Abort|PAWS|Rst|Reset|NoRoute|Unknown|Prune|Collapse|Cookie|NoPort|Challenge|Recycl|NoMatch|Mismatch|NoState|NoPol|Block|ReversePath|TooBig|DestUnreach|BacklogC`)
