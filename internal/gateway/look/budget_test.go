package look

import (
	"testing"
	"time"
)

func TestBudgetReadsWhatATwentiethOfACPUAllows(t *testing.T) {
	for _, tt := range []struct {
		name string
		took time.Duration
		read int64
		want int64
	}{
		{"cheap", 10 * time.Millisecond, 10000, 100000},
		{"cheap, and no more than most", time.Millisecond, 10000, 131072},
		{"dear", time.Second, 100000, 10000},
		{"so dear that it reads the least", 10 * time.Second, 100000, least},
		{"too little to judge by", time.Second, 100, 50000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := Budget{Interval: 2 * time.Second, Most: 131072, next: 50000}
			if b.spent(tt.took, tt.read); b.next != tt.want {
				t.Errorf("next %d, want %d", b.next, tt.want)
			}
		})
	}
}

func TestBudgetBoundsTheLook(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 12)
	b := Budget{Interval: time.Second, Most: 5}
	l := New(w.options())
	s, err := b.Look(t.Context(), l, false)
	if err != nil || s.Flows.Sampled != 5 || s.Flows.Complete {
		t.Errorf("%v: %+v", err, s.Flows)
	}
	if s, err = b.Look(t.Context(), l, true); err != nil || s.Flows.Sampled != 12 || !s.Flows.Complete {
		t.Errorf("all: %v: %+v", err, s.Flows)
	}
}

func TestSampleIsScaled(t *testing.T) {
	w := newWorld(t)
	w.apply(example, w.facts())
	w.connect(w.inside, "203.0.113.100:7", 20)
	o := w.options()
	o.MaxEntries = 10
	s, err := New(o).Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Flows.Complete || s.Flows.Sampled != 10 || s.Rules[1].Flows != 20 || s.Rules[1].Packets != 40 {
		t.Errorf("%+v, %+v", s.Flows, s.Rules[1].Usage)
	}
}
