package cli

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/report"
)

// packetsDocument is a result with what is needed to repeat it.
type packetsDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"natkit_version"`
	// Command does the same again, as a shell takes it.
	Command string `json:"command"`
	*packet.Result
	SentRates     packet.BitRates  `json:"sent_rates"`
	ReceivedRates *packet.BitRates `json:"received_rates,omitempty"`
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
func (b *benchPackets) command(cmd *cobra.Command, cfg packet.Config, to string) string {
	chosen := map[string][]string{
		"flows": {fmt.Sprint(cfg.Flows.Count)}, "seed": {fmt.Sprint(cfg.Flows.Seed)}, "workers": {fmt.Sprint(cfg.Workers)},
		"source": b.source.addresses, "source-port": {b.source.ports}, "size": {sizeText(b.size, cfg)},
	}
	if len(b.source.addresses) == 0 {
		chosen["source"] = []string{cfg.Flows.Sources[0].String()}
	}
	if cfg.Duration < packet.MaxDuration {
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

func sizeText(given string, cfg packet.Config) string {
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
