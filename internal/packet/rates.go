package packet

// lineOverhead is what a frame takes on the wire besides itself: preamble, start
// delimiter and the least gap before the next one (IEEE 802.3), in bytes.
const lineOverhead = 7 + 1 + 12

// BitRates are the rates of one direction.
type BitRates struct {
	// Frames counts the bits of frames, FCS included.
	Frames float64 `json:"frames_bits_per_second"`
	// Line counts preambles and gaps, too: what Ethernet of that speed is full of.
	Line float64 `json:"line_bits_per_second"`
}

// SentBits are the rates at which it was sent.
func (r *Result) SentBits() BitRates { return bitRates(r.SentPerSecond, r.SentBytes, r.Sent) }

// ReceivedBits are the rates at which it arrived.
func (r *Result) ReceivedBits() BitRates {
	return bitRates(r.ReceivedPerSecond, r.ReceivedBytes, r.Received)
}

func bitRates(perSecond float64, bytes, packets int64) BitRates {
	if packets == 0 {
		return BitRates{}
	}
	mean := float64(bytes) / float64(packets)
	return BitRates{Frames: perSecond * mean * 8, Line: perSecond * (mean + lineOverhead) * 8}
}
