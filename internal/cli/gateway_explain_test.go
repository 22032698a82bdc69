package cli

import (
	"testing"
	"time"
)

func TestAtTime(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 30, 15, 7, time.FixedZone("", 3600)) // the day before in UTC
	for text, want := range map[string]string{
		"": "2026-02-28T23:30:15Z", "07:05": "2026-02-28T07:05:00Z", "2026-01-31T15:04:00+01:00": "2026-01-31T14:04:00Z",
		"7": "", "24:00": "", "2026-01-31": "",
	} {
		at, err := atTime(text, now)
		if got := at.Format(time.RFC3339); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}
