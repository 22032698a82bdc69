package pcap

import "testing"

func TestBackedOff(t *testing.T) {
	for name, tt := range map[string]struct {
		intervals []float32
		want      bool
	}{
		"doubling":                       {[]float32{0.2, 0.4, 0.8}, true},
		"a tail loss probe before":       {[]float32{0.2058, 0.208, 0.436, 0.828}, true},
		"a probe and one retransmission": {[]float32{0.2, 0.21}, false},
		"sent twice":                     {[]float32{1}, false},
		"fast retransmissions":           {[]float32{0.001, 0.002, 0.004}, false},
		"regular, as of an application":  {[]float32{1, 1, 1, 1}, false},
		"more than are remembered":       {make([]float32, maxIntervals), false},
		"none":                           {nil, false},
	} {
		a := again{}
		for i, v := range tt.intervals {
			a.intervals[i] = v
			a.count++
		}
		if len(tt.intervals) == maxIntervals {
			a.count = 200
		}
		if got := a.backedOff(); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
