package cli

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/text"
)

// entrySchema names the form of an entry's JSON document.
const entrySchema = "natkit.conntrack-entry/1"

// entryForm is how an entry is written, chosen by flags.
type entryForm struct {
	output      []string
	usual       string
	json, csv   bool
	timestamped bool
	options     text.Options
}

// The words of --output.
// text and wide are what it would be without the flag.
var entryOutputs = []string{"extended", "plain", "id", "timestamp", "ktimestamp", "labels", "json", "csv", "text", "wide"}

func (f *entryForm) addFlags(cmd *cobra.Command, usual string) {
	f.usual = usual
	cmd.Flags().StringSliceVarP(&f.output, "output", "o", []string{usual},
		"`FORMS`, separated by commas: extended (with the network protocol), plain, id, ktimestamp (when it began and ended), timestamp (of an event), labels; or json, csv or text alone")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON document (a line, for each entry; schema "+entrySchema+")")
	cmd.Flags().BoolVar(&f.csv, "csv", false, "print comma-separated values, their names in the first line")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"output": cobra.FixedCompletions(entryOutputs, cobra.ShellCompDirectiveNoFileComp)})
}

// check reads the flags.
func (f *entryForm) check(cmd *cobra.Command) error {
	for _, word := range f.output {
		if !slices.Contains(entryOutputs, word) {
			return usagef("--output %q: the words are %s", word, strings.Join(entryOutputs, ", "))
		}
	}
	if len(f.output) == 1 && (f.output[0] == "text" || f.output[0] == "wide") {
		f.output[0] = f.usual
	}
	has := func(word string) bool { return slices.Contains(f.output, word) }
	given := cmd.Flags().Changed("output")
	whole := has("json") || has("csv")
	switch {
	case whole && len(f.output) > 1:
		return usagef("--output %s: json and csv have everything in them: give one of them alone", strings.Join(f.output, ","))
	case given && (f.json && !has("json") || f.csv && !has("csv")):
		return usagef("--output, --json and --csv are mutually exclusive")
	}
	f.json, f.csv = f.json || has("json"), f.csv || has("csv")
	f.timestamped = has("timestamp")
	f.options = text.Options{Extended: has("extended"), ID: has("id"), Timestamps: has("ktimestamp"), Location: time.Local}
	if numeric, _ := cmd.Flags().GetBool("numeric"); numeric {
		f.options.Labels = new(text.Labels)
	} else if has("labels") {
		names, err := connlabels()
		if err != nil {
			return err
		}
		f.options.Labels = names
	}
	return nil
}

// now is the time that an entry's age is counted to.
func (f *entryForm) now(t time.Time) { f.options.Now = t.Unix() }

// begin writes what comes before the first entry.
func (f *entryForm) begin(w *lineWriter) {
	if f.csv {
		w.buf = append(text.AppendCSVHeader(w.buf), '\n')
	}
}

// append adds e without the end of the line.
func (f *entryForm) append(b []byte, e *conntrack.Entry) []byte {
	switch {
	case f.json:
		return text.AppendJSON(b, e)
	case f.csv:
		return text.AppendCSV(b, e)
	default:
		return text.Append(b, e, f.options)
	}
}

// connlabelNames is where iptables keeps the names of labels.
const connlabelNames = "/etc/xtables/connlabel.conf"

// connlabels are the names of labels; none without a file of them.
func connlabels() (*text.Labels, error) {
	file, err := os.Open(connlabelNames)
	if os.IsNotExist(err) {
		return new(text.Labels), nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return text.ReadLabels(file)
}
