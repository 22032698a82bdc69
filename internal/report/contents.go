package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Contents is the document of `natkit snapshot --list`.
type Contents struct {
	*snapshot.Contents
	// Whole lists each sysctl, too.
	Whole bool `json:"-"`
}

// Text writes a table for each snapshot: its members and their sizes, and the parts that could not be read.
func (c Contents) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	about := fmt.Sprintf("%s of %s, written by natkit %s; %s unpacked", c.Bundle.Schema, c.Bundle.TakenAt.UTC().Format(timeForm),
		cmp.Or(c.Bundle.WrittenBy, "of that form"), units.Bytes(c.Bytes))
	if c.Bundle.Anonymized {
		about += "; anonymized"
	}
	p.line(clean(about))
	for i := range c.Recordings {
		p.recordingContents(&c.Recordings[i], c.Whole)
	}
	return p.err
}

const timeForm = "2006-01-02 15:04:05 UTC"

func (p *printer) recordingContents(r *snapshot.RecordingContents, whole bool) {
	name := fmt.Sprintf("network namespace %d", r.Netns.Inode)
	if r.Netns.Name != "" {
		name = fmt.Sprintf("network namespace %s (%d)", r.Netns.Name, r.Netns.Inode)
	}
	if r.Owner != nil {
		name += ": " + r.Owner.String()
	}
	p.heading(name)
	for i := range r.Snapshots {
		s := &r.Snapshots[i]
		p.gap()
		p.line(clean(fmt.Sprintf("  snapshot of %s, read in %s", s.TakenAt.UTC().Format(timeForm), units.Seconds(partSeconds(s.Parts)))))
		t := &Table{Indent: 4, Columns: []Column{{Head: "part"}, {Head: "bytes", Right: true}}}
		for _, m := range bySysctl(s.Members, whole) {
			t.Row(m.Name, units.Count(m.Bytes))
		}
		p.table(t)
		p.partContents(s.Parts)
	}
	p.gap()
	p.line(fmt.Sprintf("  as natkit understood it (recording.json): %s bytes", units.Count(r.Result)))
}

// partContents lists the parts that took longest, and those that could not be read.
func (p *printer) partContents(parts []snapshot.Part) {
	for _, part := range parts {
		if part.Error != "" {
			p.mark(4, Cell{"not read: ", Warn}, part.Name+": "+part.Error, Plain)
		}
	}
}

func partSeconds(parts []snapshot.Part) (sum float64) {
	for _, p := range parts {
		sum += p.DurationSeconds
	}
	return sum
}

// sysctlFolder is where the members are that are one line, and most of all.
const sysctlFolder = "proc/sys/net/"

// bySysctl puts the sysctls together, unless all are wanted.
func bySysctl(members []snapshot.Member, whole bool) (all []snapshot.Member) {
	sysctls, bytes := 0, int64(0)
	for _, m := range members {
		if !whole && strings.HasPrefix(m.Name, sysctlFolder) {
			sysctls++
			bytes += m.Bytes
			continue
		}
		all = append(all, m)
	}
	if sysctls > 0 {
		all = append(all, snapshot.Member{Name: sysctlFolder + " (" + units.Plural(sysctls, "sysctl", "sysctls") + ")", Bytes: bytes})
	}
	return all
}
