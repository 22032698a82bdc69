package diagnose

import (
	"sort"

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
	return []Rule{
		ctTableFull, ctTableNearFull, ctEarlyDrop, ctChainCap, ctEstablishedLeak, ctFlood,
		snatPortsExhausted, snatPortsNear, snatRace, snatPortReuseFast, lvsAffinity, lvsConnReuse, udpStale, dnatUnreachable, twPAWSReject, twSeqReject, twRecycle, dropsUnexplained,
	}
}

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
		Findings:   []Finding{},
		Unread:     []Unread{},
		Drops:      mainDrops(rec.Drops),
		Profile:    mainProfile(rec.Profile),
		SYNs:       mainSYNs(rec.SYNs),
	}
	for _, rule := range rules {
		finding, check := rule.Check(rec)
		check.ID, check.Title = rule.ID, rule.Title
		if finding != nil {
			finding.ID = rule.ID
			check.State = Found
			r.Findings = append(r.Findings, *finding)
		}
		r.Checks = append(r.Checks, check)
	}
	r.Incomplete = incomplete(r.Checks)
	sort.SliceStable(r.Findings, func(i, j int) bool { return r.Findings[i].Severity > r.Findings[j].Severity })
	for _, p := range last.Parts {
		if p.Error != "" {
			r.Unread = append(r.Unread, Unread{What: p.Name, Why: p.Error})
		}
	}
	return r
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
