package report

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/net/html"
)

// simulated runs a preset for some minutes, at other rates where they are given.
func simulated(t *testing.T, preset string, minutes int, rates ...float64) *simulate.Result {
	t.Helper()
	p, err := simulate.FindPreset(preset)
	if err != nil {
		t.Fatal(err)
	}
	c, err := simulate.Parse(preset, []byte(p.Text))
	if err != nil {
		t.Fatal(err)
	}
	c.Duration.Duration = time.Duration(minutes) * time.Minute
	if len(rates) > 0 {
		c.Arrivals.Points = nil
		for i, rate := range rates {
			at := c.Duration.Duration / time.Duration(max(len(rates)-1, 1)) * time.Duration(i)
			c.Arrivals.Points = append(c.Arrivals.Points, simulate.RatePoint{At: simulate.Duration{Duration: at}, Rate: rate})
		}
	}
	r, err := simulate.Run(t.Context(), *c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSimulate(t *testing.T) {
	for _, tc := range []struct {
		golden string
		result *simulate.Result
	}{
		{"simulate-mixed.txt", simulated(t, "mixed", 20, 540, 620, 620)},
		{"simulate-lab.txt", simulated(t, "lab", 0)},
		{"simulate-quiet.txt", simulated(t, "default", 5)},
		{"simulate-empty.txt", &simulate.Result{}},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			var text bytes.Buffer
			if err := (Simulation{Result: tc.result}).Text(&text, Style{}); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(text.String()) {
				if n := textWidth(strings.TrimSpace(line)); n > Width {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			golden(t, tc.golden, text.Bytes())
		})
	}
}

// TestAddressesNeeded: with as many addresses as the verdict says nothing is refused.
func TestAddressesNeeded(t *testing.T) {
	p, err := simulate.FindPreset("old-kernel")
	if err != nil {
		t.Fatal(err)
	}
	c := p.Config
	c.Duration.Duration, c.Arrivals = 6*time.Minute, &simulate.Arrivals{Rate: 1300}
	c.Clients = []simulate.Clients{c.Clients[0]}
	c.Clients[0].Hosts = 2000 // so that each address has its part of them
	for _, tt := range []struct {
		addresses int
		says      string
	}{{1, "At 1,300/s it takes 3 NAT addresses in place of 1, each"}, {2, "it takes 3 NAT addresses in place of 2, each"}, {3, ""}} {
		c.NAT.Addresses = tt.addresses
		r, err := simulate.Run(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, cell := range addressesNeeded(r) {
			said += cell.Text
		}
		if !strings.Contains(said, tt.says) || (said == "") != (tt.says == "") || (r.Totals.Rejects() == 0) != (tt.says == "") {
			t.Errorf("%d addresses: %d refused, %q", tt.addresses, r.Totals.Rejects(), said)
		}
	}
}

// TestNoPortFirst: what fails stands before what does not.
func TestNoPortFirst(t *testing.T) {
	p, err := simulate.FindPreset(simulate.DefaultPreset)
	if err != nil {
		t.Fatal(err)
	}
	c := p.Config
	c.Duration.Duration, c.Arrivals = 4*time.Minute, &simulate.Arrivals{Rate: 600}
	c.NAT.HoldDown = &simulate.Duration{Duration: 2 * time.Minute}
	r, err := simulate.Run(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	said := simulationVerdict(r)
	last := said[len(said)-1].Text
	if !strings.HasPrefix(said[0].Text, "The NAT had no port for ") || said[1].Tone != Plain || !strings.HasPrefix(said[1].Text, "No SYN is refused") ||
		!strings.HasPrefix(last, "At 600/s it takes 2 NAT addresses in place of 1, ") || !strings.Contains(last, "a port for each connection") {
		t.Errorf("%q", said)
	}
}

// TestSimulationLimits: where ports come again before any TIME_WAIT runs out, the limit
// is still that of the kernel, and there is none where servers have no TIME_WAIT.
func TestSimulationLimits(t *testing.T) {
	p, err := simulate.FindPreset("old-kernel")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		rate   float64
		change func(*simulate.Config)
		want   []string
	}{
		{"just over", 600, func(*simulate.Config) {}, []string{"63,488 ports / 120 s", "63,488 ports / 112.5 s"}},
		{"far over", 1300, func(*simulate.Config) {}, []string{"63,488 ports / 120 s", "63,488 ports / 112.5 s"}},
		{"vendor", 1300, func(c *simulate.Config) { c.Servers[0].Kernel = simulate.KernelWheelRearm }, []string{"63,488 ports / 120 s", "63,488 ports / 67 s"}},
		{"few closings", 20, func(*simulate.Config) {}, []string{"63,488 ports / 120 s", "63,488 ports / 60 s"}},
		{"client closes", 600, func(c *simulate.Config) { c.Connection.ClosesFirst = simulate.CloseClient }, []string{"63,488 ports / 120 s"}},
		{"no TIME_WAIT", 600, func(c *simulate.Config) { c.Servers[0].MaxTimeWait = new(int) }, []string{"63,488 ports / 120 s"}},
		{"direct", 2000, func(c *simulate.Config) { c.Balancer = nil }, []string{"253,952 ports / 112.5 s"}},
	} {
		c := p.Config
		c.Duration.Duration, c.Arrivals = 4*time.Minute, &simulate.Arrivals{Rate: tt.rate}
		c.Servers = []simulate.Servers{c.Servers[0]}
		tt.change(&c)
		r, err := simulate.Run(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range limitsOf(r) {
			got = append(got, l.arithmetic())
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestSimulateCSV(t *testing.T) {
	r := simulated(t, "mixed", 10, 560)
	r.Servers[0].Name = "a,\"b\""
	var text bytes.Buffer
	if err := SimulateCSV(&text, r); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&text).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(r.Curve)+1 || len(rows[0]) != 15+3*2 || rows[0][15] != `connections of a,"b"` || rows[1][0] != "0" {
		t.Errorf("%d rows, heads %q, first %q", len(rows), rows[0], rows[1])
	}
}

func TestSimulateHTML(t *testing.T) {
	page, root := simulatePageOf(t, simulated(t, "mixed", 10, 560, 620))
	if !strings.Contains(page, simulationOnly) {
		t.Error("the page does not say that it is a simulation")
	}
	charts := 0
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			switch a.Key {
			case "src", "srcset", "href", "action", "data":
				t.Errorf("<%s %s=%q> loads something", n.Data, a.Key, a.Val)
			}
		}
		if attribute(n, "class") == "chart" {
			charts++
			if len(attribute(n, "aria-label")) < 20 {
				t.Errorf("chart %s has no alternative text", attribute(n, "id"))
			}
		}
		if n.Data == "table" && (!contains(n, "caption") || !contains(n, "th")) {
			t.Errorf("a table has no caption or no header cell: %s", text(n))
		}
	}
	if charts != 4 {
		t.Errorf("%d charts", charts)
	}
}

// TestSimulateHostile: what a configuration says cannot leave its place.
func TestSimulateHostile(t *testing.T) {
	harmless, evil := simulated(t, "mixed", 3, 560), simulated(t, "mixed", 3, 560)
	testutil.Fill(harmless, "x")
	testutil.Fill(evil, hostile)
	_, want := simulatePageOf(t, harmless)
	_, got := simulatePageOf(t, evil)
	if diff := cmp.Diff(testutil.Elements(want), testutil.Elements(got)); diff != "" {
		t.Errorf("the page's structure changed (-harmless +hostile):\n%s", diff)
	}
	var text bytes.Buffer
	if err := (Simulation{Result: evil}).Text(&text, Style{}); err != nil || strings.ContainsAny(text.String(), "\x1b\x07\u202e\u009b") {
		t.Errorf("error %v, or the text acts on the terminal: %q", err, &text)
	}
}

func simulatePageOf(t *testing.T, r *simulate.Result) (string, *html.Node) {
	t.Helper()
	var page bytes.Buffer
	if err := SimulateHTML(&page, r); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(bytes.NewReader(page.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return page.String(), root
}

func TestSqueeze(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		points int
		want   []float64
	}{
		{nil, 3, nil},
		{[]float64{1, 2}, 3, []float64{1, 2}},
		{[]float64{1, 2, 3, 4}, 2, []float64{1.5, 3.5}},
		{[]float64{1, 2, 6}, 2, []float64{1, 4}},
	} {
		if got := Squeeze(tt.values, tt.points); !cmp.Equal(tt.want, got) {
			t.Errorf("Squeeze(%v, %d) = %v, want %v", tt.values, tt.points, got, tt.want)
		}
	}
}
