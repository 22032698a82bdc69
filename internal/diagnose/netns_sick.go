package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Others is what a survey of the other network namespaces shows.
type Others struct {
	snapshot.Survey
	Sick []SickNetns `json:"sick"`
}

// SickNetns is a namespace with what is wrong there, as far as its counters and one dump show: without
// remedies, which take a full examination.
type SickNetns struct {
	Inode uint64         `json:"netns_inode"`
	Owner snapshot.Owner `json:"owner"`
	// Whose is the owner in words; Command examines the namespace in full.
	Whose    string    `json:"whose"`
	Command  string    `json:"command"`
	Findings []Finding `json:"findings"`
}

// rulesOfOthers need no more than a survey reads. Those about the table must not see Flows, which have
// no rate of new connections.
func rulesOfOthers() []ruleOfOthers {
	return []ruleOfOthers{
		{"service-unanswered", true, checkServices},
		{"ct-table-full", false, given(readTable, (*table).checkTableFull)},
		{"ct-table-near-full", false, given(readTable, (*table).checkTableNearFull)},
		{"ct-early-drop", false, given(readTable, (*table).checkEarlyDrop)},
		{"ct-chain-cap", false, given(readTable, (*table).checkChainCap)},
		{"snat-race", true, checkClashes},
	}
}

// ruleOfOthers is a rule, and whether it is to see Flows.
type ruleOfOthers struct {
	id    string
	flows bool
	check func(*snapshot.Recording) (*Finding, Check)
}

// checkClashes: connections were lost because their tuple was taken. Whether a race or missing ports
// are the cause takes the ports that are in use. Where no source is translated the same counters grow
// by copies of packets, as of multicast.
func checkClashes(rec *snapshot.Recording) (*Finding, Check) {
	t, end := readTable(rec)
	if t == nil {
		return nil, end
	}
	l, ok := t.losses()
	if !ok || rec.Flows == nil {
		return unknown(t.noCounters())
	}
	translates := slices.ContainsFunc(rec.Flows.Services.All, func(s snapshot.Service) bool { return s.Kind == snapshot.ServiceSNAT })
	if l.Clashes < fewestClashes || l.Blurred || !translates {
		return passed(lossText(l))
	}
	f := worded("netns-sick clashes", t.counters("insert_failed", "drop", "clash_resolve"), nil, units.Count(l.Clashes), t.rec.Seconds())
	return f, Check{Why: lossText(l)}
}

// judgeOthers is nil where no other namespace was read.
func judgeOthers(o *snapshot.Others) *Others {
	if o == nil {
		return nil
	}
	judged := &Others{Survey: o.Survey, Sick: []SickNetns{}}
	for i := range o.Suspects {
		s := &o.Suspects[i]
		if found := findingsOf(s.Recording); len(found) > 0 {
			judged.Sick = append(judged.Sick, SickNetns{
				Inode: s.Recording.Last().Netns.Inode, Owner: s.Owner, Whose: s.Owner.String(), Command: examining(s.Owner), Findings: found,
			})
		}
	}
	slices.SortStableFunc(judged.Sick, func(a, b SickNetns) int { return int(b.severity()) - int(a.severity()) })
	return judged
}

// severity is the worst of what was found; findings are sorted.
func (s *SickNetns) severity() Severity { return s.Findings[0].Severity }

// findingsOf returns what needs action and is more than possible, the worst first: so little is read of
// the namespace that the rest would be guesses.
func findingsOf(rec *snapshot.Recording) (all []Finding) {
	bare := *rec
	bare.Flows = nil
	for _, rule := range rulesOfOthers() {
		of := &bare
		if rule.flows {
			of = rec
		}
		if f, _ := rule.check(of); f != nil && f.Severity > Notice && f.Confidence != "possible" {
			f.ID, f.Remedies = rule.id, []Remedy{}
			all = append(all, *f)
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	return all
}

// examining is the command line that examines a namespace.
func examining(o snapshot.Owner) string {
	flag := strings.TrimSpace(NamespaceFlag(o.Name()))
	switch {
	case flag == "" && o.PID != 0 && !o.Held: // its name is none for a shell
		flag = fmt.Sprintf("--pid %d", o.PID)
	case flag == "":
		return "nsenter --net=" + quoted(o.Path) + " natkit doctor"
	}
	return "natkit doctor " + flag
}

// quoted is a word for a shell.
func quoted(text string) string {
	if strings.ContainsAny(text, " \t\n'\"\\$`;&|<>()*?[]#~!") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}

// checkOthers: another network namespace of the host has a fault, which this one does not show.
func checkOthers(rec *snapshot.Recording) (*Finding, Check) {
	o := judgeOthers(rec.Others)
	switch {
	case o == nil:
		return nil, Check{State: NotChecked, NotAsked: true, Why: "one network namespace was asked for, or a bundle"}
	case o.NotBegun:
		return unknown(o.Error)
	case len(o.Sick) > 0:
		return o.finding(), Check{Why: o.String()}
	case o.NotLoaded:
		return nil, Check{State: OK, Absent: true, Why: snapshot.NotLoaded}
	case o.Refused > 0 || o.Error != "":
		return unknown(o.String())
	case o.Unreached > 0 || o.SearchCut:
		return nil, Check{State: NotChecked, NotAsked: true, Why: o.String()}
	}
	return passed(o.String())
}

// String counts the namespaces.
func (o *Others) String() string {
	parts := []string{fmt.Sprintf("%s examined", units.Count(o.Examined))}
	if o.Examined < o.Found {
		parts[0] = fmt.Sprintf("%s of %s examined", units.Count(o.Examined), units.Count(o.Found))
	}
	for _, p := range []struct {
		n    int64
		what string
	}{
		{int64(len(o.Sick)), "with faults"}, {o.Unreached, "not reached in time"},
		{o.Unlisted, "by their counters only, for want of time"}, {o.Refused, "could not be read"},
	} {
		if p.n > 0 {
			parts = append(parts, units.Count(p.n)+" "+p.what)
		}
	}
	if o.SearchCut {
		parts = append(parts, "the search took too long to find all")
	}
	text := strings.Join(parts, ", ")
	if o.Error != "" {
		text += ": " + o.Error
	}
	return text
}

func (o *Others) finding() *Finding {
	f := worded("netns-sick", nil, nil)
	first := &o.Sick[0]
	f.Severity, f.Confidence = first.severity(), first.Findings[0].Confidence
	var causes, names []string
	for i := range o.Sick {
		s := &o.Sick[i]
		var titles []string
		for _, one := range s.Findings {
			titles = append(titles, one.Title)
		}
		if i < mostListed {
			f.Evidence = append(f.Evidence, Evidence{What: s.Whose, Value: strings.Join(titles, "; "), Source: s.Command})
		}
		if i < mostShown {
			names = append(names, s.Whose)
		}
		causes = once(causes, s.Findings[0].Cause)
	}
	f.Cause = strings.Join(causes[:min(len(causes), mostShown)], "; or ")
	f.Title = fmt.Sprintf("%s: %s", first.Whose, first.Findings[0].Title)
	f.Remedies = []Remedy{advice("netns-examine", first.Command)}
	if len(o.Sick) > 1 {
		f.Title = fmt.Sprintf("%d other network namespaces have faults: %s", len(o.Sick), strings.Join(names, ", "))
		f.Remedies = []Remedy{advice("netns-examine-all")}
	}
	if more := len(o.Sick) - len(names); more > 0 {
		f.Title += fmt.Sprintf(" and %d more", more)
	}
	return f
}
