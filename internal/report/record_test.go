package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
)

// TestRecordedHeaders: the line of headers says what each number is of, and that a sample leaves out what is in none.
func TestRecordedHeaders(t *testing.T) {
	for _, tt := range []struct {
		packets ring.PacketContents
		want    string
	}{
		{ring.PacketContents{}, "none"},
		{ring.PacketContents{Kept: 1, Sampled: 1, SampledICMP: 1}, "1 packet"},
		{ring.PacketContents{Kept: 466, NotKept: 182, Lost: 3, Sampled: 1, SampledICMP: 1}, "466 packets, 182 more were seen and not kept, 3 lost"},
		{ring.PacketContents{Kept: 466, NotKept: 182, Sampled: 8, SampledICMP: 1},
			"466 packets, 182 more were seen and not kept; at times of 1 in 8 connections, the others are in no number"},
		{ring.PacketContents{Kept: 466, Sampled: 8, SampledICMP: 1024},
			"466 packets; at times of 1 in 8 connections and 1 in 1,024 packets of ICMP, the others are in no number"},
	} {
		if got := (Recorded{Contents: &ring.Contents{Packets: tt.packets}}).headers(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.packets, got, tt.want)
		}
	}
}

// TestCompared: a report of a recording says first of which time it is, and what is not as usual about that.
func TestCompared(t *testing.T) {
	from := time.Date(2026, 3, 1, 23, 59, 30, 0, time.Local)
	of := func(to time.Duration, change func(*snapshot.Compared)) *snapshot.Compared {
		c := &snapshot.Compared{From: from, To: from.Add(to), RecordingTo: from.Add(to), UptimeSeconds: 5, UsualSeconds: 5}
		change(c)
		return c
	}
	at := func(after time.Duration) string { return from.Add(after).Format(time.RFC3339) }
	pair := "the snapshots of " + at(0) + " and 23:59:35"
	for _, tt := range []struct {
		c    *snapshot.Compared
		want string
	}{
		{of(5*time.Second, func(*snapshot.Compared) {}), pair},
		{of(5*time.Second, func(c *snapshot.Compared) { c.NotNewest, c.RecordingTo = true, from.Add(3*time.Hour) }),
			pair + "; not the newest, which is of " + at(3*time.Hour) + ", 2h59m55s later, and has none before it to compare with, or is damaged"},
		{of(5*time.Second, func(c *snapshot.Compared) { c.NotNewest, c.RecordingTo = true, from.Add(-time.Hour) }),
			pair + "; not the newest, which is of " + at(-time.Hour) + ", and has none before it to compare with, or is damaged"},
		{of(5*time.Second, func(c *snapshot.Compared) { c.FarApart, c.UptimeSeconds = true, 25 }), pair + ", 25.0 s apart, usually 5.000 s"},
		{of(8*time.Hour, func(c *snapshot.Compared) { c.ClockJumped = true }),
			"the snapshots of " + at(0) + " and " + at(8*time.Hour) + ", between which the clock was set or the host slept: 8h0m0s apart by the clock, 5.000 s without that, usually 5.000 s"},
		{of(-time.Hour, func(c *snapshot.Compared) { c.ClockJumped = true }),
			"the snapshots of " + at(0) + " and 22:59:30, between which the clock was set back: 5.000 s apart, usually 5.000 s"},
	} {
		if got := Compared(tt.c); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		var b bytes.Buffer
		if err := Doctor(&b, Style{}, &diagnose.Report{Compared: tt.c, Lost: []string{"something"}}, false, ""); err != nil || !strings.HasPrefix(b.String(), "compared     the snapshots of ") {
			t.Errorf("%v: %s", err, &b)
		}
	}
}
