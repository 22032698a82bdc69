package profile

import (
	"fmt"
	"io"
	"time"

	pprof "github.com/google/pprof/profile"
)

// WritePprof writes the stacks for 'go tool pprof' and what else reads its form
// (profile.proto, compressed): samples, and the CPU time that they stand for.
// Each sample has its class as a label.
func (s *Stacks) WritePprof(w io.Writer) error {
	b := &pprofBuilder{locations: map[Frame]*pprof.Location{}}
	period := int64(time.Second) / int64(max(s.Hz, 1))
	b.profile = pprof.Profile{
		SampleType:        []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		DefaultSampleType: "cpu",
		PeriodType:        &pprof.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:            period,
		DurationNanos:     int64(s.Seconds * float64(time.Second)),
		Comments:          []string{s.Title()},
	}
	c := newClassifier(classes)
	for _, stack := range s.Stacks {
		b.add(stack, c.stack(stack.Frames), period)
	}
	if err := b.profile.CheckValid(); err != nil {
		return fmt.Errorf("encode the profile for pprof: %w", err)
	}
	return b.profile.Write(w)
}

type pprofBuilder struct {
	profile   pprof.Profile
	locations map[Frame]*pprof.Location
}

func (b *pprofBuilder) add(stack Stack, w work, period int64) {
	sample := &pprof.Sample{
		Value: []int64{int64(stack.Count), int64(stack.Count) * period},
		Label: map[string][]string{"class": {w.class}},
	}
	if w.receive {
		sample.Label["receive"] = []string{"yes"}
	}
	for i := len(stack.Frames) - 1; i >= 0; i-- { // innermost first
		sample.Location = append(sample.Location, b.location(stack.Frames[i]))
	}
	b.profile.Sample = append(b.profile.Sample, sample)
}

func (b *pprofBuilder) location(f Frame) *pprof.Location {
	if l, ok := b.locations[f]; ok {
		return l
	}
	id := uint64(len(b.locations) + 1)
	function := &pprof.Function{ID: id, Name: f.Function, SystemName: f.Function, Filename: f.Module}
	l := &pprof.Location{ID: id, Line: []pprof.Line{{Function: function}}}
	b.profile.Function = append(b.profile.Function, function)
	b.profile.Location = append(b.profile.Location, l)
	b.locations[f] = l
	return l
}

// Title says how the samples were taken.
func (s *Stacks) Title() string {
	return fmt.Sprintf("Linux %s, %d samples of the busy time of %d CPUs in %.1f s, %d a second of each by %s",
		s.Kernel, s.Samples(), s.CPUs, s.Seconds, s.Hz, s.Event)
}
