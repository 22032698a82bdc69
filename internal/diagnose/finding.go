// Package diagnose holds the rules that turn recordings into findings. Rules
// are pure: same recording, same findings.
package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// Severity orders findings; the greater, the worse.
type Severity int

const (
	// Notice is worth knowing and needs no action.
	Notice Severity = iota + 1
	// Warning will become a failure if nothing changes.
	Warning
	// Critical: connections are being lost now.
	Critical
)

var severityNames = map[Severity]string{Notice: "notice", Warning: "warning", Critical: "critical"}

func (s Severity) String() string { return severityNames[s] }

// MarshalText makes the JSON form the name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name back.
func (s *Severity) UnmarshalText(text []byte) error {
	for severity, name := range severityNames {
		if name == string(text) {
			*s = severity
			return nil
		}
	}
	return fmt.Errorf("severity %q: expected notice, warning or critical", text)
}

// Finding is one fault, or one that is coming.
type Finding struct {
	// ID is stable, kebab-case: ct-table-full.
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Title    string   `json:"title"`
	// Confidence is "certain" (reported by the kernel itself), "likely" or "possible".
	Confidence  string     `json:"confidence"`
	Evidence    []Evidence `json:"evidence"`
	Cause       string     `json:"cause"`
	Consequence string     `json:"consequence"`
	Remedies    []Remedy   `json:"remedies"`
	// SinceSeconds is how long it has lasted at least when the recording ends; 0 where that
	// is not known.
	SinceSeconds float64 `json:"since_seconds,omitempty"`
	// About are ends of the connections that it is about, port 0 for all of an address; none where it
	// is about the whole host.
	About []netip.AddrPort `json:"about,omitempty"`
	// Place is where connections are lost, in a few words; empty where that is not known.
	Place string `json:"place,omitempty"`
	// Names are what the host calls the addresses of the finding, in the order in which they come; see Report.Names.
	Names []names.Mention `json:"-"`
	// Decided is true where the place itself says what to do, and not a finding about the host.
	Decided bool `json:"-"`
	// services are what service-unanswered is made of; explain makes one of what is left of them.
	services []failing
	// isWhy reports whether it is why a service fails, of rules that know more than ends; nil of others.
	isWhy func(*failing) bool
}

// explains reports whether f may be why connections fail that another finding is about.
func (f *Finding) explains(other *Finding) bool {
	return len(f.About) == 0 || slices.ContainsFunc(f.About, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(other.About, func(b netip.AddrPort) bool {
			redirected := !a.Addr().IsValid() && a.Port() != 0 // to this host, by whichever address
			return (a.Addr() == b.Addr() || redirected) && (a.Port() == b.Port() || a.Port() == 0 || b.Port() == 0)
		})
	})
}

// Evidence is one observed value and where it was read.
type Evidence struct {
	What string `json:"what"`
	// Value is a number (int64, float64) or a string.
	Value  any    `json:"value"`
	Unit   string `json:"unit,omitempty"`
	Source string `json:"source"`
}

// Remedy is one way out. Without Changes it is advice.
type Remedy struct {
	Title string `json:"title"`
	// Automatic remedies may be applied by --fix; the others are advice only.
	Automatic bool          `json:"automatic"`
	Changes   []tune.Change `json:"changes,omitempty"`
	// Commands make the changes on the host of a recording, where --fix does not reach.
	Commands []string `json:"commands,omitempty"`
	Predicts string   `json:"predicts,omitempty"`
	Cost     string   `json:"cost,omitempty"`
	Risk     string   `json:"risk,omitempty"`
}

// ReportSchema names the JSON form of a Report.
const ReportSchema = "natkit.doctor/1"

// Report is doctor's result for one recording.
type Report struct {
	Schema  string    `json:"schema"`
	TakenAt time.Time `json:"taken_at"`
	Kernel  string    `json:"kernel"`
	// Netns is the namespace's name; empty for the one natkit runs in.
	Netns      string `json:"netns,omitempty"`
	NetnsInode uint64 `json:"netns_inode"`
	// Owner is whose it is, where all namespaces were examined; nil of natkit's own.
	Owner *snapshot.Owner `json:"owner,omitempty"`
	// Compared is which two snapshots of a recording of 'natkit record' these are; nil of anything else.
	Compared *snapshot.Compared `json:"compared,omitempty"`
	// SinceStart is true where texts of one time alone were read: Seconds is then the time since the host started, 0
	// where that is not known.
	SinceStart bool `json:"since_start,omitempty"`
	// SinceNstat is true where the counters of TCP, UDP and IP are of the time since nstat ran before.
	SinceNstat bool `json:"since_nstat,omitempty"`
	// Seconds between the two samples that were compared.
	Seconds float64 `json:"window_seconds"`
	// Checks has one line for each rule, in a fixed order.
	Checks []Check `json:"checks"`
	// Summary is nil where no finding is worse than a notice.
	Summary *Summary `json:"summary,omitempty"`
	// Findings are sorted, most severe first.
	Findings []Finding `json:"findings"`
	// Unread lists what could not be read, and why.
	Unread []Unread `json:"unread"`
	// Incomplete is what kept the diagnosis from being complete; empty if every check that
	// was asked for came to a result.
	Incomplete []Missing `json:"incomplete"`
	// Elsewhere is true of a recording that was read from a file: commands are for that host.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// Defects are steps of natkit that failed beside the checks.
	Defects []string `json:"defects,omitempty"`
	// Lost is what a file that is truncated or damaged does not have: checks passed on the rest of it.
	Lost []string `json:"lost,omitempty"`
	// Drops, Profile, SYNs and Followed are what was traced between the two samples, the
	// lists cut to what matters most; nil where nothing was.
	Drops    *snapshot.Drops    `json:"drops,omitempty"`
	Profile  *snapshot.Profile  `json:"profile,omitempty"`
	SYNs     *snapshot.SYNs     `json:"syns,omitempty"`
	Followed *snapshot.Followed `json:"followed,omitempty"`
	// Dropped is what a flight recorder counted of the kernel's drops between them, with the flows of those whose headers it
	// kept; nil of anything else.
	Dropped *snapshot.Drops `json:"dropped,omitempty"`
	// Names are what the host calls the addresses and network namespaces in the report; nil where nothing is known.
	Names *snapshot.Names `json:"names,omitempty"`
	// Others is what the other network namespaces show; nil where one namespace was asked for.
	Others *Others `json:"other_netns,omitempty"`
}

// State is how a check ended.
type State string

const (
	// OK: the rule had its data and found nothing.
	OK State = "ok"
	// Found: there is a finding of this id.
	Found State = "finding"
	// NotChecked: the rule lacked data; it does not guess.
	NotChecked State = "not-checked"
)

// Check is the result of one rule.
type Check struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	State State  `json:"state"`
	// Why gives the values behind the state in one line.
	Why string `json:"why"`
	// Absent is whether what the rule is about is not there at all, such as IPVS: the
	// state is OK, and says nothing about the rest of the host.
	Absent bool `json:"absent,omitempty"`
	// NotAsked is whether the rule's data is only read when asked for (--trace), and was
	// not: nothing is missing then.
	NotAsked bool `json:"not_asked,omitempty"`
	// Defect is whether the rule itself failed: Why says where, and what to do about it.
	Defect bool `json:"defect,omitempty"`
}

// Missing is one cause of an incomplete diagnosis.
type Missing struct {
	Why string `json:"why"`
	// Checks are the IDs of those that came to no result for it; none where the recording as
	// a whole was cut short.
	Checks []string `json:"checks"`
}

// cutShort notes that the recording ended after Seconds of the wanted ones.
func (r *Report) cutShort(wanted float64) {
	why := fmt.Sprintf("interrupted after %.1f s of %.1f s", r.Seconds, wanted)
	r.Incomplete = append([]Missing{{Why: why, Checks: []string{}}}, r.Incomplete...)
}

// incomplete groups the checks that came to no result by why.
func incomplete(checks []Check) []Missing {
	missing := []Missing{}
	for _, c := range checks {
		if c.State != NotChecked || c.NotAsked {
			continue
		}
		i := slices.IndexFunc(missing, func(m Missing) bool { return m.Why == c.Why })
		if i < 0 {
			i = len(missing)
			missing = append(missing, Missing{Why: c.Why})
		}
		missing[i].Checks = append(missing[i].Checks, c.ID)
	}
	return missing
}

// Unread is one source that could not be read.
type Unread struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Plan collects the changes of the automatic remedies of all findings. Where two
// want the same thing, the larger value serves both.
func (r *Report) Plan(origin string) tune.Plan {
	plan := tune.Plan{Origin: origin}
	at := map[string]int{}
	for _, f := range r.Findings {
		for _, m := range f.Remedies {
			if !m.Automatic {
				continue
			}
			for _, c := range m.Changes {
				i, seen := at[c.Key()]
				switch {
				case !seen:
					at[c.Key()] = len(plan.Changes)
					plan.Changes = append(plan.Changes, c)
				case larger(c.After, plan.Changes[i].After):
					plan.Changes[i] = c
				}
			}
		}
	}
	return plan
}

func larger(a, b string) bool {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	return errX == nil && errY == nil && x > y
}

// losses is false where the counters are not there or cannot be compared.
func (t *table) losses() (snapshot.TrackerLosses, bool) {
	grown := t.rec.Last().ConntrackStat.Grown(t.rec.First().ConntrackStat)
	_, ok := grown["drop"]
	lines, _ := t.logLines()
	return snapshot.DecodeTracker(grown, lines > 0), ok
}

// lossText is for the line of a check.
func lossText(l snapshot.TrackerLosses) string {
	noRoom := "dropped for want of room"
	if l.OrInvalid > 0 {
		noRoom += " or as INVALID"
	}
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{
		{l.NoRoom, noRoom}, {l.Clashes, "lost as their tuple was taken"},
		{l.Chains, "lost to long hash chains"}, {l.Merged, "clashes merged without a loss"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", units.Count(p.n), p.what))
		}
	}
	if len(parts) == 0 {
		return "no insertion failed"
	}
	return strings.Join(parts, ", ")
}

// deleteCommand is the command line that deletes entries of the namespace that was
// examined; it works as it is printed.
func deleteCommand(rec *snapshot.Recording, filter string) string {
	return "natkit conntrack delete " + NamespaceFlag(rec.Last().Netns.Name) + filter
}

// NamespaceFlag is the flag that leads to a namespace by the name that natkit gave it:
// that of ip-netns(8), or "pid 77"; others (a lab's) have no flag.
func NamespaceFlag(name string) string {
	if pid, ok := strings.CutPrefix(name, "pid "); ok {
		return "--pid " + pid + " "
	}
	if name == "" || name[0] == '-' || strings.ContainsAny(name, " /'\"\\$`;&|<>()*?[]#~\n") {
		return ""
	}
	return "--netns " + name + " "
}

// entryFilter is the filter of `natkit conntrack delete` for the entries of what a host asks a service for.
func entryFilter(protocol string, from netip.Addr, service netip.AddrPort) string {
	filter := fmt.Sprintf("-p %s -s %s -d %s", protocol, from, service.Addr())
	if service.Port() != 0 {
		filter += fmt.Sprintf(" --dport %d", service.Port())
	}
	return filter
}

// slashed is the name of an interface within that of a sysctl, as sysctl(8) takes it: its dots are slashes.
func slashed(device string) string { return strings.ReplaceAll(device, ".", "/") }

// settable is the name of a sysctl of forwarding as sysctl(8) takes it.
func settable(name string) string {
	const before, after = "net.ipv4.conf.", ".forwarding"
	if !strings.HasPrefix(name, before) || !strings.HasSuffix(name, after) {
		return name
	}
	return before + slashed(strings.TrimSuffix(strings.TrimPrefix(name, before), after)) + after
}

// ipFor is ip(8) for the version of an address.
func ipFor(address netip.Addr) string {
	if address.Is6() {
		return "ip -6"
	}
	return "ip"
}

// where names the namespace that a command line belongs into; empty for the one that
// natkit runs in.
func where(rec *snapshot.Recording) string {
	if name := rec.Last().Netns.Name; name != "" {
		return " (in the network namespace " + name + ")"
	}
	return ""
}
