package run

import (
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		busy, idle float64
		bad        bool
	}{
		{"now", "cpu  100 20 300 4000 50 6 70 800 90 10\ncpu0 1 2\n", 4.96, 40.5, false},
		{"Linux 2.4", "cpu  100 20 300 4000\n", 4.2, 40, false},
		{"without an end of line", "cpu 100 0 0 100", 1, 1, false},
		{"empty", "", 0, 0, true},
		{"another file", "MemTotal: 5 kB\n", 0, 0, true},
		{"not a number", "cpu  1 2 x 4\n", 0, 0, true},
	} {
		busy, idle, err := parseStat(strings.NewReader(tt.text))
		if (err != nil) != tt.bad || busy-tt.busy > 1e-9 || tt.busy-busy > 1e-9 || idle != tt.idle {
			t.Errorf("%s: %v, %v, %v", tt.name, busy, idle, err)
		}
	}
}

func TestParsePeak(t *testing.T) {
	for text, want := range map[string]int64{
		"Name:\tx\nVmPeak:\t  9 kB\nVmHWM:\t    10232 kB\nVmRSS:\t 8 kB\n": 10232 * 1024,
		"VmHWM:": 0, "VmHWM: x kB": 0, "VmHWM: 5 MB": 0, "": 0,
	} {
		if got := parsePeak([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
