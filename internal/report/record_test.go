package report

import (
	"testing"

	"github.com/natkit/natkit/internal/ring"
)

// TestRecordedHeaders: the line of headers says what each number is of, and that a sample leaves out what is in none.
func TestRecordedHeaders(t *testing.T) {
	for _, tt := range []struct {
		packets ring.PacketContents
		want    string
	}{
		{ring.PacketContents{}, "none"},
		{ring.PacketContents{Kept: 1, Sampled: 1, SampledICMP: 1}, "1 packet"},
		{ring.PacketContents{Kept: 466, NotKept: 182, Lost: 3, Sampled: 1, SampledICMP: 1}, "466 packets, 182 more were seen and not kept, 3 lost"},
		{ring.PacketContents{Kept: 466, NotKept: 182, Sampled: 8, SampledICMP: 1},
			"466 packets, 182 more were seen and not kept; at times of 1 in 8 connections, the others are in no number"},
		{ring.PacketContents{Kept: 466, Sampled: 8, SampledICMP: 1024},
			"466 packets; at times of 1 in 8 connections and 1 in 1,024 packets of ICMP, the others are in no number"},
	} {
		if got := (Recorded{Contents: &ring.Contents{Packets: tt.packets}}).headers(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.packets, got, tt.want)
		}
	}
}
