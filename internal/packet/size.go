package packet

import (
	"fmt"
	"strconv"
	"strings"
)

// maxSizes bounds the length of a cycle: more sizes than that tell nothing more,
// and each of them may cost a template.
const maxSizes = 64

// maxSize is the greatest frame that a list may name: the greatest IP packet with
// an Ethernet header, an 802.1Q tag and FCS. What a link carries is less; that is
// the caller's to check.
const maxSize = 65535 + 14 + 4 + 4

// imix are the parts of the simple Internet mix (RFC 6985, section 2, where it is
// the 7:4:1 mix): frame sizes, and how often each comes in a cycle of twelve.
var imix = []struct{ size, weight int }{{64, 7}, {594, 4}, {1518, 1}}

// ParseSizes reads frame sizes as people write them: one number, several with
// commas between, or "imix". They are the sizes of RFC 2544, that is of an Ethernet
// frame with its FCS, in bytes; a packet's number modulo the length of the result
// is the index of its size. The least that a packet needs for its headers is the
// caller's to check.
func ParseSizes(s string) ([]int, error) {
	if strings.EqualFold(s, "imix") {
		return mixed(), nil
	}
	fields := strings.Split(s, ",")
	if len(fields) > maxSizes {
		return nil, fmt.Errorf("sizes: %d of them, at most %d are taken", len(fields), maxSizes)
	}
	sizes := make([]int, 0, len(fields))
	for _, field := range fields {
		size, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil {
			return nil, fmt.Errorf("size %q: want a number of bytes, several with commas between, or imix", field)
		}
		if size < 1 || size > maxSize {
			return nil, fmt.Errorf("size %d: want 1 to %d bytes", size, maxSize)
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// mixed spreads the parts of the mix evenly over a cycle: each step gives every
// part its weight, and takes the whole from the one that has most.
func mixed() []int {
	total := 0
	for _, part := range imix {
		total += part.weight
	}
	credit := make([]int, len(imix))
	sizes := make([]int, 0, total)
	for range total {
		most := 0
		for i, part := range imix {
			credit[i] += part.weight
			if credit[i] > credit[most] {
				most = i
			}
		}
		credit[most] -= total
		sizes = append(sizes, imix[most].size)
	}
	return sizes
}
