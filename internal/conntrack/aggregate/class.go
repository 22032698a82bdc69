package aggregate

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// The bytes that stand for a state: which protocol's, and its number.
const (
	sctpStates = 0x40
	dccpStates = 0x80
	stateMax   = 0x3f
	stateNone  = 0xff
)

// stateOf is the state of an entry as one byte.
func stateOf(e *conntrack.Entry) byte {
	switch {
	case e.Fields.Has(conntrack.NoState):
	case e.Orig.Proto == unix.IPPROTO_TCP:
		return min(byte(e.TCPState), stateMax)
	case e.Orig.Proto == unix.IPPROTO_SCTP:
		return sctpStates | min(byte(e.SCTPState), stateMax)
	case e.Orig.Proto == unix.IPPROTO_DCCP:
		return dccpStates | min(byte(e.DCCPState), stateMax)
	}
	return stateNone
}

// stateName is TCP's name of the state, those of other protocols with the protocol's.
func stateName(b byte) string {
	switch {
	case b == stateNone:
		return none
	case b >= dccpStates:
		return "dccp " + conntrack.DCCPState(b&stateMax).String()
	case b >= sctpStates:
		return "sctp " + conntrack.SCTPState(b&stateMax).String()
	}
	return conntrack.TCPState(b).String()
}

// The bits of a status byte: of the many of an entry those that every form of a table
// tells, also text.
const (
	statusAnswered = 1 << iota
	statusAssured
	statusOffloaded
	statusHardware
	statuses
)

func statusOf(e *conntrack.Entry) (b byte) {
	if e.Status.Has(conntrack.SeenReply) {
		b |= statusAnswered
	}
	if e.Status.Has(conntrack.Assured) {
		b |= statusAssured
	}
	switch {
	// An entry in hardware is offloaded in software too; conntrack(8) tells the one.
	case e.Status.Has(conntrack.HWOffload):
		b |= statusHardware
	case e.Status.Has(conntrack.Offload):
		b |= statusOffloaded
	}
	return b
}

func statusName(b byte) string {
	var words []string
	switch {
	case b&statusAnswered == 0:
		words = append(words, "unreplied")
	case b&statusAssured == 0:
		words = append(words, "answered")
	}
	if b&statusAssured != 0 {
		words = append(words, "assured")
	}
	if b&statusOffloaded != 0 {
		words = append(words, "offloaded")
	}
	if b&statusHardware != 0 {
		words = append(words, "offloaded to hardware")
	}
	return strings.Join(words, " ")
}

// The bits of a byte that tells the translation.
const (
	natSource = 1 << iota
	natDestination
	translations
)

func natOf(e *conntrack.Entry) (b byte) {
	if e.IsSNAT() {
		b |= natSource
	}
	if e.IsDNAT() {
		b |= natDestination
	}
	return b
}

var natNames = [translations]string{"none", "snat", "dnat", "both"}
