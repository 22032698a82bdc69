// Package fleet compares the reports of many nodes: it groups equal findings, ranks the nodes, and names what the nodes with
// a finding share and the others do not. It states counts, and no causes.
package fleet

import (
	"cmp"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lazyregexp"
	"github.com/natkit/natkit/internal/snapshot"
)

// Node is what the comparison keeps of one host: little enough for thousands of them.
type Node struct {
	// Name is that of the collector's list, or else of the bundle, or else of the file.
	Name string
	// Source is the file or directory that it was read from.
	Source string
	// TakenAt is the time of the newest sample by the node's own clock.
	TakenAt time.Time
	// Uptime is the time since the boot BootID, in seconds, at TakenAt.
	Uptime float64
	BootID string
	// Netns are the inodes of the network namespaces that were read, the first one being that of the attributes.
	Netns []uint64
	// Findings are the worst of each id, most severe first.
	Findings []Finding
	// Checked is how each check ended in the namespaces of the node, by its id.
	Checked map[string]diagnose.State
	// Incomplete is why checks that were asked for came to no result; Lost is what a damaged file does not have.
	Incomplete, Lost []string
	// attributes are what the node may share with others; measures are by their place in measured.
	attributes []unique.Handle[Attribute]
	measures   []float64
}

// Finding is a finding of a node.
type Finding struct {
	ID         string
	Severity   diagnose.Severity
	Title      string
	Confidence string
	// First is the first way out, Command what makes it on the node.
	First, Command string
	About          []netip.AddrPort
	// Netns is the network namespace that it is in, empty for the first one.
	Netns string
}

// unknownBoot is what recordings of the lab have.
const unknownBoot = "00000000-0000-0000-0000-000000000000"

// mostAbout bounds the ends of connections that are kept of a finding.
const mostAbout = 8

// NewNode returns a node without anything that was read.
func NewNode(source string) *Node {
	return &Node{Source: source, Checked: map[string]diagnose.State{}}
}

// Add adds a recording of one of the node's network namespaces, with the report about it.
func (n *Node) Add(rec *snapshot.Recording, r *diagnose.Report) {
	last := rec.Last()
	if len(n.Netns) == 0 {
		n.Name = nameOf(rec, n.Source)
		n.TakenAt, n.Uptime, n.BootID = last.TakenAt, last.UptimeSeconds, last.Kernel.BootID
		if n.BootID == unknownBoot || rec.NoUptime {
			n.BootID = ""
		}
		n.attributes, n.measures = attributes(rec), measures(rec)
	}
	if last.TakenAt.After(n.TakenAt) {
		n.TakenAt, n.Uptime = last.TakenAt, last.UptimeSeconds
	}
	netns := ""
	if len(n.Netns) > 0 {
		netns = r.Netns
		if r.Owner != nil {
			netns = r.Owner.Name()
		}
	}
	n.Netns = append(n.Netns, last.Netns.Inode)
	for _, c := range r.Checks {
		n.check(c)
	}
	for i := range r.Findings {
		n.find(&r.Findings[i], netns)
	}
	for _, m := range r.Incomplete {
		n.Incomplete = appendNew(n.Incomplete, m.Why)
	}
	for _, why := range r.Defects {
		n.Incomplete = appendNew(n.Incomplete, why)
	}
	for _, why := range r.Lost {
		n.Lost = appendNew(n.Lost, why)
	}
}

func appendNew(all []string, text string) []string {
	if slices.Contains(all, text) {
		return all
	}
	return append(all, strings.Clone(text))
}

// check keeps how a check ended: one that found nothing in one namespace and could not look in another has not passed.
func (n *Node) check(c diagnose.Check) {
	rank := func(s diagnose.State) int {
		return slices.Index([]diagnose.State{"", diagnose.OK, diagnose.NotChecked, diagnose.Found}, s)
	}
	if rank(c.State) > rank(n.Checked[c.ID]) {
		n.Checked[c.ID] = c.State
	}
}

func (n *Node) find(f *diagnose.Finding, netns string) {
	kept := Finding{ID: f.ID, Severity: f.Severity, Title: strings.Clone(f.Title), Confidence: f.Confidence, About: slices.Clone(f.About[:min(len(f.About), mostAbout)]), Netns: strings.Clone(netns)}
	if len(f.Remedies) > 0 {
		kept.First, kept.Command = strings.Clone(f.Remedies[0].Title), strings.Join(f.Remedies[0].Commands, "; ")
	}
	i := slices.IndexFunc(n.Findings, func(other Finding) bool { return other.ID == f.ID })
	switch {
	case i < 0:
		n.Findings = append(n.Findings, kept)
	case f.Severity > n.Findings[i].Severity:
		n.Findings[i] = kept
	}
	slices.SortStableFunc(n.Findings, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
}

// worst is the severity of the worst finding; 0 where there is none.
func (n *Node) worst() diagnose.Severity {
	if len(n.Findings) == 0 {
		return 0
	}
	return n.Findings[0].Severity
}

// finding returns that of an id, nil where the node has none.
func (n *Node) finding(id string) *Finding {
	for i := range n.Findings {
		if n.Findings[i].ID == id {
			return &n.Findings[i]
		}
	}
	return nil
}

// ownName is how 'natkit snapshot' names its file.
// It is compiled when a file has no other name: most bundles have one.
var ownName = lazyregexp.New(`^natkit-(.+)-\d{8}T\d{6}Z$`)

// stem is the name of a file or directory without what says its form.
func stem(source string) string {
	name := path.Base(strings.ReplaceAll(source, `\`, "/"))
	for _, ending := range []string{".tar.gz", ".tgz", ".tar.xz", ".tar"} {
		if cut, ok := strings.CutSuffix(name, ending); ok && cut != "" {
			return cut
		}
	}
	return name
}

// mostName bounds a name that a bundle claims.
const mostName = 253

// nameOf returns a text in UTF-8, which documents and tables have to be.
func nameOf(rec *snapshot.Recording, source string) string {
	if name := rec.Bundle.Host.Name; name != "" {
		return strings.Clone(strings.ToValidUTF8(name[:min(len(name), mostName)], ""))
	}
	name := stem(source)
	if m := ownName.FindStringSubmatch(name); m != nil {
		name = m[1]
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}
