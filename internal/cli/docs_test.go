package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

//go:generate go test -count=1 -run ^TestCommandsDocIsCurrent$ . -args -update-docs

var updateDocs = flag.Bool("update-docs", false, "rewrite docs/commands.md instead of comparing it")

const commandsDoc = "../../docs/commands.md"

// TestCommandsDocIsCurrent compares docs/commands.md with the help texts that it
// is made of; `make generate` rewrites it.
func TestCommandsDocIsCurrent(t *testing.T) {
	var doc bytes.Buffer
	root := newRoot(&Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }, Version: "any"})
	writeCommands(&doc, root)
	if *updateDocs {
		if err := os.WriteFile(commandsDoc, doc.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(commandsDoc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), doc.String()); diff != "" {
		t.Errorf("docs/commands.md is not what --help says; `make generate` rewrites it (-file +help):\n%s", diff)
	}
}

// TestReadmeHasEveryVerb: the README's table has a line for each verb that does something
// for an operator.
func TestReadmeHasEveryVerb(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(&Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }})
	for _, cmd := range root.Commands() {
		if cmd.Hidden || slices.Contains([]string{"help", "completion", "version"}, cmd.Name()) {
			continue
		}
		if !strings.Contains(string(readme), "\n| `"+cmd.Name()+"` |") {
			t.Errorf("README.md has no line for natkit %s", cmd.Name())
		}
	}
}

// standardFlagsDoc lists the flags that are the same everywhere, and the exceptions.
var standardFlagsDoc = strings.ReplaceAll(`Flags that are the same everywhere:

| flag | verbs | meaning |
|---|---|---|
| '-q', '--quiet' | all | only errors on stderr |
| '-v', '--verbose' | all | what is read, written and done, on stderr; 'natkit -v' alone is 'natkit --version' |
| '-n', '--numeric' | all | labels of connections and network namespaces as numbers; addresses, ports and users are never resolved |
| '-o', '--output' | all that report | text, json, wide (text that is not fitted to the terminal), csv where there is '--csv' |
| '-y', '--yes' | all that change something | skip the confirmation; required where stdin is not a terminal, but for the verbs that do not ask: 'undo', 'confirm', 'gateway run', 'gateway set', 'lab run', 'up', 'down' and 'clean' |
| '--read-only' | all; also before the verb | refuse whatever would change the host, in one line and before anything is done; 'NATKIT_READ_ONLY=1' does the same ([what is refused](../SECURITY.md#read-only)) |
| '--netns', '--pid' | all that work on a network namespace | which one |

Letters with an established meaning in another tool keep it, and the long form is as above:
'-n' is the number of requests, packets or entries in 'bench', 'lab run' and 'lab fill'
(as in ab), and '--src-nat' in 'conntrack', where '-q' is '--reply-dst' (as in conntrack(8));
'-o' names a file in 'snapshot', and also takes the words of conntrack(8) in 'conntrack list'
and 'conntrack events'. 'conntrack -L', '-C', '-E', '-D' and '-F' are 'conntrack list', 'count',
'events', 'delete' and 'delete --all'.
`, "'", "`")

// writeCommands writes the help texts of all commands as Markdown.
func writeCommands(w io.Writer, root *cobra.Command) {
	fmt.Fprintf(w, "# Commands\n\n<!-- Made by `make generate` from the program's help texts. -->\n\n"+
		"Exit codes: 0 ok; 1 error; 2 usage, a file that does not parse, or no terminal to confirm a\n"+
		"change on; 3 findings (doctor: a warning or critical one), a gateway that was refused, or a scenario's\n"+
		"expectation that was not met;\n"+
		"4 no findings, but not everything could be read (doctor, snapshot; 130 when interrupted).\n"+
		"`natkit completion --help` describes completion in your shell.\n\n%s", standardFlagsDoc)
	writeCommand(w, root)
}

func writeCommand(w io.Writer, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	cmd.InitDefaultHelpFlag()
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintf(w, "\n## %s\n\n```text\n%s\n\n%s\n```\n",
		cmd.CommandPath(), strings.TrimSpace(text), strings.TrimSpace(cmd.UsageString()))
	for _, sub := range cmd.Commands() {
		writeCommand(w, sub)
	}
}
