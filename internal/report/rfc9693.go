package report

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/units"
)

// StatefulSchema is that of bench rfc9693.
const StatefulSchema = "natkit.bench-rfc9693/1"

// Stateful are the measurements of a NAT gateway by RFC 9693, with what it takes to repeat them.
type Stateful struct {
	// Gateway says what was measured.
	Gateway   string      `json:"gateway"`
	Initiator string      `json:"initiator"`
	Responder string      `json:"responder"`
	Frames    StatefulUDP `json:"test_frames"`
	// Tolerance is that of the sender in a valid trial.
	Tolerance rfc9693.Tolerance `json:"tolerance"`
	// ValidationShare is the rate of the replies as a share of that of the trial (RFC 9693: alpha).
	ValidationShare float64 `json:"validation_rate_share"`
	// TearDownBy is how the table was emptied.
	TearDownBy string `json:"teardown_by"`
	Kernel     string `json:"kernel"`
	// Sysctls are those of the gateway, where it is on this machine.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// OtherCPU is the share of the machine's CPUs, 0 to 1, that other processes used.
	OtherCPU float64  `json:"other_cpu_share"`
	Notes    []string `json:"notes,omitempty"`
	*rfc9693.Result
}

// StatefulUDP are the test frames: their tuples are all combinations of sources, source ports and
// destination ports, in an order that the seed determines.
type StatefulUDP struct {
	FrameBytes       []int        `json:"frame_bytes"`
	Sources          []netip.Addr `json:"sources"`
	SourcePorts      nat.Ports    `json:"source_ports"`
	Destination      netip.Addr   `json:"destination"`
	DestinationPorts nat.Ports    `json:"destination_ports"`
	Seed             uint64       `json:"seed"`
	Workers          int          `json:"workers"`
}

// Text writes the setup and a table of what was measured.
func (r *Stateful) Text(w io.Writer, style Style) error {
	t, f := newLoadText(w, style), r.Frames
	t.line("Gateway", "%s", r.Gateway)
	t.line("Test frames", "UDP, %s", frameText(f.FrameBytes))
	t.line("Initiator", "%s%s, ports %v, from %s", r.Initiator, strings.Replace(fromText(f.Sources), "from ", "", 1), f.SourcePorts, units.Plural(f.Workers, "CPU", "CPUs"))
	t.line("To", "%v, ports %v, seed %d", f.Destination, f.DestinationPorts, f.Seed)
	t.line("Responder", "%s", r.Responder)
	t.line("Trial", "%s connections, then a reply in each at %g of the rate; invalid if sending takes more than %s and %v too long, or if frames are lost and one left %v late or more",
		units.Count(r.Config.Connections), r.ValidationShare, units.Percent(r.Tolerance.Share), r.Tolerance.Overrun, r.Tolerance.Late)
	t.line("Table", "emptied by %s", r.TearDownBy)
	t.line("Kernel", "%s%s", r.Kernel, sysctlsText(r.Sysctls))
	notes := r.Notes
	if r.Interrupted {
		notes = append(notes[:len(notes):len(notes)], "interrupted: the values are those of the repetitions that had ended")
	}
	t.remarks("", notes...)
	if err := t.write(); err != nil {
		return err
	}
	t.blank()
	t.summaries(r)
	return t.err
}

func sysctlsText(values map[string]string) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text += fmt.Sprintf("; %s %s", name[strings.LastIndexByte(name, '.')+1:], values[name])
	}
	return text
}

// summaries writes a row for each measurement. A number that is not the gateway's is not in its columns.
func (t *loadText) summaries(r *Stateful) {
	table := &Table{Columns: []Column{{Min: 30}, {Head: "median", Right: true}, {Head: "1st percentile", Right: true}, {Head: "99th", Right: true}, {Head: "of", Right: true}, {}}}
	for _, m := range []struct {
		measurement rfc9693.Measurement
		name        string
		summary     *rfc9693.Summary
	}{
		{rfc9693.Rate, "Connection establishment, 1/s", r.Rate}, {rfc9693.TearDown, "Connection tear-down, 1/s", r.TearDown},
		{rfc9693.Capacity, "Table capacity, connections", r.Capacity},
	} {
		s := m.summary
		switch {
		case s == nil && slices.Contains(r.Config.Measure, m.measurement):
			table.Row(m.name, units.None, units.None, units.None, "0", "not reached")
		case s == nil:
		case s.Limit == rfc9693.ByGateway:
			table.Row(m.name, units.Fixed(s.Median, 0), units.Fixed(s.P1, 0), units.Fixed(s.P99, 0), units.Count(s.Repetitions))
		default:
			table.Cells(Cell{Text: m.name}, Cell{Text: units.None}, Cell{Text: units.None}, Cell{Text: units.None}, Cell{Text: units.Count(s.Repetitions)}, Cell{limitText(*s), Warn})
		}
	}
	t.printer.table(table)
}

// limitText is said instead of a number that is not the gateway's.
func limitText(s rfc9693.Summary) string {
	why := "the generator is the limit: trials at a higher rate are invalid"
	if s.Limit == rfc9693.ByMaximum {
		why = "more was not tried (--max-rate, --max-connections)"
	}
	return fmt.Sprintf("at least %s; %s", units.Fixed(s.P1, 0), why)
}
