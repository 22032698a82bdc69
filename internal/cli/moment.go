package cli

import (
	"errors"
	"time"
)

// moment is a point of time as people give it: 10:15, 2026-11-20T10:15:00, -2h.
type moment struct {
	// given is false without one.
	given bool
	// at is a time of a date.
	at time.Time
	// clock is a time of a day, in the duration since midnight.
	clock   time.Duration
	isClock bool
	// ago is a time before now.
	ago time.Duration
}

var errMoment = errors.New("must be a time of the day (10:15), a date with a time (2026-11-20T10:15:00, of the local time zone unless it has one), or how long ago (-2h)")

// dates are the forms of a date with a time; the first ones have their own zone.
var dates = []string{time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04"}

func parseMoment(text string) (moment, error) {
	if len(text) > 1 && text[0] == '-' {
		ago, err := parseSeconds(text[1:])
		if err != nil {
			return moment{}, errMoment
		}
		return moment{given: true, ago: ago}, nil
	}
	for _, form := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(form, text); err == nil {
			h, m, s := t.Clock()
			return moment{given: true, isClock: true, clock: time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(s)*time.Second}, nil
		}
	}
	for _, form := range dates {
		if t, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return moment{given: true, at: t}, nil
		}
	}
	return moment{}, errMoment
}

// resolve returns the time: one of a day is of the last day on which it is not after the newest that was recorded, but of the
// newest's day where it would be before the oldest.
func (m moment) resolve(oldest, newest, now time.Time) time.Time {
	switch {
	case !m.given:
		return time.Time{}
	case m.isClock:
		newest = newest.Local()
		of := func(day int) time.Time { // a day with a change of the clocks has another length
			return time.Date(newest.Year(), newest.Month(), day, int(m.clock.Hours()), int(m.clock.Minutes())%60, int(m.clock.Seconds())%60, 0, time.Local)
		}
		at, before := of(newest.Day()), of(newest.Day()-1)
		if at.After(newest) && !before.Before(oldest) {
			return before
		}
		return at
	case !m.at.IsZero():
		return m.at
	}
	return now.Add(-m.ago).Local()
}
