package profile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unicode"

	"github.com/natkit/natkit/internal/kallsyms"
	"github.com/natkit/natkit/internal/profile"
)

// kinds and counts, as in profile.bpf.c.
const (
	kindKernel = iota
	kindSwapper
	kindUser
)

const (
	countSamples = iota
	countNoStack
	countFull
	nrCounts
)

// read moves what the program counted into s.
func (p *Profiler) read(s *profile.Stacks, symbols *kallsyms.Table) error {
	lost, err := p.lost()
	if err != nil {
		return err
	}
	s.Lost = lost
	var (
		collector profile.Collector
		key       profileKey
		stack     profileStack
		frames    []profile.Frame
	)
	stacks := p.objects.Stacks.Iterate()
	for stacks.Next(&key, &stack) {
		frames = name(frames[:0], key.Kind, &stack, symbols)
		collector.Add(frames, stack.Count, key.Kind == kindSwapper)
	}
	if err := stacks.Err(); err != nil {
		return fmt.Errorf("read the sampled stacks: %w", err)
	}
	collector.Into(s)
	s.Idle = idle(s)
	return nil
}

// idle is what is left of all time: the timer of a CPU that sleeps deeply may not
// fire, in a virtual machine above all. What a hypervisor took from a CPU counts as
// idle, too.
func idle(s *profile.Stacks) uint64 {
	all := uint64(math.Round(s.Seconds * float64(s.Hz*s.CPUs)))
	taken := s.Samples() + s.Lost
	return max(s.Idle, all-min(all, taken))
}

func (p *Profiler) lost() (uint64, error) {
	var lost uint64
	for _, what := range []uint32{countNoStack, countFull} {
		var perCPU []uint64
		if err := p.objects.Counts.Lookup(what, &perCPU); err != nil {
			return 0, fmt.Errorf("read how many samples were lost: %w", err)
		}
		for _, n := range perCPU {
			lost += n
		}
	}
	return lost, nil
}

// name appends a stack's functions, outermost first.
func name(frames []profile.Frame, kind uint64, stack *profileStack, symbols *kallsyms.Table) []profile.Frame {
	if kind == kindUser {
		return append(frames, profile.Frame{Function: command(stack.Ip[:2]), Module: profile.User})
	}
	for i := min(int(stack.Frames), len(stack.Ip)) - 1; i >= 0; i-- {
		addr := stack.Ip[i]
		if i > 0 {
			// A return address: behind a call that never returns the next function
			// may begin.
			addr--
		}
		frame := profile.Frame{Function: profile.Unknown}
		if s, ok := symbols.Lookup(addr); ok {
			frame = profile.Frame{Function: s.Name, Module: s.Module}
		}
		frames = append(frames, frame)
	}
	return frames
}

// command is the name of a process, which may call itself anything: what a
// terminal or a list of frames would take for something else becomes "_".
func command(words []uint64) string {
	var text []byte
	for _, w := range words {
		text = binary.NativeEndian.AppendUint64(text, w)
	}
	text, _, _ = bytes.Cut(text, []byte{0})
	return strings.Map(func(r rune) rune {
		if r == ';' || r == unicode.ReplacementChar || !unicode.IsGraphic(r) || unicode.IsSpace(r) {
			return '_'
		}
		return r
	}, string(text))
}
