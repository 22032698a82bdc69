package match

import (
	"fmt"
	"slices"
	"strings"
)

// labelsMax is the number of labels of an entry (NF_CT_LABELS_MAX_SIZE,
// include/net/netfilter/nf_conntrack_labels.h).
const labelsMax = 128

// Labels is a set of labels; the bits of conntrack.Entry.Labels on a
// little-endian machine.
type Labels [labelsMax / 8]byte

// in reports whether all of l are among an entry's.
func (l *Labels) in(of []byte) bool {
	if *l == (Labels{}) {
		return true
	}
	for i, bits := range l {
		if bits == 0 {
			continue
		}
		if i >= len(of) || of[i]&bits != bits {
			return false
		}
	}
	return true
}

// ParseLabels reads numbers of labels, separated by commas, or names that are in
// named (connlabel.conf).
func ParseLabels(words string, named *[labelsMax]string) (l Labels, err error) {
	for word := range strings.SplitSeq(words, ",") {
		word = strings.TrimSpace(word)
		n, err := label(word, named)
		if err != nil {
			return Labels{}, err
		}
		l[n/8] |= 1 << (n % 8)
	}
	return l, nil
}

func label(word string, named *[labelsMax]string) (int, error) {
	if named != nil && word != "" {
		if n := slices.Index(named[:], word); n >= 0 {
			return n, nil
		}
	}
	n, err := ParseNumber(word, 7)
	if err != nil {
		return 0, fmt.Errorf("label %q is neither a number from 0 to %d nor a name in connlabel.conf", word, labelsMax-1)
	}
	return int(n), nil
}
