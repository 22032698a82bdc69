package text

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxLabels is how many connection labels there are (XT_CONNLABEL_MAXBIT,
// include/uapi/linux/netfilter/xt_connlabel.h, and bit 0).
const maxLabels = 128

// Labels are the names of connection labels by their bit; of the unnamed ones
// the tool prints nothing.
type Labels [maxLabels]string

// ReadLabels reads connlabel.conf, in which a line is a bit and its name.
func ReadLabels(r io.Reader) (*Labels, error) {
	var l Labels
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if len(words) < 2 {
			continue
		}
		bit, err := strconv.ParseUint(words[0], 10, 8)
		if err != nil || bit >= maxLabels {
			return nil, fmt.Errorf("connection labels, line %d: %q is no bit from 0 to %d", n, words[0], maxLabels-1)
		}
		l[bit] = words[1]
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("connection labels: %w", err)
	}
	return &l, nil
}

// appendNames adds the names of set, separated by commas. Where it has none the
// tool's line has the key without its sign of equality, and so has this one.
func (l *Labels) appendNames(b, set []byte) []byte {
	for bit, name := range l {
		if name != "" && hasBit(set, bit) {
			b = append(append(b, name...), ',')
		}
	}
	return b[:len(b)-1]
}

// hasBit reads the kernel's bit set of 64-bit words on a little-endian machine.
func hasBit(set []byte, bit int) bool {
	return bit/8 < len(set) && set[bit/8]>>(bit%8)&1 == 1
}
