package gateway

import (
	"strconv"
	"strings"
)

// ParseRef reads what Ref.String writes, as it stands in the comments of an engine's
// rules.
func ParseRef(text string) (Ref, bool) {
	place, kind, ok := strings.Cut(text, " ")
	list, rest, ok2 := strings.Cut(place, "[")
	number, ok3 := strings.CutSuffix(rest, "]")
	index, err := strconv.Atoi(number)
	r := Ref{List: list, Index: index, Kind: kind}
	return r, ok && ok2 && ok3 && err == nil && r.String() == text
}
