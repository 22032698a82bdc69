package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
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
	root := newRoot(&Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }})
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

// writeCommands writes the help texts of all commands as Markdown.
func writeCommands(w io.Writer, root *cobra.Command) {
	fmt.Fprintf(w, "# Commands\n\n<!-- Made by `make generate` from the program's help texts. -->\n\n"+
		"Every command exits with 0 when it is done and all is well, 1 when it failed, 2 when the\n"+
		"command line was wrong, 3 when it is done and there are findings, or when what a\n"+
		"scenario expects was not met, and 4 when it could be done in part only and nothing was\n"+
		"found in that (doctor; 130 when that was interrupted). `natkit completion --help` tells how to complete these\n"+
		"words in your shell.\n")
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
