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

func TestCopies(t *testing.T) {
	const syn, ts = 2, recordTS
	first := record{at: 0, seq: 1, flags: syn, tsval: 7, dir: ts}
	for name, tt := range map[string]struct {
		a, b record
		want bool
	}{
		"at once":                              {first, first, true},
		"at once, with another timestamp":      {first, record{at: 1000, seq: 1, flags: syn, tsval: 8, dir: ts}, false},
		"later, the clock stood still":         {first, record{at: 90e6, seq: 1, flags: syn, tsval: 7, dir: ts}, true},
		"too late":                             {first, record{at: 110e6, seq: 1, flags: syn, tsval: 7, dir: ts}, false},
		"another direction":                    {first, record{at: 0, seq: 1, flags: syn, tsval: 7, dir: ts | 1}, false},
		"at once, with another number in IPv4": {record{seq: 1, id: 3}, record{seq: 1, id: 4, at: 1000}, false},
		"later, with its number in IPv4":       {record{seq: 1, id: 3}, record{seq: 1, id: 3, at: 9e6}, true},
		"later, with the next number":          {record{seq: 1, id: 3}, record{seq: 1, id: 4, at: 9e6}, false},
		"at once, without any number":          {record{seq: 1}, record{seq: 1, at: 1000}, true},
		"later, without any number":            {record{seq: 1}, record{seq: 1, at: 9e6}, false},
	} {
		if got := tt.b.copies(&tt.a); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
