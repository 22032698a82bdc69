package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// packetsText lays out a result as bench http does: what was done, what came of it.
type packetsText struct {
	*packetsDocument
	table report.Table
}

func (d *packetsDocument) writeText(w io.Writer, style report.Style) error {
	t := packetsText{packetsDocument: d, table: report.Table{Columns: []report.Column{{Min: 22}, {Wrap: true}}}}
	t.about()
	t.table.Row()
	t.delivery()
	t.rates()
	t.notes()
	var b bytes.Buffer
	if err := t.table.Write(&b, style); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (t *packetsText) line(name, format string, args ...any) {
	t.toned(report.Plain, name, format, args...)
}

func (t *packetsText) toned(tone report.Tone, name, format string, args ...any) {
	t.table.Cells(report.Cell{Text: name + ":"}, report.Cell{Text: fmt.Sprintf(format, args...), Tone: tone})
}

func (t *packetsText) about() {
	c := t.Config
	t.line("Packets", "%s", packetsAre(c))
	t.line("Frames", "%s bytes with FCS", sizesText(c.Spec.Sizes))
	if !c.Bare {
		t.line("Flows", "%s, seed %d", flowCount(c.Flows.Count), c.Flows.Seed)
		t.line("From", "%s, %s", t.From, sourcesText(c.Flows))
		t.line("To", "%v", c.Flows.Destinations[0])
	} else {
		t.line("From", "%s", t.From)
	}
	t.line("Counted at", "%s", cmp.Or(t.To, "nowhere: without --sink nobody counts what arrives"))
	t.line("Load", "%s", packetsLoad(c))
	if c.Verify {
		t.line("Expected on arrival", "%s", expectText(c.Expect))
	}
}

func (t *packetsText) delivery() {
	r := t.Result
	t.line("Time taken", "%.3f seconds", r.Seconds)
	t.line("Packets sent", "%s", units.Count(r.Sent))
	if r.To == "" {
		return
	}
	t.line("Packets received", "%s", units.Count(r.Received))
	if r.Config.Bare { // nobody can tell them from others
		return
	}
	t.count("Lost", r.Lost, report.Bad)
	bad := badArrivals(r)
	for _, b := range bad {
		t.toned(report.Bad, "  "+b.name, "%s", strings.TrimSuffix(units.Count(b.count)+": "+b.hint, ": "))
	}
	if never := neverArrived(r); len(bad) > 0 && never > 0 {
		t.line("  never arrived", "%s", units.Count(never))
	}
	t.count("Duplicated", r.Duplicated, report.Bad)
	t.count("Reordered", r.Reordered, report.Warn)
	if r.Late > 0 {
		t.line("Late", "%s: more than %d behind the newest of their flow, so reordered or duplicated", units.Count(r.Late), packets.Window)
	}
	if r.OtherPackets > 0 {
		t.line("Other packets", "%s came to the sink and were let through", units.Count(r.OtherPackets))
	}
	t.verdict()
}

// count writes a number of packets with its share, in a tone unless it is 0.
func (t *packetsText) count(name string, n int64, tone report.Tone) {
	if n == 0 {
		t.line(name, "0")
		return
	}
	t.toned(tone, name, "%s (%s)", units.Count(n), units.Percent(float64(n)/float64(t.Sent)))
}

func (t *packetsText) verdict() {
	switch {
	case t.MaxLoss == nil:
	case t.MaxLossExceeded:
		t.toned(report.Bad, "Allowed loss", "EXCEEDED: %s lost or duplicated, --max-loss %g allows %s",
			units.Count(t.Lost+t.Duplicated), *t.MaxLoss, units.Count(int64(*t.MaxLoss*float64(t.Sent))))
	default:
		t.toned(report.Good, "Allowed loss", "kept: --max-loss %g allows %s", *t.MaxLoss, units.Count(int64(*t.MaxLoss*float64(t.Sent))))
	}
}

// badArrival is a kind of packets that came as they should not.
type badArrival struct {
	name  string
	count int64
	hint  string
}

// badArrivals are the kinds that there were. All count as lost.
func badArrivals(r *packets.Result) []badArrival {
	kinds := []badArrival{
		{"misdelivered", r.Misdelivered, strayHint(r.MisdeliveredAs)},
		{"IP checksum wrong", r.Corrupted.IPChecksum, ""},
		{"checksum wrong", r.Corrupted.Checksum, ""},
		{"checksum partial", r.Corrupted.Partial,
			"left for a network card to complete; on the way of an XDP program nobody does: ethtool -K IF tx off where they are made"},
	}
	return slices.DeleteFunc(kinds, func(k badArrival) bool { return k.count == 0 })
}

// strayHint shows one of the packets.
func strayHint(strays []packets.Stray) string {
	hint := "with other addresses or ports than expected"
	if len(strays) > 0 {
		hint += fmt.Sprintf(", the first from %v to %v", strays[0].Source, strays[0].Destination)
	}
	return hint
}

func neverArrived(r *packets.Result) int64 { return r.Lost - r.Misdelivered - r.Corrupted.Total() }

func (t *packetsText) rates() {
	r := t.Result
	if r.SentPerSecond == 0 { // all of it went ahead to find the receiver
		return
	}
	t.rate("Send rate", r.SentPerSecond, t.SentRates)
	if t.ReceivedRates != nil {
		t.rate("Receive rate", r.ReceivedPerSecond, *t.ReceivedRates)
	}
	if r.Config.Rate == 0 {
		t.line("Time per packet", "%s ns (mean, across all CPUs that send)", units.Fixed(1e9/r.SentPerSecond, 1))
	}
	if r.GeneratorNanoseconds > 0 {
		t.line("  in the generator", "%s ns", units.Fixed(r.GeneratorNanoseconds, 1))
	}
	if r.SinkNanoseconds > 0 {
		t.line("  in the sink", "%s ns", units.Fixed(r.SinkNanoseconds, 1))
	}
}

func (t *packetsText) rate(name string, perSecond float64, bits packets.BitRates) {
	t.line(name, "%s packets/s, %s Gbit/s (%s with preambles and gaps)",
		units.Rate(perSecond), units.Fixed(bits.Frames/1e9, 3), units.Fixed(bits.Line/1e9, 3))
}

func (t *packetsText) notes() {
	if t.GeneratorLimit != "" {
		t.toned(report.Warn, "Generator", "THE LIMIT: %s", t.GeneratorLimit)
	}
	for _, note := range t.Notes {
		t.line("Note", "%s", note)
	}
}

// packetsDocument is a result with what is needed to repeat it.
type packetsDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"natkit_version"`
	// Command does the same again, as a shell takes it.
	Command string `json:"command"`
	*packets.Result
	SentRates     packets.BitRates  `json:"sent_rates"`
	ReceivedRates *packets.BitRates `json:"received_rates,omitempty"`
	// BadShare is of what was sent: lost, which misdelivered and corrupted packets
	// are, and duplicated.
	BadShare *float64 `json:"bad_share,omitempty"`
	// MaxLoss is the share that was allowed.
	MaxLoss         *float64 `json:"max_loss_share,omitempty"`
	MaxLossExceeded bool     `json:"max_loss_exceeded,omitempty"`
}

// judge fills in what follows from the result; a negative maxLoss allows all.
func (d *packetsDocument) judge(maxLoss float64) {
	r := d.Result
	d.SentRates = r.SentBits()
	if r.To == "" || r.Sent == 0 {
		return
	}
	rates, bad := r.ReceivedBits(), float64(r.Lost+r.Duplicated)/float64(r.Sent)
	d.ReceivedRates, d.BadShare = &rates, &bad
	if maxLoss >= 0 {
		d.MaxLoss, d.MaxLossExceeded = &maxLoss, bad > maxLoss
	}
}

func (d *packetsDocument) exceeded() bool { return d.MaxLossExceeded }

func (d *packetsDocument) writeJSON(w io.Writer) error { return report.JSON(w, d) }

// command is the command line that makes the same packets again, with what natkit
// chose by itself spelled out.
func (b *benchPackets) command(cmd *cobra.Command, cfg packets.Config, to string) string {
	chosen := map[string][]string{
		"flows": {fmt.Sprint(cfg.Flows.Count)}, "seed": {fmt.Sprint(cfg.Flows.Seed)}, "workers": {fmt.Sprint(cfg.Workers)},
		"source": b.source.addresses, "source-port": {b.source.ports}, "size": {sizeText(b.size, cfg)},
	}
	if len(b.source.addresses) == 0 {
		chosen["source"] = []string{cfg.Flows.Sources[0].String()}
	}
	if cfg.Duration < packets.MaxDuration {
		chosen["time"] = []string{cfg.Duration.String()}
	}
	return commandLine(cmd, chosen, to)
}

// notRepeated are flags that a command line to repeat a run does without.
var notRepeated = []string{"json", "output", "quiet", "verbose", "numeric"}

// commandLine is a command line as a shell takes it: with the flags that were given
// but for those of output, and the values of those that were chosen, given or not.
func commandLine(cmd *cobra.Command, chosen map[string][]string, to string) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		values, known := chosen[f.Name]
		if !known && f.Changed && !slices.Contains(notRepeated, f.Name) {
			values = []string{f.Value.String()}
		}
		for _, value := range values {
			words = append(words, flagText(f, value))
		}
	})
	return strings.Join(append(words, shellQuote(to)), " ")
}

func sizeText(given string, cfg packets.Config) string {
	if given != "" {
		return given
	}
	return fmt.Sprint(cfg.Spec.Sizes[0])
}

func flagText(f *pflag.Flag, value string) string {
	if f.Value.Type() == "bool" {
		return "--" + f.Name + "=" + value
	}
	return "--" + f.Name + " " + shellQuote(value)
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellQuote makes one word of text for a POSIX shell.
func shellQuote(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// packetsAre says in one line what the packets look like.
func packetsAre(c packets.Config) string {
	s := c.Spec
	if c.Bare {
		return "one frame, again and again (--bare)"
	}
	words := "UDP"
	if s.Protocol == unix.IPPROTO_TCP {
		words = "TCP " + flagsText(s.TCPFlags)
	}
	if s.IPv6 {
		words += " over IPv6"
	} else {
		words += " over IPv4"
	}
	if s.VLAN != 0 {
		words += fmt.Sprintf(" in VLAN %d", s.VLAN)
	}
	if s.DSCP != 0 {
		words += fmt.Sprintf(", DSCP %d", s.DSCP)
	}
	if s.HopLimit != defaultTTL {
		words += fmt.Sprintf(", TTL %d", s.HopLimit)
	}
	return words
}

// flagsText writes a cycle of flags as --tcp reads it.
func flagsText(cycle []frame.TCPFlags) string {
	return runsText(cycle, func(f frame.TCPFlags, n int) string {
		if n > 1 {
			return fmt.Sprintf("%v:%d", f, n)
		}
		return f.String()
	})
}

func runsText[T comparable](list []T, write func(T, int) string) string {
	var words []string
	for i := 0; i < len(list); {
		n := 1
		for i+n < len(list) && list[i+n] == list[i] {
			n++
		}
		words = append(words, write(list[i], n))
		i += n
	}
	return strings.Join(words, ",")
}

// sizesText says which sizes come how often.
func sizesText(sizes []int) string {
	count := map[int]int{}
	for _, size := range sizes {
		count[size]++
	}
	if len(count) == 1 {
		return fmt.Sprint(sizes[0])
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(sizes)))
	if len(distinct) > 4 {
		return fmt.Sprintf("%d to %d (%d sizes)", distinct[0], distinct[len(distinct)-1], len(distinct))
	}
	var words []string
	for _, size := range distinct {
		words = append(words, fmt.Sprintf("%d (%d of %d)", size, count[size], len(sizes)))
	}
	return strings.Join(words, ", ")
}

func sourcesText(f packets.Flows) string {
	text := f.Sources[0].String()
	if n := len(f.Sources); n > 1 {
		text = fmt.Sprintf("%s addresses from %s", units.Count(n), text)
	}
	return fmt.Sprintf("%s, %s", text, portsText(f.SourcePorts))
}

func flowCount(n int) string {
	if n == 1 {
		return "1"
	}
	return units.Count(n) + " in turn"
}

func portsText(r nat.Ports) string {
	if r.Len() == 1 {
		return "port " + r.String()
	}
	return "ports " + r.String()
}

func packetsLoad(c packets.Config) string {
	words := "as fast as it goes (flat out)"
	if c.Rate > 0 {
		words = fmt.Sprintf("%s packets/s on schedule", units.Rate(c.Rate))
	}
	return fmt.Sprintf("%s, from %s", words, units.Plural(c.Workers, "CPU", "CPUs"))
}

func expectText(e packets.Expectation) string {
	var words []string
	for _, end := range []struct {
		name string
		packets.End
	}{{"source", e.Source}, {"destination", e.Destination}} {
		if end.End != (packets.End{}) {
			words = append(words, end.name+" "+endText(end.End))
		}
	}
	return strings.Join(append(words, "right checksums"), "; ")
}

func endText(e packets.End) string {
	text := "as sent"
	switch {
	case e.Address == packets.Netmap:
		text = fmt.Sprintf("in %v by NETMAP", e.Prefix)
	case e.Address == packets.Inside && e.Prefix.IsSingleIP():
		text = e.Prefix.Addr().String()
	case e.Address == packets.Inside:
		text = fmt.Sprintf("in %v", e.Prefix)
	}
	switch {
	case e.Port == packets.Same && e.Address == packets.Same:
	case e.Port == packets.Same:
		text += ", port as sent"
	case e.Port == packets.Inside:
		text += ", " + portsText(e.Ports)
	default:
		text += ", any port"
	}
	return text
}
