package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// none stands where there is no value.
const none = "–"

// Count writes a whole number with separators: 1,048,576.
func Count[T ~int | ~int64 | ~uint64](n T) string { return separated(fmt.Sprintf("%d", n)) }

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

func fixed(v float64, decimals int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return none
	}
	return separated(strconv.FormatFloat(v, 'f', decimals, 64))
}

// Rate writes a number per second: 24,512 or 76.5 or 0.25 or 0.
func Rate(perSecond float64) string {
	switch abs := math.Abs(perSecond); {
	case abs == 0:
		return "0"
	case abs >= 1000:
		return fixed(perSecond, 0)
	case abs >= 10:
		return fixed(perSecond, 1)
	}
	return fixed(perSecond, 2)
}

// Millis writes milliseconds with about four digits: 0.041, 45.20, 1,204.
func Millis(ms float64) string {
	switch abs := math.Abs(ms); {
	case abs >= 1000:
		return fixed(ms, 0)
	case abs >= 100:
		return fixed(ms, 1)
	case abs >= 10:
		return fixed(ms, 2)
	}
	return fixed(ms, 3)
}

// Seconds writes a time with its unit: 0.212 s, 31.4 s.
func Seconds(s float64) string {
	if math.Abs(s) >= 10 {
		return fixed(s, 1) + " s"
	}
	return fixed(s, 3) + " s"
}

// Percent writes a share (1 is all): 100 %, 98.5 %, 0.21 %.
func Percent(share float64) string {
	switch p := math.Abs(share) * 100; {
	case p == 0 || p >= 99.95:
		return fixed(share*100, 0) + " %"
	case p >= 1:
		return fixed(share*100, 1) + " %"
	}
	return fixed(share*100, 2) + " %"
}

// Bytes writes an amount of memory with the binary unit that fits: 320 B, 1.4 MiB.
func Bytes(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for math.Abs(n) >= 1024 && unit < len(units)-1 {
		n /= 1024
		unit++
	}
	decimals := 1
	if n == math.Trunc(n) || math.Abs(n) >= 100 {
		decimals = 0
	}
	return fixed(n, decimals) + " " + units[unit]
}

// Value writes an observed value, a number or a string, with its unit.
func Value(value any, unit string) string {
	number, unit := valueParts(value, unit)
	switch {
	case unit == "":
		return number
	case strings.HasPrefix(unit, "/"):
		return number + unit
	}
	return number + " " + unit
}

// valueParts writes the number and the unit apart, so that numbers can stand in
// a column. Bytes are also given in the unit that people think in.
func valueParts(value any, unit string) (number, unitText string) {
	v, isNumber := asFloat(value)
	switch {
	case !isNumber:
		return fmt.Sprint(value), unit
	case unit == "bytes" && math.Abs(v) >= 1024:
		unit = "bytes (" + Bytes(v) + ")"
	}
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return fixed(v, 0), unit
	}
	text := Rate(v)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text, unit
}

func asFloat(value any) (float64, bool) {
	switch v := value.(type) {
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}
