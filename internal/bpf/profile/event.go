package profile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unsafe"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/profile"
	"golang.org/x/sys/unix"
)

// openEvent makes an event that runs the program at hz on a CPU; it does not run
// before it is enabled. Closing it ends it.
func openEvent(cpu, hz, program int) (int, error) {
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: uint64(hz),
		Bits:   unix.PerfBitFreq | unix.PerfBitDisabled,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("sample processor %d at %d Hz: %w", cpu, hz, explainOpen(err))
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, program); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("attach the eBPF program that samples stacks to processor %d: %w", cpu, err)
	}
	return fd, nil
}

// explainOpen adds what to do about a refusal (man perf_event_open, ERRORS).
func explainOpen(err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return netns.Denied(fmt.Errorf("%w: the sysctl kernel.perf_event_paranoid is %s", err, sysctl("kernel.perf_event_paranoid")), netns.PerfMon)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: the sysctl kernel.perf_event_max_sample_rate allows %s", err, sysctl("kernel.perf_event_max_sample_rate"))
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: needs CONFIG_PERF_EVENTS", err)
	}
	return err
}

func sysctl(name string) string {
	value, err := netns.Sysctl(nil, name)
	if err != nil {
		return "not readable"
	}
	return value
}

// eachEvent enables or disables the events.
func eachEvent(events []int, request uint) error {
	for _, fd := range events {
		if err := unix.IoctlSetInt(fd, request, 0); err != nil {
			return fmt.Errorf("enable or disable sampling: %w", err)
		}
	}
	return nil
}

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
func (p *Profiler) read(s *profile.Stacks, symbols *bpf.Table) error {
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

// idle returns the remaining time: the timer of a CPU that sleeps deeply may not
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
func name(frames []profile.Frame, kind uint64, stack *profileStack, symbols *bpf.Table) []profile.Frame {
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

// maxCPU is the most that a kernel can be built for (CONFIG_NR_CPUS).
const maxCPU = 8192

// ParseCPUs reads a list of processors as the kernel writes it: 0-3,8. It is
// returned in order, each once.
func ParseCPUs(list string) ([]int, error) {
	listed := make([]bool, maxCPU)
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 32)
		to, err2 := strconv.ParseUint(last, 10, 32)
		if err1 != nil || err2 != nil || to < from || to >= maxCPU {
			return nil, fmt.Errorf("list of processors %q: %q is no number of a processor below %d and no range of them (want for instance 0-3,8)", list, part, maxCPU)
		}
		for cpu := from; cpu <= to; cpu++ {
			listed[cpu] = true
		}
	}
	var cpus []int
	for cpu, is := range listed {
		if is {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// chooseCPUs are those to sample: the wanted ones, which have to be online, or all
// that are.
func chooseCPUs(wanted []int) ([]int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("read which processors are online: %w", err)
	}
	online, err := ParseCPUs(string(text))
	if err != nil {
		return nil, fmt.Errorf("read which processors are online: %w", err)
	}
	if len(wanted) == 0 {
		return online, nil
	}
	wanted = slices.Compact(slices.Sorted(slices.Values(wanted)))
	for _, cpu := range wanted {
		if !slices.Contains(online, cpu) {
			return nil, fmt.Errorf("%w: %d (online: %s)", ErrNoCPU, cpu, strings.TrimSpace(string(text)))
		}
	}
	return wanted, nil
}

// ErrNoCPU: a processor to be sampled does not exist.
var ErrNoCPU = errors.New("no such processor")
