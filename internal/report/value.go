package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/natkit/natkit/internal/units"
)

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
		unit = "bytes (" + units.Bytes(v) + ")"
	}
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return units.Fixed(v, 0), unit
	}
	text := units.Rate(v)
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

// Bytes writes an amount of memory: 1.4 MiB.
func Bytes(n float64) string { return units.Bytes(n) }
