package ring

import (
	"bufio"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/units"
)

// Copy is a segment whose frames are in another one, too: a second file of the same content, or of a part of it. It is passed over.
type Copy struct {
	Segment string `json:"segment"`
	Of      string `json:"of"`
	// Lacking is how many of its frames the other one lacks, as where that is damaged.
	Lacking int `json:"parts_that_the_other_lacks,omitempty"`

	segment *Segment
}

// identity is the same in all copies of a frame.
type identity struct {
	kind Kind
	Stamp
	bytes int64
}

func (f *Frame) identity() identity { return identity{f.Kind, f.Stamp, f.Bytes} }

// mayShare reports whether two segments may have frames in common: segments of one run follow each other.
func mayShare(a, b *Segment) bool {
	if len(a.Frames) == 0 || len(b.Frames) == 0 || a.Run != b.Run {
		return false
	}
	first, last := func(s *Segment) time.Duration { return s.Frames[0].Uptime }, func(s *Segment) time.Duration { return s.Frames[len(s.Frames)-1].Uptime }
	return first(a) <= last(b) && first(b) <= last(a)
}

// lacks counts the frames of a segment that another one lacks.
func (s *Segment) lacks(of *Segment) (lacking int) {
	has := make(map[identity]bool, len(s.Frames))
	for i := range s.Frames {
		has[s.Frames[i].identity()] = true
	}
	for i := range of.Frames {
		if !has[of.Frames[i].identity()] {
			lacking++
		}
	}
	return lacking
}

// passOver returns the segments without copies. Of several the one with most frames counts, in the place of the first.
func passOver(all []*Segment) (count []*Segment, copies []Copy) {
	for _, s := range all {
		i := slices.IndexFunc(count, func(other *Segment) bool { return mayShare(other, s) && other.lacks(s) < len(s.Frames) })
		if i < 0 {
			count = append(count, s)
			continue
		}
		if len(s.Frames) > len(count[i].Frames) {
			count[i], s = s, count[i]
		}
		copies = append(copies, Copy{segment: s, Of: count[i].Name})
	}
	for i := range copies {
		c := &copies[i]
		c.Segment, c.Lacking = c.segment.Name, len(c.segment.Frames)
		for _, of := range count {
			if mayShare(of, c.segment) && of.lacks(c.segment) < c.Lacking {
				c.Of, c.Lacking = of.Name, of.lacks(c.segment)
			}
		}
	}
	return count, copies
}

// begins is the time of the first frame of a segment; zero where that cannot be read.
func begins(fsys fs.FS, name string) time.Time {
	f, _, err := openSegment(fsys, name)
	if err != nil {
		return time.Time{}
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, mostLine+headerBytes)
	head := make([]byte, headerBytes)
	if _, err := (&Segment{}).readHeader(in); err != nil {
		return time.Time{}
	}
	if _, err := io.ReadFull(in, head); err != nil || !plausible(head) {
		return time.Time{}
	}
	frame, _, _ := parseFrame(head)
	return frame.Wall
}

// isOlder reports whether all of a segment is older than a time: another one begins after it, and before that time. A copy of it has
// a number as of a later one, and begins at the same time.
func isOlder(starts []time.Time, i int, since time.Time) bool {
	return !starts[i].IsZero() && slices.ContainsFunc(starts, func(other time.Time) bool { return other.After(starts[i]) && other.Before(since) })
}

// Text says what was passed over.
func (c *Copy) Text() string {
	text := c.Segment + ": a copy of " + c.Of + ", passed over"
	if c.Lacking > 0 {
		text += ", with " + units.Plural(c.Lacking, "part", "parts") + " that " + c.Of + " lacks"
	}
	return text
}
