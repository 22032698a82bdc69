package snapshot

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDeltaSurvivesTheWrapOfACPU(t *testing.T) {
	before := &ConntrackStat{PerCPU: []map[string]uint64{{"drop": math.MaxUint32 - 1, "found": 7}, {"drop": 5, "found": 7}}}
	after := &ConntrackStat{PerCPU: []map[string]uint64{{"drop": 2, "found": 7}, {"drop": 9, "found": 8}}}
	for name, want := range map[string]uint64{"drop": 4 + 4, "found": 1} {
		if got, ok := after.Delta(before, name); !ok || got != want {
			t.Errorf("%s grew by %d, %v; want %d", name, got, ok, want)
		}
	}
	if _, ok := after.Delta(before, "chaintoolong"); ok {
		t.Error("a counter that the kernel does not have has a delta")
	}
	if _, ok := after.Delta(&ConntrackStat{PerCPU: before.PerCPU[:1]}, "drop"); ok {
		t.Error("different numbers of CPUs were compared")
	}
	var none *ConntrackStat
	if _, ok := none.Delta(before, "drop"); ok {
		t.Error("nothing has a delta")
	}
	if n, ok := after.Total("drop"); !ok || n != 11 {
		t.Errorf("Total = %d, %v", n, ok)
	}
}

func TestKernelBefore(t *testing.T) {
	for release, want := range map[string]bool{"5.4.0-216-generic": true, "4.19.1": true, "5.5.0": false, "5.15.0": false, "6.1.0-rc1": false, "odd": false, "": false} {
		if got := (Kernel{Release: release}).Before(5, 5); got != want {
			t.Errorf("%q is before 5.5: %v", release, got)
		}
	}
}

func TestNewLogLines(t *testing.T) {
	// The log's clock is half a second behind the other one.
	lines := []LogLine{{Seq: 9, UptimeSeconds: 98}, {Seq: 10, UptimeSeconds: 99.6}, {Seq: 11, UptimeSeconds: 101}}
	for name, c := range map[string]struct {
		next uint64
		want []LogLine
	}{
		"by number":                 {10, lines[1:]},
		"by time, without a number": {0, lines[2:]},
	} {
		r := &Recording{Snapshots: []*Snapshot{{UptimeSeconds: 100, KernelLogNext: c.next}, {UptimeSeconds: 102, KernelLog: lines}}}
		if d := cmp.Diff(c.want, r.NewLogLines()); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestBundleRoundTrip(t *testing.T) {
	var file bytes.Buffer
	b, err := NewBundleWriter(&file, BundleHeader{TakenAt: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"0/a": "text", "0/empty": "", "1/b": strings.Repeat("x", 1<<20)}
	for _, name := range []string{"0/a", "0/empty", "1/b"} {
		if err := b.Add(name, []byte(want[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add("too-large", make([]byte, MemberMax+1)); err == nil {
		t.Error("a member that no reader takes was written")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := NewBundleReader(&file, NewBudget(DefaultBudget))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for {
		name, data, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(data)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestUnpackingIsBounded(t *testing.T) {
	l := &limited{r: strings.NewReader("12345678"), left: 5}
	got, err := io.ReadAll(l)
	if string(got) != "12345" || err == nil {
		t.Errorf("read %q, %v; want 5 bytes and an error", got, err)
	}
}

func TestCounters(t *testing.T) {
	before := Counters{"TcpPassiveOpens": 10, "TcpRetransSegs": 4294967290, "TcpCurrEstab": 5, "TcpExtPAWSEstab": 7, "TcpInSegs": 1 << 40}
	after := Counters{"TcpPassiveOpens": 12, "TcpRetransSegs": 4, "TcpCurrEstab": 9, "TcpExtPAWSEstab": 7, "TcpInSegs": 3, "TcpExtPAWSTimewait": 1}
	for name, want := range map[string]uint64{"TcpPassiveOpens": 2, "TcpRetransSegs": 10, "TcpExtPAWSEstab": 0} {
		if got, ok := after.Delta(before, name); !ok || got != want {
			t.Errorf("%s grew by %d, %v; want %d", name, got, ok, want)
		}
	}
	for _, name := range []string{"TcpExtPAWSTimewait", "TcpInSegs", "nothing"} {
		if got, ok := after.Delta(before, name); ok {
			t.Errorf("%s grew by %d, which cannot be known", name, got)
		}
	}
	if got, want := after.Grown(before), (Counters{"TcpPassiveOpens": 2, "TcpRetransSegs": 10}); !maps.Equal(got, want) {
		t.Errorf("grown %v, want %v", got, want)
	}
	if _, ok := Counters(nil).Delta(nil, "TcpPassiveOpens"); ok {
		t.Error("nothing grew")
	}
}

func TestRejected(t *testing.T) {
	s := &SYNs{Sources: []SYNSource{{ByTimestamp: 3, BySequence: 1}, {ByTimestamp: 2}}}
	if ts, seq := s.Rejected(); ts != 5 || seq != 1 {
		t.Errorf("%d by timestamp, %d by sequence number", ts, seq)
	}
}
