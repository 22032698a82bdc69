package cli

import (
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// shared are the flags that mean the same in every command.
var shared = strings.Fields("bridge concurrency confirm i-own-this-network json netns persist pid size source time yes")

// TestHelp holds what every command's help has, so that they read as one.
func TestHelp(t *testing.T) {
	root := newRoot(&Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }})
	described := map[string]string{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
				checkHelp(t, sub, described)
				visit(sub)
			}
		}
	}
	visit(root)
	if len(described) == 0 {
		t.Error("no flag was seen")
	}
}

func checkHelp(t *testing.T, cmd *cobra.Command, described map[string]string) {
	if r := []rune(cmd.Short); len(r) == 0 || unicode.IsUpper(r[0]) || strings.HasSuffix(cmd.Short, ".") {
		t.Errorf("%s: in one line: %q; expected a phrase in lower case without a full stop", cmd.CommandPath(), cmd.Short)
	}
	if cmd.Example == "" && !cmd.HasSubCommands() {
		t.Errorf("%s: no example", cmd.CommandPath())
	}
	for _, line := range strings.Split(cmd.Example, "\n") {
		if line != "" && !strings.HasPrefix(line, "  ") {
			t.Errorf("%s: example %q is not indented", cmd.CommandPath(), line)
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		if r := []rune(f.Usage); len(r) == 0 || unicode.IsUpper(r[0]) || strings.HasSuffix(f.Usage, ".") {
			t.Errorf("%s --%s: %q; expected a phrase in lower case without a full stop", cmd.CommandPath(), f.Name, f.Usage)
		}
		// What means the same everywhere is said in the same words.
		usage, _, _ := strings.Cut(strings.TrimPrefix(f.Usage, "with --fix: "), " (")
		if other, seen := described[f.Name]; seen && other != usage && slices.Contains(shared, f.Name) {
			t.Errorf("%s --%s: %q; elsewhere it is %q", cmd.CommandPath(), f.Name, usage, other)
		}
		described[f.Name] = usage
	})
}
