package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
)

func TestMemorySize(t *testing.T) {
	for text, want := range map[string]int64{
		"64M": 64 << 20, "64m": 64 << 20, "64MiB": 64 << 20, "64 MB": 64 << 20, "65536K": 64 << 20, "67108864": 64 << 20,
		"1G": 1 << 30, "1536M": 1536 << 20, "2T": 2 << 40, "67108865": 67108865, " 24M ": 24 << 20,
	} {
		var got int64
		if err := memory(&got).Set(text); err != nil || got != want {
			t.Errorf("%q: %v, %d; want %d", text, err, got, want)
		}
	}
	for _, text := range []string{"", "M", "-64M", "64X", "1.5G", "23M", "0", "99999999999T", "64MM"} {
		var got int64
		if err := memory(&got).Set(text); err == nil {
			t.Errorf("%q was taken for %d", text, got)
		}
	}
}

func TestCompleteKeys(t *testing.T) {
	completeKeys := completeList(aggregate.Names)
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
	left := forGroups(usualMemory, 1)
	const perGroup = 1 + 16 + 8 + 12 + 12 // state, source, count; extra; index
	if left.Budget.Used() != 0 || usualMemory-ownMemory < 1_000_000*perGroup {
		t.Errorf("%d bytes", usualMemory)
	}
}
