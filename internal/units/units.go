// Package units writes quantities for people: the same number looks the same in
// a finding, in a plan and in a table.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// None stands where there is no value.
const None = "–"

// Count writes a whole number with separators: 1,048,576.
func Count[T ~int | ~int64 | ~uint64](n T) string { return separated(fmt.Sprintf("%d", n)) }

// Plural writes a number of things: 1 CPU, 2 CPUs.
func Plural[T ~int | ~int64 | ~uint64](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// separated puts commas into the integer part of a decimal number.
func separated(number string) string {
	sign := ""
	if strings.HasPrefix(number, "-") {
		sign, number = "-", number[1:]
	}
	whole, fraction := number, ""
	if dot := strings.IndexByte(number, '.'); dot >= 0 {
		whole, fraction = number[:dot], number[dot:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return sign + whole + fraction
}

// Fixed writes a number with that many decimals; None where it is not finite.
func Fixed(v float64, decimals int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return None
	}
	return separated(strconv.FormatFloat(v, 'f', decimals, 64))
}

// Rate writes a number per second: 24,512 or 76.5 or 0.25 or 0.
func Rate(perSecond float64) string {
	switch abs := math.Abs(perSecond); {
	case abs == 0:
		return "0"
	case abs >= 1000:
		return Fixed(perSecond, 0)
	case abs >= 10:
		return Fixed(perSecond, 1)
	}
	return Fixed(perSecond, 2)
}

// Significant rounds v to the decimal place of the first digit of its error.
func Significant(v, err float64) float64 {
	if err <= 0 {
		return v
	}
	place := math.Pow(10, math.Floor(math.Log10(err)))
	return math.Round(v/place) * place
}

// RateWithin writes a number per second to the first digit of its error.
func RateWithin(v, err float64) string {
	if err >= 1 {
		return Fixed(Significant(v, err), 0)
	}
	return Rate(v)
}

// Millis writes milliseconds, without the unit, with about four digits: 0.041,
// 45.20, 1,204.
func Millis(ms float64) string {
	decimals := 3
	for limit := 10.0; decimals > 0 && math.Abs(ms) >= limit; limit *= 10 {
		decimals--
	}
	return Fixed(ms, decimals)
}

// Seconds writes a measured time with its unit: 0.212 s, 31.4 s.
func Seconds(s float64) string {
	if math.Abs(s) >= 10 {
		return Fixed(s, 1) + " s"
	}
	return Fixed(s, 3) + " s"
}

// Roughly writes a time with few digits: less than 1 ms, 450 ms, 1.2 s,
// 45 s, 5 min, 7 h.
func Roughly(seconds float64) string {
	switch {
	case seconds < 0.001:
		return "less than 1 ms"
	case seconds < 0.9995:
		return Fixed(1000*seconds, 0) + " ms"
	case seconds < 9.95:
		return strings.TrimSuffix(Fixed(seconds, 1), ".0") + " s"
	case seconds < 120:
		return Fixed(seconds, 0) + " s"
	case seconds < 2*3600:
		return Fixed(seconds/60, 0) + " min"
	}
	return Fixed(seconds/3600, 0) + " h"
}

// Percent writes a share (1 is all): 100 %, 98.5 %, 50 %, 0.21 %, <0.01 %.
func Percent(share float64) string {
	switch p := math.Abs(share) * 100; {
	case p == 0 || p >= 99.95:
		return Fixed(share*100, 0) + " %"
	case p >= 1:
		return strings.TrimSuffix(Fixed(share*100, 1), ".0") + " %"
	case p < 0.01:
		return "<0.01 %"
	}
	return Fixed(share*100, 2) + " %"
}

// Bytes writes an amount of memory with the binary unit that fits: 320 B, 1.4 MiB.
func Bytes[T ~int64 | ~uint64 | ~float64](bytes T) string {
	names := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	n, unit := float64(bytes), 0
	for math.Abs(n) >= 1024 && unit < len(names)-1 {
		n /= 1024
		unit++
	}
	decimals := 1
	if n == math.Trunc(n) || math.Abs(n) >= 10 {
		decimals = 0
	}
	return Fixed(n, decimals) + " " + names[unit]
}
