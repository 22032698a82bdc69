package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// Summary is a report in a sentence: what is wrong, where, since when, and what to do first.
type Summary struct {
	// Finding is the ID of the worst one, Cause that of another one that may explain it.
	Finding string `json:"finding"`
	Cause   string `json:"cause,omitempty"`
	Text    string `json:"text"`
	// First is the remedy to begin with.
	First string `json:"first,omitempty"`
}

// causes are the findings of what leaves translated connections without an answer; others beside
// service-unanswered have nothing to do with it.
var causes = []string{
	"ct-table-full", "ct-chain-cap", "snat-ports-exhausted", "dnat-unreachable", "dnat-filtered", "snat-filtered", "forwarding-off",
	"snat-address", "notrack-nat", "udp-stale-blackhole", "kube-no-endpoints", "rp-filter", "pmtu-blackhole",
	"bridge-filtered", "qdisc-drops", "interface-drops", "ipsec-drops", "ttl-expired", "ct-invalid", "idle-killed", "helper-missing", "fragments-dropped", "socket-overflow",
}

// summarize returns nil where nothing needs an action.
func summarize(findings []Finding, netns string) *Summary {
	if len(findings) == 0 || findings[0].Severity < Warning {
		return nil
	}
	worst := &findings[0]
	s := &Summary{Finding: worst.ID, Text: worst.Title}
	if netns != "" {
		s.Text += fmt.Sprintf(", in the network namespace %s", netns)
	}
	if worst.SinceSeconds > 0 {
		s.Text += fmt.Sprintf(", for %s at least", units.Roughly(worst.SinceSeconds))
	}
	if worst.Place != "" {
		s.Text += ": " + worst.Place
	}
	begin := worst
	if worst.ID == "service-unanswered" {
		if cause := causeOf(worst, findings); cause != nil {
			if !worst.Decided {
				begin = cause
			}
			s.Cause = cause.ID
			s.Text += "; " + cause.Title
		}
	}
	if len(begin.Remedies) > 0 {
		s.First = begin.Remedies[0].Title
		first, flag := begin.Remedies[0], NamespaceFlag(netns)
		switch {
		case len(first.Commands) > 0:
			s.First += fmt.Sprintf(" (on that host: %s)", strings.Join(first.Commands, "; "))
		case first.Automatic && (flag != "" || netns == ""):
			s.First += fmt.Sprintf(" (natkit doctor %s--fix)", flag)
		}
	}
	return s
}

// addCommands gives remedies what makes their changes on another host: --fix would change this one. netns is the network
// namespace there.
func addCommands(findings []Finding, netns string) {
	for _, f := range findings {
		for i := range f.Remedies {
			f.Remedies[i].Commands = commandsFor(&f.Remedies[i], netns)
		}
	}
}

// ofHost are the sysctls that hold for all network namespaces, and can be written in the initial one alone
// (nf_conntrack_standalone.c).
var ofHost = []string{snapshot.ConntrackMax, snapshot.ConntrackBuckets, "net.nf_conntrack_max"}

func commandsFor(r *Remedy, netns string) (all []string) {
	for _, c := range r.Changes {
		command := "sysctl -w " + ShellWord(c.Target+"="+c.After)
		switch flag := NamespaceFlag(netns); {
		case c.Kind == tune.Sysctl && !slices.Contains(ofHost, c.Target):
			all = append(all, enter(netns)+command)
		case c.Kind == tune.Sysctl:
			all = append(all, command)
		case flag == "" && netns != "":
			return nil
		default:
			return []string{"natkit doctor " + flag + "--fix"} // options of rules: their lines are in the remedy
		}
	}
	return all
}

// enter is what runs a command in a network namespace.
func enter(netns string) string {
	pid, isProcess := strings.CutPrefix(netns, "pid ")
	switch {
	case netns == "":
		return ""
	case isProcess:
		return "nsenter --net --target " + ShellWord(pid) + " "
	}
	return "ip netns exec " + ShellWord(netns) + " "
}

// plainWord is what a shell takes as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// ShellWord makes one word of text for a POSIX shell: names in a recording are whoever's wrote it.
func ShellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// causeOf is the finding that may be why connections fail, one about them before one about the host; nil
// where there is none.
func causeOf(outcome *Finding, findings []Finding) (cause *Finding) {
	for i := range findings {
		f := &findings[i]
		if f.Severity < Warning || !slices.Contains(causes, f.ID) || !f.explains(outcome) {
			continue
		}
		if len(f.About) > 0 {
			return f
		}
		if cause == nil {
			cause = f
		}
	}
	return cause
}

// longestQuiet is the time in seconds after which the kernel, which limits its lines about a
// full table, would have repeated one.
const longestQuiet = 60

// loggedSince returns how many seconds before the end of the recording the kernel began to log
// lines of that kind without a pause; 0 where it did not.
func loggedSince(rec *snapshot.Recording, is func(snapshot.LogLine) bool) float64 {
	last := rec.Last()
	if rec.NoUptime {
		return 0
	}
	since, next := 0.0, last.UptimeSeconds
	for _, l := range slices.Backward(last.KernelLog) {
		if !is(l) {
			continue
		}
		if next-l.UptimeSeconds > longestQuiet {
			break
		}
		since, next = last.UptimeSeconds-l.UptimeSeconds, l.UptimeSeconds
	}
	return max(0, since)
}
