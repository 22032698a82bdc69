package filter

import (
	"fmt"
	"slices"
	"strings"
)

// MaxWords is the most words and parentheses of a filter, which bounds the program
// that is made of it.
const MaxWords = 256

// MaxDepth is how deep parentheses and nots may lie in each other.
const MaxDepth = 32

// token is a word or a parenthesis. The n-th is called word n in errors.
type token struct {
	n    int
	text string
}

// fail says what is wrong with a word.
func (t token) fail(format string, args ...any) error {
	return fmt.Errorf("filter: word %d %.64q: %s", t.n, t.text, fmt.Sprintf(format, args...))
}

// tokens takes words apart: an argument of the command line may hold several, or
// parentheses that touch them.
func tokens(words []string) ([]token, error) {
	spaced := strings.NewReplacer("(", " ( ", ")", " ) ")
	var ts []token
	for _, word := range words {
		for _, text := range strings.Fields(spaced.Replace(word)) {
			t := token{len(ts) + 1, text}
			if len(ts) == MaxWords {
				return nil, t.fail("a filter has at most %d words and parentheses: use nets and port ranges", MaxWords)
			}
			if err := t.check(); err != nil {
				return nil, err
			}
			ts = append(ts, t)
		}
	}
	return ts, nil
}

var (
	// keywords are all that a filter is made of, but for addresses and numbers.
	keywords = []string{"host", "net", "port", "portrange", "src", "dst", "tcp", "udp", "icmp", "ip", "ip6", "and", "or", "not", "(", ")"}
	// foreign are the words of pcap-filter(7) that natkit does not know.
	foreign = strings.Fields("ether fddi tr wlan arp rarp decnet sctp icmp6 igmp igrp pim vrrp carp ah esp atalk aarp lat " +
		"moprc mopdl iso esis isis clnp stp ipx netbeui proto protochain gateway broadcast multicast mask less greater len " +
		"inbound outbound ifname on ifindex rnr rulenum reason rset ruleset srnr subrulenum action vlan mpls pppoed pppoes " +
		"geneve vxlan link type subtype dir direction addr1 addr2 addr3 addr4 ra ta lane vpi vci byte")
)

// operators maps what C and pcap-filter(7) write to the words for it.
var operators = []struct{ sign, word string }{{"&&", "and"}, {"||", "or"}, {"!", "not"}}

// Words are those that a filter is made of, but for addresses, numbers and parentheses.
func Words() []string { return slices.Clone(keywords[:len(keywords)-2]) }

func (t token) keyword() bool { return slices.Contains(keywords, t.text) }

// check refuses words that can be nothing in a filter, whatever is around them.
func (t token) check() error {
	if t.keyword() {
		return nil
	}
	for _, operator := range operators {
		if strings.Contains(t.text, operator.sign) {
			return t.fail("write %q instead of %q", operator.word, operator.sign)
		}
	}
	switch lower := strings.ToLower(t.text); {
	case lower != t.text && slices.Contains(keywords, lower):
		return t.fail("write %q", lower)
	case slices.Contains(foreign, lower):
		return t.fail("not supported; there are %s", strings.Join(keywords, " "))
	case strings.ContainsAny(t.text, "[]<>=&|+*\\"):
		return t.fail("bytes of a packet and arithmetic are not supported; there are %s", strings.Join(keywords, " "))
	}
	return nil
}
