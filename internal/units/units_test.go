package units

import (
	"github.com/natkit/natkit/internal/testutil"
	"math"
	"strconv"
	"strings"
	"testing"
)

func TestUnits(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(-1234567), "-1,234,567"},
		{Count(uint64(math.MaxUint64)), "18,446,744,073,709,551,615"}, {Count(int64(math.MinInt64)), "-9,223,372,036,854,775,808"},
		{Plural(1, "CPU", "CPUs"), "1 CPU"}, {Plural(0, "CPU", "CPUs"), "0 CPUs"}, {Plural(int64(2000), "CPU", "CPUs"), "2,000 CPUs"},
		{Rate(6576.21), "6,576"}, {Rate(76.47), "76.5"}, {Rate(9.999), "10.00"}, {Rate(0.25), "0.25"}, {Rate(0), "0"},
		{Rate(math.NaN()), None}, {Rate(math.Inf(1)), None},
		{Millis(0.1523), "0.152"}, {Millis(45.2), "45.20"}, {Millis(760.317), "760.3"}, {Millis(65380.868), "65,381"}, {Millis(0), "0.000"},
		{Millis(9.9994), "9.999"}, {Millis(10), "10.00"}, {Millis(100), "100.0"}, {Millis(1000), "1,000"}, {Millis(-45.2), "-45.20"}, {Millis(math.Inf(-1)), None},
		{Seconds(0.2124), "0.212 s"}, {Seconds(31.42), "31.4 s"},
		{Roughly(0), "less than 1 ms"}, {Roughly(0.0009), "less than 1 ms"}, {Roughly(0.45), "450 ms"}, {Roughly(0.9999), "1 s"},
		{Roughly(1.24), "1.2 s"}, {Roughly(9.96), "10 s"}, {Roughly(119), "119 s"}, {Roughly(301), "5 min"}, {Roughly(25200), "7 h"},
		{Percent(1), "100 %"}, {Percent(0.9604), "96 %"}, {Percent(0.978), "97.8 %"}, {Percent(0.0037), "0.37 %"}, {Percent(0), "0 %"}, {Percent(0.00005), "<0.01 %"}, {Percent(0.0001), "0.01 %"},
		{Percent(1.1031), "110 %"}, {Percent(0.9996), "100 %"}, {Percent(0.9994), "99.9 %"}, {Percent(math.NaN()), None + " %"},
		{Bytes(320.0), "320 B"}, {Bytes(int64(1024)), "1 KiB"}, {Bytes(uint64(1000*376 + 65536*16)), "1.4 MiB"},
		{Bytes(int64(469762048)), "448 MiB"}, {Bytes(int64(3 << 40)), "3 TiB"}, {Bytes(int64(5 << 50)), "5,120 TiB"}, {Bytes(int64(-1 << 20)), "-1 MiB"}, {Bytes(9.94 * 1024), "9.9 KiB"}, {Bytes(23.6 * (1 << 20)), "24 MiB"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

// Separators are all that Count adds.
func FuzzCount(f *testing.F) {
	f.Add(int64(0))
	f.Add(int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, n int64) {
		defer testutil.Bounded(t, 8)()
		text := Count(n)
		if got := strings.ReplaceAll(text, ",", ""); got != strconv.FormatInt(n, 10) {
			t.Fatalf("Count(%d) = %s", n, text)
		}
		groups := strings.Split(strings.TrimPrefix(text, "-"), ",")
		for i, g := range groups {
			if len(g) > 3 || i > 0 && len(g) != 3 || g == "" {
				t.Fatalf("Count(%d) = %s: a group of %d digits", n, text, len(g))
			}
		}
	})
}
