package tui

import "time"

// Action is what a key asks of the world outside of the model.
type Action int

// The actions.
const (
	Nothing Action = iota
	Quit
	Suspend      // to the shell that started it
	Resample     // look at once: a pause ended, or the filter is another
	SetInterval  // Request.Interval
	ListSpaces   // answer with Model.Spaces
	CloseSpaces  // the list is no longer shown
	SwitchSpace  // Request.Space
	SaveSnapshot // answer with Model.Saved
)

// Request is an action with what it needs.
type Request struct {
	Action   Action
	Interval time.Duration
	Space    Space
}

// Bounds of the interval between samples.
const (
	MinInterval = 500 * time.Millisecond
	MaxInterval = time.Minute
)

// intervals are those that keys choose from.
var intervals = []time.Duration{MinInterval, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, MaxInterval}

// longer is the next interval, shorter the one before; at the ends the same.
func longer(d time.Duration) time.Duration {
	for _, next := range intervals {
		if next > d {
			return next
		}
	}
	return d
}

func shorter(d time.Duration) time.Duration {
	for i := len(intervals) - 1; i >= 0; i-- {
		if intervals[i] < d {
			return intervals[i]
		}
	}
	return d
}
