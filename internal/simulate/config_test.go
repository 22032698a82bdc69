package simulate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestPresets: every file is listed, under its own name, and makes sense.
func TestPresets(t *testing.T) {
	entries, err := presetFiles.ReadDir("presets")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".yaml"); !slices.Contains(presetOrder, name) {
			t.Errorf("presets/%s is not in the list", e.Name())
		}
	}
	for i, p := range Presets() {
		if p.Name != presetOrder[i] || p.Title == "" || p.About == "" {
			t.Errorf("preset %s says name %q, title %q, about %q", presetOrder[i], p.Name, p.Title, p.About)
		}
		if found, err := FindPreset(p.Name); err != nil || found != p {
			t.Errorf("FindPreset(%s): %v, %v", p.Name, found, err)
		}
	}
	if _, err := FindPreset("no-such"); err == nil || !strings.Contains(err.Error(), "old-kernel") {
		t.Errorf("an unknown preset: %v", err)
	}
}

// Whether the events of ports that were taken before their time are dropped early makes
// no difference.
func TestSweep(t *testing.T) {
	swept := 0
	for seed := range uint64(60) {
		c := anyConfig(seed)
		c.NAT.Strategy, c.NAT.Evicts, c.NAT.HoldDown = StrategyKernel, nil, &Duration{50 * time.Second}
		want := run(t, c)
		f := c.filled()
		e := newEngine(&f)
		e.sweepAt = 20
		if err := e.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.sound(t, seed)
		if e.sweepAt > 20 {
			swept++
		}
		// The last event of all may be such a one.
		if diff := cmp.Diff(want, e.result(), cmpopts.IgnoreFields(Result{}, "Seconds")); diff != "" {
			t.Errorf("seed %d: %s", seed, diff)
		}
	}
	if swept < 30 {
		t.Errorf("only %d were swept", swept)
	}
}

// A NAT that holds its ports for a day, and gives them away before, remembers as many
// events as it has ports, and not one for each connection.
func TestHeldEventsAreBounded(t *testing.T) {
	c := Config{Duration: Duration{10 * time.Minute}, Arrivals: &Arrivals{Rate: 500}, Clients: []Clients{{Hosts: 50}}, Servers: []Servers{{}},
		NAT: NAT{Strategy: StrategyKernel, HoldDown: &Duration{day}, Ports: [2]uint16{20000, 20999}}}
	f := c.filled()
	e := newEngine(&f)
	e.sweepAt = 100
	if err := e.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(e.queues[qHold].ring); n > 4096 || e.total[fTimeWaits] < 100_000 {
		t.Errorf("place for %d events of 1,000 ports after %d connections", n, e.total[fTimeWaits])
	}
}

// What would need memory without end is refused, however it is said.
func TestWaitingIsBounded(t *testing.T) {
	const patient = "hosts: 2, syn: {retries: 60, first: 120s}"
	for _, tt := range []struct{ arrivals, clients, want string }{
		{"arrivals: {rate: 30000}", "hosts: 2", ""},
		{"arrivals: {rate: 50000}", "hosts: 2, syn: {timeout: 5s}", ""},
		{"arrivals: {rate: 50000}", patient, "x.yaml:4:10: expected clients of which at most 4194304 can wait"},
		{"arrivals: {hours: [" + strings.Repeat("1, ", 23) + "40000]}", patient, "can wait"},
		{"arrivals: {daily: {low: 40000, high: 1, peak: 1h}}", patient, "can wait"},
		{"arrivals: {points: [{at: 0s, rate: 1}, {at: 5s, rate: 40000}]}", patient, "can wait"},
		{"arrivals: {rate: 50000}\nconnection: {requests: 1000}", patient, ""},
		{"batches: [{connections: 5000000, rate: 50000}]", patient, "can wait"},
		{"batches: [{connections: 4000000, rate: 50000}]", patient, ""},
		{"batches: [{connections: 9000000, concurrency: 1000}]", patient, ""},
	} {
		text := strings.Replace(strings.Replace(small, "arrivals: {rate: 10}", tt.arrivals, 1), "hosts: 2", tt.clients, 1)
		_, err := Parse("x.yaml", []byte(text))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %s: error %v, want %q", tt.arrivals, tt.clients, err, tt.want)
		}
	}
}
