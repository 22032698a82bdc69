package nat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mostDSCP is the largest code point: it has six bits (RFC 2474).
const mostDSCP = 63

// everyCodePoint are all of them.
var everyCodePoint = func() (all []uint8) {
	for i := range uint8(mostDSCP + 1) {
		all = append(all, i)
	}
	return all
}()

// codePointNames has the names of RFC 2474, 2597, 3246, 5865 and 8622, as nft(8) writes them.
var codePointNames = map[uint8]string{
	0: "cs0", 8: "cs1", 16: "cs2", 24: "cs3", 32: "cs4", 40: "cs5", 48: "cs6", 56: "cs7",
	10: "af11", 12: "af12", 14: "af13", 18: "af21", 20: "af22", 22: "af23",
	26: "af31", 28: "af32", 30: "af33", 34: "af41", 36: "af42", 38: "af43",
	46: "ef", 44: "va", 1: "le",
}

// DSCPName is "ef", or the number of a code point without a name.
func DSCPName(point uint8) string {
	if name, ok := codePointNames[point]; ok {
		return name
	}
	return strconv.Itoa(int(point))
}

// ParseDSCP reads a code point: its name or its number, also in hexadecimal.
func ParseDSCP(text string) (uint8, error) {
	lower := strings.ToLower(text)
	for point, name := range codePointNames {
		if name == lower {
			return point, nil
		}
	}
	n, err := ParseNumber(lower)
	if lower == "be" || lower == "df" { // best effort, the default
		return 0, nil
	}
	if err != nil || n > mostDSCP {
		names := make([]string, 0, len(codePointNames))
		for _, name := range codePointNames {
			names = append(names, name)
		}
		slices.Sort(names)
		return 0, fmt.Errorf("dscp %q: expected a number from 0 to %d or one of %s", text, mostDSCP, strings.Join(names, ", "))
	}
	return uint8(n), nil
}
