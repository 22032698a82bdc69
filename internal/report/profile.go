package report

import (
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// ProfileSchema names the JSON form of a profile.
const ProfileSchema = "natkit.profile/1"

// ProfileDocument is what the CPUs spent their time on.
type ProfileDocument struct {
	Schema string `json:"schema"`
	Kernel string `json:"kernel_release"`
	*snapshot.Profile
}

// Text writes shares first, then functions.
func (d ProfileDocument) Text(w io.Writer, style Style) error {
	p, profile := &printer{w: w, style: style}, d.Profile
	p.printf("%s over %s s, Linux %s: %d samples per second of each by %s",
		units.Plural(profile.CPUs, "CPU", "CPUs"), units.Fixed(profile.Seconds, 1), d.Kernel, profile.Hz, profile.Event)
	if profile.Lost > 0 {
		p.line(style.Paint(Warn, units.Count(profile.Lost)+" samples were lost and are in none of these figures: the kernel gave no stack for them, or natkit's table was full"))
	}
	p.blank()
	p.table(profileShares(profile))
	if sends(profile) {
		p.line(style.Paint(Dim, "conntrack, NAT and rules outside packet receive worked on what this host sends"))
	}
	if profile.Samples == 0 || len(profile.Functions) == 0 {
		return p.err
	}
	p.blank()
	p.table(profileFunctions(profile))
	return p.err
}

// sends reports whether netfilter has samples elsewhere than in packet receive.
func sends(p *snapshot.Profile) bool {
	for _, c := range p.Classes {
		kind, _, _ := strings.Cut(c.Name, " ")
		if !c.Receive && c.Samples > 0 && (kind == "conntrack" || kind == "NAT" || kind == "rules") {
			return true
		}
	}
	return false
}

// profileShares has a row for each kind of work that there was.
func profileShares(p *snapshot.Profile) *Table {
	t := &Table{Columns: []Column{{Head: "of all CPU time", Min: 36}, {Head: "share", Right: true}, {Head: "of these", Right: true}, {Head: "samples", Right: true}}}
	all := p.Samples + p.Idle
	sum := func(tone Tone, name string, samples uint64) {
		t.Cells(Cell{name, tone}, Cell{share(samples, all), tone}, Cell{}, Cell{units.Count(samples), tone})
	}
	sum(Bold, "busy", p.Samples)
	for _, part := range []struct {
		name    string
		receive bool
		samples uint64
	}{{"  packet receive", true, p.Receive}, {"  not in packet receive", false, p.Samples - p.Receive}} {
		sum(Bold, part.name, part.samples)
		for _, c := range p.Classes {
			if c.Receive == part.receive && c.Samples > 0 {
				t.Row("    "+c.Name, share(c.Samples, all), share(c.Samples, part.samples), units.Count(c.Samples))
			}
		}
	}
	sum(Dim, "idle", p.Idle)
	return t
}

// profileFunctions shows shares of the busy time.
func profileFunctions(p *snapshot.Profile) *Table {
	t := &Table{Columns: []Column{{Head: "self", Right: true}, {Head: "total", Right: true}, {Head: "of busy time in"}, {Head: "kind of work"}}}
	for _, f := range p.Functions {
		name := f.Function
		if f.Module != "" {
			name += " [" + f.Module + "]"
		}
		t.Row(share(f.Self, p.Samples), share(f.Total, p.Samples), name, f.Class)
	}
	return t
}
