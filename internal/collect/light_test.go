package collect

import (
	"strings"
	"testing"
)

func TestParseCPUTimes(t *testing.T) {
	const two = "cpu  1817162 441 510407 4063894 25031 0 276991 10362 7 0\ncpu0 877138 210 259506 2018444 2759 0 188510 5082 0 0\n" +
		"cpu1 940023 231 250900 2045449 22272 0 88480 5280 0 0\nintr 132438319 0 0\n"
	got, err := parseCPUTimes(strings.NewReader(two))
	want := CPUTimes{All: 1817162 + 441 + 510407 + 4063894 + 25031 + 276991 + 10362, Idle: 4063894 + 25031, SoftIRQ: 276991, CPUs: 2}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "intr 1\n", "cpu\n", "cpu 1 2 3\n", "cpu 1 2 3 4 5 6 x 8\ncpu0\n", "\n"} {
		if got, err := parseCPUTimes(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is %+v", bad, got)
		} else if !strings.Contains(err.Error(), procCPU) {
			t.Errorf("%q: %v names no file", bad, err)
		}
	}
}

func TestReadLight(t *testing.T) {
	s := ReadLight(t.Context(), Options{})
	if s.Kernel.Release == "" || s.Netns.Inode == 0 || s.UptimeSeconds == 0 {
		t.Errorf("%+v", s)
	}
	for _, name := range []string{"kernel", "sysctls", "conntrack_stat"} {
		found := false
		for _, p := range s.Parts {
			found = found || p.Name == name
		}
		if !found {
			t.Errorf("nothing is told of %s: %+v", name, s.Parts)
		}
	}
}
