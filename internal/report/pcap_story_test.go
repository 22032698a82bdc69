package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func someLadder() ladder {
	return ladder{left: "198.18.0.1:33735", right: "203.0.113.1:443", rungs: []rung{
		{frame: "812", at: "+0.000", towards: toRight, text: "FIN,ACK seq 4021 TSval 2149756058"},
		{text: "… 2 packets more"},
		{frame: "9,120", at: "+111.5 s", towards: toRight, text: "SYN seq 77 TSval 2149514922", note: "its TSval is 241,136 behind"},
		{frame: "9,121", towards: toLeft, text: "ACK seq 1 ack 4022"},
		{frame: "9,122", towards: toRight, text: "RST seq 4022"},
	}}
}

func TestLadder(t *testing.T) {
	var got bytes.Buffer
	p := &printer{w: &got}
	p.ladder(2, someLadder(), 80)
	const want = `  frame  time      198.18.0.1:33735         203.0.113.1:443
    812  +0.000    FIN,ACK seq 4021 TSval 2149756058 ─────►
                   … 2 packets more
  9,120  +111.5 s  SYN seq 77 TSval 2149514922 ───────────►
                     its TSval is 241,136 behind
  9,121            ◄──────────────────── ACK seq 1 ack 4022
  9,122            RST seq 4022 ──────────────────────────►
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
}

// TestLadderIsBounded: whatever is in it, no line is longer than it may be, and no control
// character gets through.
func TestLadderIsBounded(t *testing.T) {
	l := someLadder()
	l.rungs = append(l.rungs, rung{frame: "1", at: "\x1b[2J", towards: toLeft, text: strings.Repeat("x\x1b", 200), note: strings.Repeat("\x9b", 300)},
		rung{text: strings.Repeat("long ", 100)}, rung{towards: toRight})
	l.left = "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
	for _, width := range []int{80, 100, 120} {
		var got bytes.Buffer
		p := &printer{w: &got}
		p.ladder(4, l, width)
		for line := range strings.Lines(got.String()) {
			if n := textWidth(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%d columns of %d: %q", n, width, line)
			}
			if strings.ContainsAny(line, "\x1b\u009b") {
				t.Errorf("a control character: %q", line)
			}
		}
	}
}

func TestASCII(t *testing.T) {
	var got bytes.Buffer
	p := &printer{w: ASCII(&got)}
	p.ladder(0, someLadder(), 80)
	p.line("– 3 µs ≥ 5 × 世 §")
	for _, r := range got.String() {
		if r > 0x7f {
			t.Errorf("%q in\n%s", r, &got)
			break
		}
	}
	if want := "<-------------------- ACK seq 1 ack 4022\n"; !strings.Contains(got.String(), want) {
		t.Errorf("no %q in\n%s", want, &got)
	}
}
