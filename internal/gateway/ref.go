package gateway

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Ref names the rule of the file that something comes from: "nat[3]", "ipv6[0]",
// counted from 0 as in the file.
type Ref struct {
	List  string `json:"list"`
	Index int    `json:"index"`
	// Kind is the rule's word: "snat".
	Kind string `json:"kind"`
}

func (r Ref) String() string { return fmt.Sprintf("%s[%d] %s", r.List, r.Index, r.Kind) }

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

// Compare orders rules as the file has them, nat before ipv6.
func (r Ref) Compare(s Ref) int {
	return cmp.Or(strings.Compare(s.List, r.List), cmp.Compare(r.Index, s.Index))
}

// BitLen is the length of an address of the list's family: 32 or 128.
func (r Ref) BitLen() int {
	if r.List == "ipv6" {
		return 128
	}
	return 32
}
