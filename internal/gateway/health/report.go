package health

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Report is what a checker leaves for others to read.
type Report []Reported

// Reported is one target.
type Reported struct {
	At   netip.AddrPort `json:"at"`
	Path string         `json:"http,omitempty"`
	// Through is the interface by which it has to answer.
	Through string    `json:"through,omitempty"`
	Zone    string    `json:"zone,omitempty"`
	Up      bool      `json:"up"`
	Since   time.Time `json:"since,omitzero"`
	Error   string    `json:"error,omitempty"`
}

// Report has the states of all targets, in their order.
func (c *Checker) Report() (all Report) {
	for t, s := range c.targets {
		all = append(all, Reported{t.At, t.Path, t.Through, t.Zone, s.Up, s.Since, s.Error})
	}
	slices.SortFunc(all, func(a, b Reported) int {
		if d := a.At.Compare(b.At); d != 0 {
			return d
		}
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Through, b.Through), strings.Compare(a.Zone, b.Zone))
	})
	return all
}

// Down are the interfaces through which a target is down, and why.
func (r Report) Down() map[string]string {
	down := map[string]string{}
	for _, one := range r {
		if one.Through != "" && !one.Up {
			down[one.Through] = one.Name() + ": " + State{Error: one.Error}.Why()
		}
	}
	return down
}

// DownSince are the interfaces through which a target is down, and since when, where that is known.
func (r Report) DownSince() map[string]time.Time {
	since := map[string]time.Time{}
	for _, one := range r {
		if one.Through != "" && !one.Up {
			since[one.Through] = one.Since
		}
	}
	return since
}

// Name is the address that is asked, with its port where it has one.
func (r *Reported) Name() string {
	if r.At.Port() == 0 {
		return r.At.Addr().String()
	}
	return r.At.String()
}

// ParseReport reads what Report became in JSON; nil where it is none.
func ParseReport(text []byte) Report {
	var r Report
	if json.Unmarshal(text, &r) != nil {
		return nil
	}
	return r
}

// State is that of a target; false where the report does not have it.
func (r Report) State(t Target) (State, bool) {
	i := slices.IndexFunc(r, func(one Reported) bool {
		return one.At == t.At && one.Path == t.Path && one.Through == t.Through && one.Zone == t.Zone
	})
	if i < 0 {
		return State{}, false
	}
	return State{Up: r[i].Up, Since: r[i].Since, Error: r[i].Error}, true
}
