package packet

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
)

func TestParseSizes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []int
	}{
		{"64", []int{64}},
		{"64,594,1518", []int{64, 594, 1518}},
		{" 64, 128 ", []int{64, 128}},
		{"imix", []int{64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64}},
		{"IMIX", mixed()},
	} {
		got, err := ParseSizes(tt.in)
		if err != nil {
			t.Errorf("%q: %v", tt.in, err)
		} else if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", tt.in, d)
		}
	}
}

func TestParseSizesRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "want a number of bytes",
		"64,":                            "want a number of bytes",
		"imix,64":                        "want a number of bytes",
		"0":                              "want 1 to",
		"-5":                             "want 1 to",
		"70000":                          "want 1 to",
		"99999999999999999999":           "want a number of bytes",
		strings.Repeat("64,", 64) + "64": "at most 64",
	} {
		if got, err := ParseSizes(in); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: %v, %v; want an error with %q", in, got, err, want)
		}
	}
}

// TestMixedIsEven checks what an IMIX is: 7 of 64, 4 of 594, 1 of 1518 in twelve,
// and nowhere more than two small ones one after the other, also from one cycle to
// the next.
func TestMixedIsEven(t *testing.T) {
	sizes := mixed()
	count := map[int]int{}
	for _, size := range sizes {
		count[size]++
	}
	if d := cmp.Diff(map[int]int{64: 7, 594: 4, 1518: 1}, count); d != "" {
		t.Errorf("parts (-want +got):\n%s", d)
	}
	twice := slices.Concat(sizes, sizes)
	for i := range len(twice) - 2 {
		if twice[i] == twice[i+1] && twice[i+1] == twice[i+2] {
			t.Errorf("three of %d in a row at %d: %v", twice[i], i, sizes)
		}
	}
}

func FuzzParseSizes(f *testing.F) {
	for _, seed := range []string{"64", "imix", "64,594,1518", ",", "1e3", "0x40"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		defer testutil.Bounded(t, len(s))()
		sizes, err := ParseSizes(s)
		if (err == nil) != (len(sizes) > 0) || len(sizes) > maxSizes {
			t.Fatalf("%q: %v, %v", s, sizes, err)
		}
		for _, size := range sizes {
			if size < 1 || size > maxSize {
				t.Fatalf("%q: size %d", s, size)
			}
		}
	})
}
