package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
)

func TestMemorySize(t *testing.T) {
	for text, want := range map[string]string{
		"64M": "64M", "64m": "64M", "64MiB": "64M", "64 MB": "64M", "65536K": "64M", "67108864": "64M",
		"1G": "1G", "1536M": "1536M", "2T": "2048G", "67108865": "67108865", " 24M ": "24M",
	} {
		var m memorySize
		if err := m.Set(text); err != nil || m.String() != want {
			t.Errorf("%q: %v, %s; want %s", text, err, m.String(), want)
		}
	}
	for _, text := range []string{"", "M", "-64M", "64X", "1.5G", "23M", "0", "99999999999T", "64MM"} {
		m := usualMemory
		if err := m.Set(text); err == nil || m != usualMemory {
			t.Errorf("%q was taken for %s", text, m.String())
		}
	}
}

func TestCompleteKeys(t *testing.T) {
	completeKeys := completeList(aggregate.Names()...)
	words, _ := completeKeys(nil, nil, "state,src/24,s")
	if !slices.Contains(words, "state,src/24,sport") || slices.Contains(words, "state,src/24,state") {
		t.Errorf("got %s", strings.Join(words, " "))
	}
	if words, _ = completeKeys(nil, nil, ""); !slices.Contains(words, "src") {
		t.Errorf("got %s", strings.Join(words, " "))
	}
}

// TestMemoryForGroups: with the default there is room for a million groups of the keys
// that are asked for most, of either version of IP.
func TestMemoryForGroups(t *testing.T) {
	m := usualMemory
	left := m.forGroups(1)
	const perGroup = 1 + 16 + 8 + 12 + 12 // state, source, count; extra; index
	if left.Budget.Used() != 0 || int64(m-ownMemory) < 1_000_000*perGroup {
		t.Errorf("%d bytes", m)
	}
}
