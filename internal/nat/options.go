package nat

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/unix"
)

// Options are what of a rule's translation can be changed in place. The zero value is a
// rule without ports and options.
type Options struct {
	// Ports bound the ports; the zero value leaves them to the kernel.
	Ports Ports
	// Random, FullyRandom and Persistent are NF_NAT_RANGE_PROTO_RANDOM,
	// NF_NAT_RANGE_PROTO_RANDOM_FULLY and NF_NAT_RANGE_PERSISTENT.
	Random, FullyRandom, Persistent bool
}

// option is one that is on or off, with its words and the kernel's flag.
type option struct {
	on            *bool
	nft, iptables string
	flag          uint32
}

func (o *Options) all() []option {
	return []option{
		{&o.Random, "random", "--random", unix.NF_NAT_RANGE_PROTO_RANDOM},
		{&o.FullyRandom, "fully-random", "--random-fully", unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY},
		{&o.Persistent, "persistent", "--persistent", unix.NF_NAT_RANGE_PERSISTENT},
	}
}

// OptionFlags are those that Options has.
const OptionFlags = unix.NF_NAT_RANGE_PROTO_SPECIFIED | unix.NF_NAT_RANGE_PROTO_RANDOM | unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY | unix.NF_NAT_RANGE_PERSISTENT

// Flags are NF_NAT_RANGE_*.
func (o Options) Flags() (flags uint32) {
	if o.Ports.First != 0 {
		flags = unix.NF_NAT_RANGE_PROTO_SPECIFIED
	}
	for _, x := range o.all() {
		if *x.on {
			flags |= x.flag
		}
	}
	return flags
}

// SetFlags sets what is on or off by NF_NAT_RANGE_*.
func (o *Options) SetFlags(flags uint32) {
	for _, x := range o.all() {
		*x.on = flags&x.flag != 0
	}
}

// Set turns on the option of a word of nft or iptables; false if there is none.
func (o *Options) Set(word string) bool {
	for _, x := range o.all() {
		if word == x.nft || word == x.iptables {
			*x.on = true
			return true
		}
	}
	return false
}

// Words are nft's and iptables' for what is on.
func (o Options) Words() (nft, iptables []string) {
	for _, x := range o.all() {
		if *x.on {
			nft, iptables = append(nft, x.nft), append(iptables, x.iptables)
		}
	}
	return nft, iptables
}

// String is the value: "1024-65535 fully-random", "fully-random", "".
func (o Options) String() string {
	words, _ := o.Words()
	return joinWords(o.Ports.String(), strings.Join(words, " "))
}

// ParseOptions reads such a value; the words' order does not matter.
func ParseOptions(s string) (o Options, err error) {
	for _, word := range strings.Fields(s) {
		before := o
		switch {
		case !strings.HasPrefix(word, "-") && o.Set(word):
		case o.Ports == Ports{}:
			o.Ports, err = ParsePorts(word)
		}
		if err != nil || o == before {
			return Options{}, fmt.Errorf("options of a NAT rule %q: %q: expected one port or range such as 1024-65535, and random, fully-random, persistent, each once", s, word)
		}
	}
	return o, nil
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
