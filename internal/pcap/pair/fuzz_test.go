package pair

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// FuzzMatch: no captures panic, nothing is counted twice, and the numbers are the same
// whichever file comes first, but for the sides.
func FuzzMatch(f *testing.F) {
	syn := pkt{src: client, dst: server, flags: frame.SYN, seq: 1}
	f.Add(file(f, 200, syn, pkt{src: client, dst: server, payload: "x"}), file(f, 200, syn.from(public).routed(us)))
	f.Add(file(f, 60, syn, syn, syn), file(f, 54, syn.from(public), syn.from(public2)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		defer testutil.Bounded(t, len(a)+len(b))()
		r, err := Match(bytes.NewReader(a), bytes.NewReader(b), Options{Memory: MinMemory, Listed: 3})
		if err != nil {
			if r != nil {
				t.Error("a report beside an error")
			}
			return
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
		seen := r.Inside.Compared + r.Outside.Compared
		judged := 2*(r.Out.Matched+r.In.Matched) + r.Out.Lost + r.In.Lost + r.Out.Twice + r.In.Twice +
			r.Out.Appeared + r.In.Appeared + r.Ambiguous
		for _, s := range []Side{r.Inside, r.Outside} {
			judged += s.Local + s.Uncovered.Before + s.Uncovered.After
		}
		if seen != judged {
			t.Errorf("%d packets were compared, %d judged: %+v", seen, judged, r)
		}
		if len(r.Incomplete) > 3 || len(r.Mappings) > 3 {
			t.Error("more listed than asked for")
		}
	})
}

// BenchmarkMatch reads two captures of 100,000 packets of 20,000 connections each, with
// 96 bytes of every packet.
func BenchmarkMatch(b *testing.B) {
	var inside, outside []pkt
	for i := range 100_000 {
		c := i / 5
		p := pkt{at: time.Duration(i) * 10 * us, flags: frame.ACK, seq: uint32(c*1000 + i), ack: uint32(c), dst: server,
			src: fmt.Sprintf("198.18.%d.%d:%d", c>>8&255, c&255, 1024+c)}
		inside = append(inside, p)
		outside = append(outside, p.from(fmt.Sprintf("198.19.0.1:%d", 1024+c)).routed(20*us))
	}
	first, second := file(b, 96, inside...), file(b, 96, outside...)
	b.SetBytes(int64(len(first) + len(second)))
	for b.Loop() {
		if r := match(b, first, second, Options{}); r.Out.Matched != 100_000 {
			b.Fatalf("%+v", r.Out)
		}
	}
	b.ReportMetric(float64(b.N)*200_000/b.Elapsed().Seconds(), "packets/s")
}
