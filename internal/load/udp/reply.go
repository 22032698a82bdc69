package udp

import "github.com/natkit/natkit/internal/packet"

// replyBit of a token's run is clear in requests and set in replies. Servers answer
// requests alone: two of them that answered everything would send to each other
// without end once one datagram with a forged source came.
const replyBit = 1

// RequestRun makes any number the run of requests.
func RequestRun(n uint32) uint32 { return n &^ replyBit }

// ReplyRun is the run in replies to a run's requests.
func ReplyRun(run uint32) uint32 { return run | replyBit }

// MakeReply makes a request's payload that of its reply, in place; false where it is
// no request.
func MakeReply(payload []byte) bool {
	token, ok := packet.ParseToken(payload)
	if !ok || token.Run&replyBit != 0 {
		return false
	}
	token.Run = ReplyRun(token.Run)
	token.Put(payload)
	return true
}
