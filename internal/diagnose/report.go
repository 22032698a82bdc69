package diagnose

import (
	"fmt"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
)

// ReportSchema names the JSON form of a Report.
const ReportSchema = "natkit.doctor/1"

// Report is what doctor has to say about one recording.
type Report struct {
	Schema  string    `json:"schema"`
	TakenAt time.Time `json:"taken_at"`
	Kernel  string    `json:"kernel"`
	// Netns is the namespace's name; empty for the one natkit runs in.
	Netns      string `json:"netns,omitempty"`
	NetnsInode uint64 `json:"netns_inode"`
	// Seconds between the two samples that were compared.
	Seconds float64 `json:"window_seconds"`
	// Checks has one line for each rule, in a fixed order.
	Checks []Check `json:"checks"`
	// Findings are sorted, most severe first.
	Findings []Finding `json:"findings"`
	// Unread lists what could not be read, and why.
	Unread []Unread `json:"unread"`
	// Incomplete is what kept the look from being whole; empty where every check that
	// was asked for came to a result.
	Incomplete []Missing `json:"incomplete"`
	// Drops, Profile and SYNs are what was traced between the two samples, the lists
	// cut to what matters most; nil where nothing was.
	Drops   *snapshot.Drops   `json:"drops,omitempty"`
	Profile *snapshot.Profile `json:"profile,omitempty"`
	SYNs    *snapshot.SYNs    `json:"syns,omitempty"`
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

// Check tells what one rule looked at.
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
}

// Missing is one cause of a look that is not whole.
type Missing struct {
	Why string `json:"why"`
	// Checks are the IDs of those that came to no result for it; none where the look as
	// a whole was cut short.
	Checks []string `json:"checks"`
}

// CutShort notes that the look ended after Seconds of those that were wanted.
func (r *Report) CutShort(wanted time.Duration) {
	why := fmt.Sprintf("interrupted after %.1f s of %.1f s", r.Seconds, wanted.Seconds())
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
