package cli

import (
	"testing"
	"time"
)

// TestMoment: a time of the day is of the last day on which it was recorded.
func TestMoment(t *testing.T) {
	newest := time.Date(2026, 11, 20, 12, 0, 0, 0, time.Local)
	now := newest.Add(time.Hour)
	for text, want := range map[string]time.Time{
		"10:15":                     time.Date(2026, 11, 20, 10, 15, 0, 0, time.Local),
		"12:00":                     newest,
		"12:00:01":                  time.Date(2026, 11, 19, 12, 0, 1, 0, time.Local),
		"23:59":                     time.Date(2026, 11, 19, 23, 59, 0, 0, time.Local),
		"2026-11-20T10:15:00":       time.Date(2026, 11, 20, 10, 15, 0, 0, time.Local),
		"2026-11-20 10:15":          time.Date(2026, 11, 20, 10, 15, 0, 0, time.Local),
		"2026-11-20T10:15Z":         time.Date(2026, 11, 20, 10, 15, 0, 0, time.UTC),
		"2026-11-20T10:15:00+02:00": time.Date(2026, 11, 20, 8, 15, 0, 0, time.UTC),
		"-2h":                       now.Add(-2 * time.Hour),
		"-90":                       now.Add(-90 * time.Second),
	} {
		m, err := parseMoment(text)
		if err != nil || !m.resolve(newest.Add(-48*time.Hour), newest, now).Equal(want) {
			t.Errorf("%s: %s, want %s: %v", text, m.resolve(newest.Add(-48*time.Hour), newest, now), want, err)
		}
	}
	// Of a short recording: a time after its end, not of the day before.
	if m, _ := parseMoment("12:00:01"); !m.resolve(newest.Add(-time.Hour), newest, now).Equal(newest.Add(time.Second)) {
		t.Error("a time after a recording is of another day")
	}
	for _, text := range []string{"", "-", "noon", "25:00", "2026-13-01T00:00:00", "-x", "10"} {
		if _, err := parseMoment(text); err == nil {
			t.Errorf("%q is a time", text)
		}
	}
}
