package diagnose

import (
	"math"
	"strconv"
	"strings"
)

// grouped writes 262144 as 262,144.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// mib writes bytes as whole mebibytes, or with a digit below ten.
func mib(bytes int64) string {
	v := float64(bytes) / (1 << 20)
	if math.Abs(v) < 10 {
		return strconv.FormatFloat(v, 'f', 1, 64) + " MiB"
	}
	return grouped(int64(math.Round(v))) + " MiB"
}

func round1(v float64) float64 { return math.Round(v*10) / 10 }

func isTableFull(line string) bool {
	return strings.Contains(line, "nf_conntrack: table full") && strings.Contains(line, "dropping packet")
}

// duration writes seconds as a person would say them.
func duration(seconds float64) string {
	switch {
	case seconds < 120:
		return strconv.FormatFloat(seconds, 'f', 0, 64) + " s"
	case seconds < 2*3600:
		return strconv.FormatFloat(seconds/60, 'f', 0, 64) + " min"
	default:
		return strconv.FormatFloat(seconds/3600, 'f', 0, 64) + " h"
	}
}
