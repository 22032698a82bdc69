package nat

import (
	"fmt"
	"strconv"
	"strings"
)

// Options are what of a rule's translation can be changed in place. The zero value is a
// rule without ports and options.
type Options struct {
	// FirstPort and LastPort bound the ports; 0 leaves them to the kernel.
	FirstPort, LastPort uint16
	// Random, FullyRandom and Persistent are NF_NAT_RANGE_PROTO_RANDOM,
	// NF_NAT_RANGE_PROTO_RANDOM_FULLY and NF_NAT_RANGE_PERSISTENT.
	Random, FullyRandom, Persistent bool
}

// String is the value: "1024-65535 fully-random", "fully-random", "".
func (o Options) String() string {
	var words []string
	switch {
	case o.FirstPort == 0:
	case o.FirstPort == o.LastPort:
		words = append(words, fmt.Sprint(o.FirstPort))
	default:
		words = append(words, fmt.Sprintf("%d-%d", o.FirstPort, o.LastPort))
	}
	for _, w := range []struct {
		on   bool
		word string
	}{{o.Random, "random"}, {o.FullyRandom, "fully-random"}, {o.Persistent, "persistent"}} {
		if w.on {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}

// ParseOptions reads such a value; the words' order does not matter.
func ParseOptions(s string) (Options, error) {
	var o Options
	for _, word := range strings.Fields(s) {
		if err := o.set(word); err != nil {
			return Options{}, fmt.Errorf("options of a NAT rule %q: %w", s, err)
		}
	}
	return o, nil
}

func (o *Options) set(word string) error {
	flag := map[string]*bool{"random": &o.Random, "fully-random": &o.FullyRandom, "persistent": &o.Persistent}[word]
	switch {
	case flag != nil && *flag:
		return fmt.Errorf("%s stands twice", word)
	case flag != nil:
		*flag = true
		return nil
	case o.FirstPort != 0:
		return fmt.Errorf("%q: expected one port or range, and random, fully-random, persistent", word)
	}
	ports, err := ParsePorts(word)
	if err != nil {
		return fmt.Errorf("%q: expected ports such as 1024-65535, random, fully-random or persistent", word)
	}
	o.FirstPort, o.LastPort = ports.First, ports.Last
	return nil
}

// RuleID names a rule across changes of its options: "netns 4026532290 ip nat POSTROUTING
// 5f3a9c01".
type RuleID struct {
	// Netns is the inode of the network namespace.
	Netns uint64
	// Place is "ip nat POSTROUTING".
	Place string
}

// ParseRuleID parses a RuleID: the namespace, the place, and a hash over what ports and options
// do not change; of rules of a chain that are alike the second one that was made has "#2"
// behind it.
func ParseRuleID(text string) (RuleID, error) {
	f := strings.Fields(text)
	if len(f) != 6 || f[0] != "netns" || strings.Join(f, " ") != text {
		return RuleID{}, fmt.Errorf("NAT rule %q: expected netns INODE FAMILY TABLE CHAIN HASH", text)
	}
	inode, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return RuleID{}, fmt.Errorf("NAT rule %q: %q is not the inode of a network namespace", text, f[1])
	}
	return RuleID{Netns: inode, Place: strings.Join(f[2:5], " ")}, nil
}
