package fleet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/units"
)

// Schema names the JSON form of a Report.
const Schema = "natkit.fleet/1"

// Report compares nodes.
type Report struct {
	Schema string `json:"schema"`
	// From and Until are the times of the first and the last recording, each by the clock of its node.
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Nodes were diagnosed; Critical, Warnings and Healthy are those of them whose worst finding is critical, a warning, a
	// notice or none.
	Nodes    int `json:"nodes"`
	Critical int `json:"nodes_critical"`
	Warnings int `json:"nodes_warning"`
	Healthy  int `json:"nodes_without_fault"`
	// Summary is nil where no node has a finding worse than a notice.
	Summary *Summary `json:"summary,omitempty"`
	Groups  []Group  `json:"findings"`
	// Ranking are the nodes with a finding or a number that stands out, the worst first.
	Ranking  []Ranked  `json:"ranking"`
	Outliers []Outlier `json:"outliers"`
	// Unread could not be read, Missing are nodes of the collector's list without a bundle.
	Unread  []Failure `json:"unread"`
	Missing []Failure `json:"missing"`
	// Damaged were read in part.
	Damaged    []Failure    `json:"damaged"`
	Duplicates []Duplicate  `json:"duplicates"`
	Clocks     []Clock      `json:"clocks"`
	Incomplete []Incomplete `json:"incomplete"`
	// Versions of natkit that wrote the bundles, empty where that is not known.
	Versions []Version `json:"natkit_versions"`
	// OtherFiles were in the directories and are not of natkit.
	OtherFiles int `json:"other_files"`
}

// Summary is the report in a sentence.
type Summary struct {
	Text  string `json:"text"`
	First string `json:"first,omitempty"`
}

// Group is one kind of finding over the nodes.
type Group struct {
	ID       string            `json:"id"`
	Title    string            `json:"title"`
	Severity diagnose.Severity `json:"severity"`
	// Sick nodes have it, of Checked nodes where its check came to a result.
	Sick    []string `json:"nodes"`
	Checked int      `json:"nodes_checked"`
	// Certain of these the kernel itself reports it.
	Certain int `json:"nodes_certain"`
	// Example is the finding of the first node.
	Example Example `json:"example"`
	// Subjects are addresses that findings of several nodes are about, the most frequent first.
	Subjects []Subject `json:"subjects,omitempty"`
	// Shared separates the nodes from those that were checked without it; none where that is not clear: then Unsure
	// counts the attributes that all of these and none of the others have, of too few nodes to mean anything.
	Shared []Separation `json:"shared"`
	Unsure int          `json:"shared_by_too_few,omitempty"`
	// First are the ways out that doctor begins with on these nodes.
	First []Advice `json:"first"`
}

// Example is a finding of one node.
type Example struct {
	Node   string `json:"node"`
	Source string `json:"source"`
	Title  string `json:"title"`
	Netns  string `json:"netns,omitempty"`
}

// Subject is an end of connections.
type Subject struct {
	About netip.AddrPort `json:"about"`
	Nodes int            `json:"nodes"`
}

// Advice is the first way out on so many nodes; Command is what makes it, where that is the same on all of them.
type Advice struct {
	Title   string `json:"title"`
	Command string `json:"command,omitempty"`
	Nodes   int    `json:"nodes"`
}

// Ranked is a node in the order of what is wrong with it.
type Ranked struct {
	Node     string             `json:"node"`
	Source   string             `json:"source"`
	Severity *diagnose.Severity `json:"severity,omitempty"`
	// Findings are the ids of those that are worse than a notice, most severe first; Outliers the measures that stand out.
	Findings []string `json:"findings"`
	Outliers []string `json:"outliers"`
}

// Failure is a file or a node that gave nothing, or not all.
type Failure struct {
	Node   string `json:"node,omitempty"`
	Source string `json:"source,omitempty"`
	Why    string `json:"why"`
}

// Incomplete is why checks came to no result, on so many nodes.
type Incomplete struct {
	Why   string `json:"why"`
	Nodes int    `json:"nodes"`
	// Example is one of them.
	Example string `json:"example"`
}

// Version is a version of natkit and how many nodes' bundles it wrote.
type Version struct {
	Natkit string `json:"natkit"`
	Nodes  int    `json:"nodes"`
}

// Input is what was found and read.
type Input struct {
	Nodes  []*Node
	Unread []Failure
	// Lists are those of the collectors.
	Lists      []List
	OtherFiles int
	// Titles are the titles of the checks by their ids.
	Titles map[string]string
	// Now is the time of the comparison.
	Now time.Time
}

// Compare makes a report.
func Compare(in Input) *Report {
	r := &Report{
		Schema: Schema, Groups: []Group{}, Ranking: []Ranked{}, Outliers: []Outlier{}, Unread: listed(in.Unread), Missing: []Failure{}, Damaged: []Failure{},
		Duplicates: []Duplicate{}, Clocks: []Clock{}, Incomplete: []Incomplete{}, Versions: []Version{}, OtherFiles: in.OtherFiles,
	}
	nodes := slices.Clone(in.Nodes)
	applyLists(nodes, in.Lists)
	slices.SortStableFunc(nodes, func(a, b *Node) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
	})
	nodes, r.Duplicates = newest(nodes)
	r.Missing = missing(in.Lists)
	r.Clocks = clocks(nodes, in.Lists, in.Now)
	r.Nodes = len(nodes)
	for _, n := range nodes {
		r.count(n)
	}
	slices.SortStableFunc(r.Incomplete, func(a, b Incomplete) int { return cmp.Compare(b.Nodes, a.Nodes) })
	slices.SortFunc(r.Versions, func(a, b Version) int { return strings.Compare(a.Natkit, b.Natkit) })
	r.Groups = groups(nodes, in.Titles)
	r.Outliers = outliers(nodes)
	r.Ranking = rank(nodes, r.Outliers)
	r.summarize()
	return r
}

func listed[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// count adds a node to what the report counts.
func (r *Report) count(n *Node) {
	if r.From.IsZero() || n.TakenAt.Before(r.From) {
		r.From = n.TakenAt
	}
	if n.TakenAt.After(r.Until) {
		r.Until = n.TakenAt
	}
	switch n.worst() {
	case diagnose.Critical:
		r.Critical++
	case diagnose.Warning:
		r.Warnings++
	default:
		r.Healthy++
	}
	for _, why := range n.Incomplete {
		i := slices.IndexFunc(r.Incomplete, func(m Incomplete) bool { return m.Why == why })
		if i < 0 {
			i = len(r.Incomplete)
			r.Incomplete = append(r.Incomplete, Incomplete{Why: why, Example: n.Name})
		}
		r.Incomplete[i].Nodes++
	}
	for _, why := range n.Lost {
		r.Damaged = append(r.Damaged, Failure{n.Name, n.Source, why})
	}
	version := n.natkit()
	i := slices.IndexFunc(r.Versions, func(v Version) bool { return v.Natkit == version })
	if i < 0 {
		i = len(r.Versions)
		r.Versions = append(r.Versions, Version{Natkit: version})
	}
	r.Versions[i].Nodes++
}

// natkit is the version that wrote the bundle.
func (n *Node) natkit() string {
	for _, a := range n.attributes {
		if a := a.Value(); a.Kind == KindNatkit {
			return a.Value
		}
	}
	return ""
}

// groups are the findings over the nodes: the most severe first, then that of most nodes.
func groups(nodes []*Node, titles map[string]string) []Group {
	ids := []string{}
	for _, n := range nodes {
		for _, f := range n.Findings {
			if !slices.Contains(ids, f.ID) {
				ids = append(ids, f.ID)
			}
		}
	}
	x := newIndex(nodes)
	all := []Group{}
	for _, id := range ids {
		all = append(all, x.group(id, cmp.Or(titles[id], id)))
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(len(b.Sick), len(a.Sick)), strings.Compare(a.ID, b.ID))
	})
	return all
}

// group is one of them.
func (x *index) group(id, title string) Group {
	g := Group{ID: id, Title: title, Shared: []Separation{}, First: []Advice{}}
	sick, healthy := newSet(len(x.nodes)), newSet(len(x.nodes))
	about := map[netip.AddrPort]int{}
	for i, n := range x.nodes {
		f := n.finding(id)
		switch {
		case f != nil:
			sick.add(i)
			g.add(n, f)
			for _, a := range f.About {
				about[a]++
			}
		case n.Checked[id] == diagnose.OK:
			healthy.add(i)
		}
	}
	g.Checked = sick.count() + healthy.count()
	g.Subjects = subjects(about)
	slices.SortStableFunc(g.First, func(a, b Advice) int { return cmp.Compare(b.Nodes, a.Nodes) })
	if shared, unsure := x.separate(sick, healthy); shared != nil {
		g.Shared = shared
	} else {
		g.Unsure = unsure
	}
	return g
}

// add adds a node with a finding.
func (g *Group) add(n *Node, f *Finding) {
	if len(g.Sick) == 0 || f.Severity > g.Severity {
		g.Severity = f.Severity
		g.Example = Example{n.Name, n.Source, f.Title, f.Netns}
	}
	g.Sick = append(g.Sick, n.Name)
	if f.Confidence == "certain" {
		g.Certain++
	}
	if f.First == "" {
		return
	}
	i := slices.IndexFunc(g.First, func(a Advice) bool { return a.Title == f.First })
	if i < 0 {
		i = len(g.First)
		g.First = append(g.First, Advice{Title: f.First, Command: f.Command})
	}
	g.First[i].Nodes++
	if g.First[i].Command != f.Command {
		g.First[i].Command = ""
	}
}

// mostSubjects bounds the ends of connections of a group.
const mostSubjects = 5

// subjects are the ends that findings of several nodes are about.
func subjects(about map[netip.AddrPort]int) (all []Subject) {
	for a, n := range about {
		if n > 1 {
			all = append(all, Subject{a, n})
		}
	}
	slices.SortFunc(all, func(a, b Subject) int { return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), a.About.Compare(b.About)) })
	return all[:min(len(all), mostSubjects)]
}

// rank orders the nodes by what is wrong with them.
func rank(nodes []*Node, out []Outlier) []Ranked {
	byNode := map[string][]string{}
	for _, o := range out {
		byNode[o.Node] = append(byNode[o.Node], o.Measure)
	}
	all := []Ranked{}
	for _, n := range nodes {
		r := Ranked{Node: n.Name, Source: n.Source, Findings: []string{}, Outliers: listed(byNode[n.Name])}
		for _, f := range n.Findings {
			if f.Severity >= diagnose.Warning {
				r.Findings = append(r.Findings, f.ID)
			}
		}
		if len(r.Findings) == 0 && len(r.Outliers) == 0 {
			continue
		}
		if worst := n.worst(); worst != 0 {
			r.Severity = &worst
		}
		all = append(all, r)
	}
	severity := func(r Ranked) diagnose.Severity {
		if r.Severity == nil {
			return 0
		}
		return *r.Severity
	}
	slices.SortStableFunc(all, func(a, b Ranked) int {
		return cmp.Or(cmp.Compare(severity(b), severity(a)), cmp.Compare(len(b.Findings), len(a.Findings)), cmp.Compare(len(b.Outliers), len(a.Outliers)))
	})
	return all
}

// summarize says in a sentence what is wrong on how many nodes.
func (r *Report) summarize() {
	if len(r.Groups) == 0 || r.Groups[0].Severity < diagnose.Warning {
		return
	}
	worst := r.Groups[0]
	what := fmt.Sprintf("%s of %s lose connections now", units.Count(r.Critical), units.Plural(r.Nodes, "node", "nodes"))
	if r.Critical == 1 {
		what = fmt.Sprintf("1 of %s loses connections now", units.Plural(r.Nodes, "node", "nodes"))
	}
	if r.Critical == 0 {
		what = fmt.Sprintf("%s of %s will, if nothing changes", units.Count(r.Warnings), units.Plural(r.Nodes, "node", "nodes"))
		what = strings.Replace(what, " will,", " will lose connections,", 1)
	} else if r.Warnings > 0 {
		what += fmt.Sprintf(", %s more will", units.Count(r.Warnings))
	}
	s := &Summary{Text: fmt.Sprintf("%s; on %s: %s", what, units.Plural(len(worst.Sick), "node", "nodes"), worst.Title)}
	if len(worst.First) > 0 {
		a := worst.First[0]
		s.First = fmt.Sprintf("%s, on %s", a.Title, units.Plural(a.Nodes, "node", "nodes"))
		if a.Command != "" {
			s.First += fmt.Sprintf(" (there: %s)", a.Command)
		}
	}
	r.Summary = s
}

// Unfinished reports whether something could not be read or checked, which must not be taken for health.
func (r *Report) Unfinished() bool {
	return len(r.Unread)+len(r.Missing)+len(r.Damaged)+len(r.Incomplete) > 0 || r.Nodes == 0
}
