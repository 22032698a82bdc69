package profile

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxCPU is the most that a kernel can be built for (CONFIG_NR_CPUS).
const maxCPU = 8192

// ParseCPUs reads a list of processors as the kernel writes it: 0-3,8. It is
// returned in order, each once.
func ParseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := parseCPU(first)
		if err != nil {
			return nil, fmt.Errorf("list of processors %q: %w", list, err)
		}
		to, err := parseCPU(last)
		if err == nil && to < from {
			err = fmt.Errorf("%s ends before it begins", part)
		}
		if err != nil {
			return nil, fmt.Errorf("list of processors %q: %w", list, err)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
		if len(cpus) > 2*maxCPU {
			return nil, fmt.Errorf("list of processors %q: too many", list)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

func parseCPU(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n >= maxCPU {
		return 0, fmt.Errorf("%q is no number of a processor (want for instance 0-3,8)", text)
	}
	return int(n), nil
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

// ErrNoCPU says that a processor to be sampled is not there.
var ErrNoCPU = errors.New("no such processor")
