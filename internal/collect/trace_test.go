package collect

import (
	"archive/tar"
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
)

// aTrace is one in which everything is set.
func aTrace() snapshot.Trace {
	return snapshot.Trace{
		Drops: &snapshot.Drops{
			Seconds: 2, Source: "tp_btf", Packets: 7, FlowSample: 64, Harmless: 3, Lost: 1, NAT: "counters",
			Sites:  []snapshot.DropSite{{Function: "nf_hook_slow", Offset: 0xa5, Module: "x", Reason: "NETFILTER_DROP", Protocol: "tcp", Netns: 4026532250, Packets: 7}},
			Flows:  []snapshot.DropFlow{{Function: "nf_hook_slow", Reason: "NETFILTER_DROP", Protocol: "tcp", Source: "198.18.0.2:1024", Destination: "198.18.0.1:8080", Interface: "eth0", Netns: 4026532250, Packets: 2}},
			Causes: []snapshot.DropCause{{Cause: snapshot.CauseTableFull, Netns: 4026532250, Packets: 7, Source: "conntrack drop"}},
		},
		Profile: &snapshot.Profile{
			Seconds: 2, Hz: 99, CPUs: 2, Event: "cpu-clock", Samples: 100, Lost: 1, Receive: 60,
			Classes:   []snapshot.ProfileClass{{Name: "rules", Receive: true, Samples: 60}, {Name: "other", Samples: 40}},
			Functions: []snapshot.ProfileSymbol{{Function: "nft_do_chain", Module: "nf_tables", Class: "rules", Self: 10, Total: 60}},
		},
		SYNs: &snapshot.SYNs{
			Seconds: 2, Sample: 1, SYNs: 700, Repeated: 9, Elsewhere: 3, AnswersSeconds: 1.5, MoreSources: 2,
			Sources: []snapshot.SYNSource{{Source: "198.18.0.1", Destination: "198.19.0.2", SYNs: 700, Repeated: 9, Plain: 1, ByTimestamp: 7, BySequence: 2, TimeWait: 8, Challenged: 1, Clocks: 2}},
		},
		Parts: []snapshot.Part{{Name: snapshot.PartDrops, DurationSeconds: 0.1}, {Name: snapshot.PartProfile, DurationSeconds: 0.1, Error: "half of it"}},
	}
}

func TestTraceLastsAsLongAsAsked(t *testing.T) {
	dir := t.TempDir()
	var started, stopped time.Time
	o := RecordOptions{Options: Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"}, For: 50 * time.Millisecond}
	o.Trace = func(context.Context, *snapshot.Snapshot) func() snapshot.Trace {
		started = time.Now()
		return func() snapshot.Trace { stopped = time.Now(); return aTrace() }
	}
	rec, err := Record(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if took := stopped.Sub(started); took < o.For {
		t.Errorf("traced for %s of %s", took, o.For)
	}
	if first, last := rec.First().TakenAt, rec.Last().TakenAt; started.Before(first) || stopped.After(last) {
		t.Errorf("traced from %s to %s, looked at %s and %s", started, stopped, first, last)
	}
	if tried, _ := rec.First().Traced(snapshot.PartDrops); tried {
		t.Error("the first snapshot has the trace's parts")
	}
}

func TestBundleCarriesTheTrace(t *testing.T) {
	dir := t.TempDir()
	var file bytes.Buffer
	live, err := WriteBundle(t.Context(), &file, RecordOptions{
		Options: Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"},
		Trace:   func(context.Context, *snapshot.Snapshot) func() snapshot.Trace { return aTrace },
	})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := ReadBundle(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := aTrace()
	for name, r := range map[string]*snapshot.Recording{"written": live, "read": rec} {
		if d := cmp.Diff(&want, &snapshot.Trace{Drops: r.Drops, Profile: r.Profile, SYNs: r.SYNs, Parts: want.Parts}); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if tried, why := r.Last().Traced(snapshot.PartProfile); !tried || why != "half of it" {
			t.Errorf("%s: the profile's part is %v, %q", name, tried, why)
		}
	}
}

func TestBundleWithoutATrace(t *testing.T) {
	rec, err := ReadBundle(bytes.NewReader(smallBundle(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if tried, _ := rec.Last().Traced(snapshot.PartDrops); tried || rec.Drops != nil || rec.Profile != nil {
		t.Errorf("without tracing there is %+v, %+v", rec.Drops, rec.Profile)
	}
}

// What a newer natkit puts before a snapshot's head does not keep this one from
// reading the rest: bundles of both have one form.
func TestUnknownMembersArePassedOver(t *testing.T) {
	file := archive(t, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`},
		tar.Header{Name: "0/head.json", Uname: "{}"}, tar.Header{Name: "0/tail.json", Uname: "{}"},
		tar.Header{Name: "1/of-the-future.bin", Uname: "?"}, tar.Header{Name: "1/head.json", Uname: "{}"}, tar.Header{Name: "1/tail.json", Uname: "{}"},
		tar.Header{Name: "end.json", Uname: `{"members":6}`})
	if _, err := ReadBundle(bytes.NewReader(file), nil); err != nil {
		t.Error(err)
	}
}

func TestTraceThatIsNoJSON(t *testing.T) {
	file := archive(t, tar.Header{Name: "natkit-bundle.json", Uname: `{"schema":"natkit.bundle/1"}`},
		tar.Header{Name: "0/head.json", Uname: "{}"}, tar.Header{Name: "0/tail.json", Uname: "{}"},
		tar.Header{Name: "1/trace.json", Uname: "["}, tar.Header{Name: "1/head.json", Uname: "{}"})
	if rec, err := ReadBundle(bytes.NewReader(file), nil); rec != nil || err == nil || !strings.Contains(err.Error(), "1/trace.json") {
		t.Errorf("ReadBundle = %v, %v", rec, err)
	}
}
