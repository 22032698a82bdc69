package packet

import "testing"

// TestBitRates: 10 Gbit/s Ethernet carries 14,880,952 frames of 64 bytes per second
// (RFC 2544, section 20).
func TestBitRates(t *testing.T) {
	r := Result{SentPerSecond: 14880952, SentBytes: 6400}
	r.Sent = 100
	if got := r.SentBits(); got.Line < 9.9999e9 || got.Line > 10e9 || got.Frames != 14880952*64*8 {
		t.Errorf("%+v", got)
	}
	if got := r.ReceivedBits(); got != (BitRates{}) {
		t.Errorf("nothing came: %+v", got)
	}
}
