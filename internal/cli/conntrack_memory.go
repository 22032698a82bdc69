package cli

import (
	"fmt"
	"math"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/tally"
)

// memorySize is a flag's amount of memory in bytes: 64M, 1G, 500000000.
type memorySize int64

const (
	usualMemory memorySize = 64 << 20
	// ownMemory is what natkit takes besides groups: its program, Go's runtime, the
	// buffers of a dump.
	ownMemory memorySize = 15 << 20
	// programMemory is the part of it that Go's runtime does not count.
	programMemory memorySize = 10 << 20
	minMemory     memorySize = 24 << 20
)

func (m *memorySize) Type() string { return "SIZE" }

func (m *memorySize) String() string {
	for _, unit := range []struct {
		name  string
		bytes memorySize
	}{{"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}} {
		if *m > 0 && *m%unit.bytes == 0 {
			return strconv.FormatInt(int64(*m/unit.bytes), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(*m), 10)
}

func (m *memorySize) Set(text string) error {
	n, ok := parseBytes(text)
	switch {
	case !ok:
		return fmt.Errorf("must be an amount of memory: 64M, 1G, …")
	case memorySize(n) < minMemory:
		least := minMemory
		return fmt.Errorf("must be %s at least: natkit needs most of that for itself", least.String())
	}
	*m = memorySize(n)
	return nil
}

// parseBytes reads a number of bytes as people write it: 64M, 64 MiB, 1g; units are
// powers of 1,024.
func parseBytes(text string) (n int64, ok bool) {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(text)), "B"), "I")
	shift := 0
	if n := len(number); n > 0 {
		if i := strings.IndexByte("KMGT", number[n-1]); i >= 0 {
			number, shift = strings.TrimSpace(number[:n-1]), 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, false
	}
	return n << shift, true
}

// forGroups is what is left for groups, a part of it for each version of IP.
func (m *memorySize) forGroups(seed uint64) aggregate.Memory {
	left := int64(*m - ownMemory)
	return aggregate.Memory{Budget: tally.NewBudget(left), Reserve: left / 16, Seed: seed}
}

// limit lets the garbage collector keep to the limit, until it is put back.
func (m *memorySize) limit() (putBack func()) {
	before := debug.SetMemoryLimit(int64(*m - programMemory))
	return func() { debug.SetMemoryLimit(before) }
}
