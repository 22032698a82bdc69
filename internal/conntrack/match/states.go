package match

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// States are the states that an entry may be in, a bit for each number, by
// protocol. All zero asks for none; otherwise entries of protocols without a bit
// are left out.
type States struct{ TCP, SCTP, DCCP uint32 }

func (s States) matches(e *conntrack.Entry) bool {
	if s == (States{}) {
		return true
	}
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		return has(s.TCP, uint8(e.TCPState))
	case unix.IPPROTO_SCTP:
		return has(s.SCTP, uint8(e.SCTPState))
	case unix.IPPROTO_DCCP:
		return has(s.DCCP, uint8(e.DCCPState))
	}
	return false
}

func has(bits uint32, n uint8) bool { return n < 32 && bits>>n&1 == 1 }

// stateNumbers bounds the numbers whose names are asked for.
const stateNumbers = 32

// noState is what the types of conntrack call a number that they do not know.
var noState = conntrack.TCPState(255).String()

// StateNames are the words that ParseStates knows.
var StateNames = stateNames()

func stateNames() (names []string) {
	for n := range uint8(stateNumbers) {
		for _, name := range namesOf(n) {
			if name != noState && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func namesOf(n uint8) [3]string {
	return [3]string{conntrack.TCPState(n).String(), conntrack.SCTPState(n).String(), conntrack.DCCPState(n).String()}
}

// ParseStates reads names of states, separated by commas: an entry is to be in one
// of them. A name that several protocols have is meant for all of them.
func ParseStates(text string) (s States, err error) {
	for word := range strings.SplitSeq(text, ",") {
		if !s.add(strings.ToUpper(strings.TrimSpace(word))) {
			return States{}, fmt.Errorf("%q is no state; the names are %s", word, strings.Join(StateNames, ", "))
		}
	}
	return s, nil
}

func (s *States) add(name string) (known bool) {
	if name == "LISTEN" { // what conntrack(8) still calls it
		name = conntrack.TCPSynSent2.String()
	}
	for n := range uint8(stateNumbers) {
		for i, bits := range [...]*uint32{&s.TCP, &s.SCTP, &s.DCCP} {
			if namesOf(n)[i] == name && name != noState {
				*bits |= 1 << n
				known = true
			}
		}
	}
	return known
}
