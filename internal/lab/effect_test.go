package lab

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/snapshot"
)

// tried returns a stage with 1,000 requests of which failed did fail.
func tried(name string, failed int64, h Handshakes) StageReport {
	h.RejectedBy = counterPAWSTimewait
	s := StageReport{Name: name, Handshakes: &h}
	s.Completed, s.Failed = 1000-failed, failed
	return s
}

func TestWeighRemedies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		failed int64
		is     Handshakes
		want   Effect
		words  []string
	}{
		{"nothing left", 0, Handshakes{Opened: 1000}, Cures, []string{"0 (400) SYNs sent again", "0 (60) connections late or failed"}},
		{"a few left", 0, Handshakes{Opened: 1000, SYNRetransmits: 8, Rejected: 8}, Cures, []string{"8 (400)"}},
		{"fewer connections", 0, Handshakes{Opened: 10}, Cures, []string{"10 (1,000) connections in all"}},
		{"half", 0, Handshakes{Opened: 1000, SYNRetransmits: 200, Rejected: 200, TimeWait: 16}, Reduces, []string{"16 (180) in TIME_WAIT"}},
		{"hidden", 9, Handshakes{Opened: 1000, SYNRetransmits: 390, Reset: 380, Late: 50}, HidesCounter,
			[]string{"TcpExtPAWSTimewait grew by 0 (400)", "answered 380 ACKs of other connections", "59 (60)"}},
		{"hidden, without a reset", 0, Handshakes{Opened: 1000, SYNRetransmits: 390}, HidesCounter, []string{"grew by 0 (400)"}},
		{"no ports", 700, Handshakes{Opened: 1000}, Trades, []string{"700 (60) connections late or failed"}},
		{"as before", 9, Handshakes{Opened: 1000, SYNRetransmits: 410, Rejected: 410, Late: 51}, NoEffect, []string{"410 (400)"}},
		{"worse", 100, Handshakes{Opened: 1000, SYNRetransmits: 900, Rejected: 900}, NoEffect, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Scenario{Stages: []Stage{{Name: "fault"}, {Name: "remedy", Remedy: &Remedy{Against: "fault", Cost: "much", Risk: "little"}}}}
			r := &Report{Stages: []StageReport{
				tried("fault", 10, Handshakes{Opened: 1000, SYNRetransmits: 400, Rejected: 400, Reset: 400, Late: 50, TimeWait: 180}),
				tried("remedy", tt.failed, tt.is),
			}}
			WeighRemedies(s, r)
			got := r.Stages[1].Remedy
			if got.Effect != tt.want || got.Cost != "much" || got.Risk != "little" || r.Stages[0].Remedy != nil {
				t.Errorf("%+v, want %s", got, tt.want)
			}
			for _, words := range tt.words {
				if !strings.Contains(got.Words, words) {
					t.Errorf("%q, want %q in it", got.Words, words)
				}
			}
			if strings.Contains(got.Words, "RST") != (tt.is.Reset > 0 && tt.want == HidesCounter) {
				t.Errorf("what the clients reset: %q", got.Words)
			}
		})
	}
}

// TestPortsGivenAwayEarly: batches that did not wait until ports were free explain why a
// longer hold-down had no effect.
func TestPortsGivenAwayEarly(t *testing.T) {
	s := &Scenario{Stages: []Stage{{Name: "fault"}, {Name: "hold", Remedy: &Remedy{Against: "fault"}}}}
	r := &Report{Stages: []StageReport{
		tried("fault", 0, Handshakes{SYNRetransmits: 400, Rejected: 400}), tried("hold", 0, Handshakes{SYNRetransmits: 400, Rejected: 400, Reset: 400}),
	}}
	r.Stages[1].Batches = &Batches{Count: 7, OutOfPatience: 6}
	if WeighRemedies(s, r); !strings.Contains(r.Stages[1].Remedy.Words, "6 batches began with ports still held") {
		t.Errorf("%+v", r.Stages[1].Remedy)
	}
}

func TestNothingToCompare(t *testing.T) {
	s := &Scenario{Stages: []Stage{{Name: "fault"}, {Name: "remedy", Remedy: &Remedy{Against: "fault"}}, {Name: "gone", Remedy: &Remedy{Against: "fault"}}}}
	r := &Report{Stages: []StageReport{{Name: "fault"}, tried("remedy", 0, Handshakes{})}}
	if WeighRemedies(s, r); r.Stages[1].Remedy.Effect != "" || !strings.Contains(r.Stages[1].Remedy.Words, "nothing to compare") {
		t.Errorf("%+v", r.Stages[1].Remedy)
	}
	r.Stages[0] = tried("fault", 7, Handshakes{SYNRetransmits: 12, Rejected: 12}) // a fault that hardly showed
	if WeighRemedies(s, r); r.Stages[1].Remedy.Effect != "" || !strings.Contains(r.Stages[1].Remedy.Words, "in stage fault 19 SYNs were sent again") {
		t.Errorf("%+v", r.Stages[1].Remedy)
	}
}

// TestFaultWithoutRejections: where nothing was rejected no remedy hides or trades that.
func TestFaultWithoutRejections(t *testing.T) {
	s := &Scenario{Stages: []Stage{{Name: "fault"}, {Name: "same", Remedy: &Remedy{Against: "fault"}}, {Name: "worse", Remedy: &Remedy{Against: "fault"}}}}
	r := &Report{Stages: []StageReport{tried("fault", 620, Handshakes{}), tried("same", 610, Handshakes{}), tried("worse", 800, Handshakes{})}}
	WeighRemedies(s, r)
	for _, st := range r.Stages[1:] {
		if st.Remedy.Effect != NoEffect {
			t.Errorf("%s: %+v", st.Name, st.Remedy)
		}
	}
}

func TestHandshakes(t *testing.T) {
	client := snapshot.Counters{counterActiveOpens: 100, counterSynRetrans: 40, counterOutRsts: 41}
	grown := snapshot.Counters{counterPassiveOpens: 80, counterPAWSTimewait: 20, counterPAWSEstab: 3}
	server := &snapshot.TCP{Counters: grown, Sockets: &snapshot.TCPSockets{TimeWait: 7}}
	result := &load.Result{Seconds: 4, ConnectLate: 5}
	want := Handshakes{Opened: 100, Accepted: 80, Late: 5, SYNRetransmits: 40, Rejected: 20, RejectedBy: "TcpExtPAWSTimewait",
		RejectRate: 0.25, Reset: 41, TimeWait: 7, PerSecond: 20}
	if got := HandshakesOf(client, grown, server, result); *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
	old := &snapshot.TCP{Counters: snapshot.Counters{counterPAWSEstab: 3}}
	if got := HandshakesOf(client, grown, old, &load.Result{}); got.Rejected != 3 || got.RejectedBy != "TcpExtPAWSEstab" || got.TimeWait != 0 || got.PerSecond != 0 {
		t.Errorf("a kernel without PAWSTimewait: %+v", *got)
	}
	if got := HandshakesOf(nil, nil, old, &load.Result{}); got.RejectRate != 0 {
		t.Errorf("no connection: %+v", *got)
	}
}
