package match

import (
	"fmt"
	"strings"
)

// labelsMax is the number of labels of an entry (NF_CT_LABELS_MAX_SIZE,
// include/net/netfilter/nf_conntrack_labels.h).
const labelsMax = 128

// Labels is a set of labels; the bits of conntrack.Entry.Labels on a
// little-endian machine.
type Labels [labelsMax / 8]byte

// in tells whether all of l are among an entry's.
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
// named (/etc/xtables/connlabel.conf).
func ParseLabels(text string, named map[string]uint8) (l Labels, err error) {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		n, known := named[word]
		if !known {
			number, err := ParseNumber(word, 7)
			if err != nil {
				return Labels{}, fmt.Errorf("label %q is neither a number from 0 to %d nor a name in connlabel.conf", word, labelsMax-1)
			}
			n = uint8(number)
		}
		if n < labelsMax {
			l[n/8] |= 1 << (n % 8)
		}
	}
	return l, nil
}

// ParseLabelNames reads the text of connlabel.conf: a number and a name on each
// line. Other lines are passed over, as iptables does.
func ParseLabelNames(text string) map[string]uint8 {
	named := map[string]uint8{}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if n, err := ParseNumber(fields[0], 7); err == nil {
			named[fields[1]] = uint8(n)
		}
	}
	return named
}
