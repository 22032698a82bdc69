package report

import "strings"

// ladder shows packets between two ends as arrows, one below the other.
type ladder struct {
	// left and right name the ends: the left one is where the first packet came from.
	left, right string
	rungs       []rung
}

// rung is one packet of a ladder, or, without a direction, text in its place.
type rung struct {
	// frame and at are the first two columns: the packet's number and its time.
	frame, at string
	towards   direction
	text      string
	// note is a remark on it, below.
	note string
	tone Tone
}

type direction uint8

const (
	nowhere direction = iota
	toRight
	toLeft
)

// leastArrow is how long an arrow is drawn at least, with its head.
const leastArrow = 6

// ladder writes l within width columns.
func (p *printer) ladder(indent int, l ladder, width int) {
	frames, times := len("frame"), len("time")
	for _, r := range l.rungs {
		frames, times = max(frames, textWidth(r.frame)), max(times, textWidth(r.at))
	}
	start := indent + frames + columnGap + times + columnGap
	lane := l.lane(width - start)
	columns := func(frame, at string) string {
		return strings.Repeat(" ", indent) + padLeft(frame, frames) + strings.Repeat(" ", columnGap) + padRight(at, times+columnGap)
	}
	left, right := truncate(clean(l.left), lane), truncate(clean(l.right), lane)
	if gap := lane - textWidth(left); gap >= columnGap+textWidth(right) {
		p.line(p.style.Paint(Bold, columns("frame", "time")+left+padLeft(right, gap)))
	} else {
		p.line(p.style.Paint(Bold, columns("frame", "time")+left))
		p.line(p.style.Paint(Bold, columns("", "")+padLeft(right, lane)))
	}
	for _, r := range l.rungs {
		p.line(columns(clean(r.frame), clean(r.at)) + p.style.Paint(r.tone, r.draw(lane)))
		if r.note == "" {
			continue
		}
		for _, part := range wrap(clean(r.note), max(width-start, lane)-2) {
			p.line(padRight("", start+2) + p.style.Paint(Dim, part))
		}
	}
}

// lane is the width between the ends: what the longest packet needs, if there is room.
func (l ladder) lane(room int) int {
	need := textWidth(l.left) + 2*columnGap + textWidth(l.right)
	for _, r := range l.rungs {
		need = max(need, textWidth(r.text)+1+leastArrow)
	}
	return max(min(need, room), 3*leastArrow)
}

// draw puts the text where the packet comes from, and the head of the arrow where it
// goes to.
func (r rung) draw(lane int) string {
	if r.towards == nowhere {
		return truncate(clean(r.text), lane)
	}
	text := truncate(clean(r.text), lane-1-leastArrow)
	line := strings.Repeat("─", max(lane-textWidth(text)-2, 1))
	if r.towards == toRight {
		return text + " " + line + "►"
	}
	return "◄" + line + " " + text
}

func padLeft(text string, width int) string {
	return strings.Repeat(" ", max(width-textWidth(text), 0)) + text
}
