// Package cli turns command lines into one call and one rendered report each.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// Exit codes, the same for every verb.
const (
	exitOK       = 0
	exitFailed   = 1 // the operation failed
	exitUsage    = 2 // the command line was wrong, or a file does not parse
	exitFindings = 3 // done, and there are findings, or an expectation was not met; or refused for such
	// exitIncomplete: done in part, and nothing was found in that.
	exitIncomplete  = 4
	exitInterrupted = 130 // as in shells for SIGINT
)

// Env is what a command may use of the process around it.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// The streams that are terminals.
	StdinTerminal, StdoutTerminal, StderrTerminal bool

	Getenv func(string) string
	// Version is printed by --version.
	Version string
	// Build is the rest of `natkit version`.
	Build Build

	standardFlags
}

// exitStatus makes natkit exit with a code without a message: the report has it all, or
// the program that it ran for the user.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

const (
	errFindings   exitStatus = exitFindings
	errIncomplete exitStatus = exitIncomplete
	errCutShort   exitStatus = exitInterrupted
)

// Run executes one command line (without the program's name) and returns the
// exit code.
func Run(ctx context.Context, env Env, args []string) int {
	root := newRoot(&env)
	root.SetArgs(afterReadOnly(args, func(args []string) []string { return conntrackHabits(arrows(args)) }))
	root.SetIn(env.Stdin)
	help := &firstError{w: env.Stdout}
	root.SetOut(help)
	root.SetErr(env.Stderr)
	began := time.Now()
	cmd, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, help.err)
	env.detail("%s took %s", cmd.CommandPath(), time.Since(began).Round(time.Millisecond))
	return exitCode(env.Stderr, cmd, err)
}

// firstError keeps the first error of writing to w, since cobra ignores write errors of help.
type firstError struct {
	w   io.Writer
	err error
}

func (f *firstError) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	f.err = cmp.Or(f.err, err)
	return n, err
}

func exitCode(stderr io.Writer, cmd *cobra.Command, err error) int {
	var status exitStatus
	var usage usageError
	var syntax *document.SyntaxError
	if err == nil {
		return exitOK
	}
	if errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(stderr, "natkit: %s\n", said(err))
	switch isUsage := errors.As(err, &usage); {
	case errors.As(err, &syntax) && !isUsage || isUsage && usage.ofFile:
		if syntax != nil && syntax.Excerpt != "" {
			fmt.Fprintln(stderr, syntax.Excerpt)
		}
	case isUsage:
		if cmd.Name() == "help" {
			cmd = cmd.Parent()
		}
		fmt.Fprintf(stderr, "see '%s --help'\n", cmd.CommandPath())
	case errors.As(err, new(refusal)):
		return exitFindings
	default:
		return exitFailed
	}
	return exitUsage
}

// refusal is an error for what natkit found: nothing was changed.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// said returns the text of an error for a terminal: file names in it are untrusted.
// Only a signal cancels what natkit does.
func said(err error) string {
	lines := strings.Split(strings.ReplaceAll(err.Error(), context.Canceled.Error(), "interrupted"), "\n")
	for i := range lines {
		lines[i] = report.Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

func newRoot(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "natkit",
		Short: "find out why NAT on this machine is slow or loses connections, fix it, prove it",
		Long: `natkit finds out why NAT on this machine is slow or loses connections, fixes it,
and proves the fix under load.`,
		Example: `  sudo natkit doctor               # is this host healthy?
  sudo natkit lab run table-full   # a failure, its diagnosis and its cure, in half a minute`,
		Version:       env.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.InitDefaultVersionFlag() // before the verb is searched for, which -v may precede
	root.SetVersionTemplate("natkit {{.Version}}\n")
	root.SetUsageTemplate(usageTemplate(root))
	fitHelp(env, root)
	env.addReadOnly(root)
	for _, group := range verbs(env) {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, verb := range group.verbs {
			verb.GroupID = group.title
			root.AddCommand(verb)
		}
	}
	setUp(root, env)
	return root
}

// Commands returns the verbs, of which man pages and completions are made; they are not for running.
func Commands(version string) *cobra.Command {
	return newRoot(&Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }, Version: version})
}

// setUp gives all commands below root what is the same for all of them.
func setUp(root *cobra.Command, env *Env) {
	root.SetFlagErrorFunc(flagError)
	env.addStandardFlags(root)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := env.checkReadOnly(cmd); err != nil {
			return err
		}
		if err := env.setOutput(cmd); err != nil {
			return err
		}
		if err := checkFlagGroups(cmd); err != nil {
			return err
		}
		if cmd.Flags().Lookup("netns") != nil && !cmd.Flags().Changed("from") {
			env.detail("network namespace: %s", chosenNetns(cmd))
		}
		return nil
	}
	addBuiltIn(root)
	requireKnownWords(root)
	hideHost(root)
}

// runsItself marks a parent command that is itself runnable.
var runsItself = map[string]string{"runs-itself": "true"}

// usageTemplate is cobra's, but a command that only has others below it is not
// shown as one that could be run, and the root's flags are shown there alone.
func usageTemplate(root *cobra.Command) string {
	return strings.NewReplacer("{{if .Runnable}}", `{{if and .Runnable (or (not .HasAvailableSubCommands) (index .Annotations "runs-itself"))}}`,
		"{{if .HasAvailableInheritedFlags}}", "{{if false}}").Replace(root.UsageTemplate())
}

// fitHelp lays help out for the screen, where its width is known.
func fitHelp(env *Env, root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		columns := env.columns()
		if columns == 0 {
			help(cmd, args)
			return
		}
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		fmt.Fprint(out, report.Reflow(text.String(), columns))
	})
}

// addBuiltIn adds cobra's own commands, to be set up as natkit's are.
func addBuiltIn(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Short = "show the help of a command"
			cmd.Args = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err != nil && len(rest) == 0 {
					rest = args
				}
				if len(rest) > 0 {
					return unknownCommand(cmp.Or(found, root), rest[0])
				}
				return nil
			}
		case "completion":
			cmd.Short = "print the completion script for a shell: bash, zsh, fish, powershell"
		}
	}
}

// requireKnownWords makes a wrong sub-command or stray argument a usage error
// everywhere, instead of help and exit code 0. A verb takes the arguments of its usage line.
func requireKnownWords(cmd *cobra.Command) {
	if cmd.HasSubCommands() && cmd.RunE == nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		}
		cmd.Args = cobra.ArbitraryArgs
	}
	if cmd.RunE != nil && cmd.Args == nil {
		cmd.Args = takes
	}
	if _, most := argsOf(cmd.Use); most == 0 && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error { return usage(check(c, args)) }
	}
	for _, sub := range cmd.Commands() {
		requireKnownWords(sub)
	}
}

// verbGroup is a heading in the help, with the verbs below it.
type verbGroup struct {
	title string
	verbs []*cobra.Command
}

// verbs lists the commands, grouped by purpose.
func verbs(env *Env) []verbGroup {
	return []verbGroup{
		{"Find the fault and fix it:", []*cobra.Command{newDoctor(env), newSnapshot(env), newRecord(env), newDiff(env), newTune(env), newSysctl(env)}},
		{"Translate addresses:", []*cobra.Command{newGateway(env)}},
		{"See what the kernel does:", []*cobra.Command{newTop(env), newConntrack(env), newPorts(env), newFlows(env), newDrops(env), newProfile(env), newPath(env), newPcap(env), newExporter(env)}},
		{"Reproduce, measure, predict:", []*cobra.Command{newLab(env), newBench(env), newSimulate(env), newPlan(env)}},
		{"About natkit:", []*cobra.Command{newVersion(env)}},
	}
}

const versionSchema = "natkit.version/1"

// Build is what natkit was built from. What is not known is empty.
type Build struct {
	// Version is the tag, with the number of commits since it and their last one; the
	// commit where there is no tag.
	Version string `json:"version"`
	Tag     string `json:"tag"`
	Commit  string `json:"commit"`
	// Date is when the commit was made.
	Date string `json:"date"`
	// Modified is true where the sources were not those of the commit.
	Modified bool `json:"modified"`
}

// Both forms that the words of scripts/version and of an archive's VERSION have: with a
// tag, or with the commit and its date alone.
var (
	described = regexp.MustCompile(`^(.+?)(-\d+-g[0-9a-f]+)?(-dirty)?$`)
	hash      = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
	// pseudo is the version of a commit without a tag for the go command
	// (go.dev/ref/mod#pseudo-versions).
	pseudo = regexp.MustCompile(`[.-](\d{14})-([0-9a-f]{12})$`)
)

// BuildOf combines the version stamped by the linker, that of a git archive, both
// "VERSION COMMIT DATE", and what the go command recorded.
func BuildOf(linked, archived string, info *debug.BuildInfo) Build {
	var b Build
	if b.words(linked); b.Version == "" && !strings.Contains(archived, "$Format") {
		b.words(archived)
	}
	if info != nil {
		b.recorded(info)
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	return b
}

func (b *Build) words(text string) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return
	}
	if b.Version = words[0]; len(words) == 2 { // git had no tag to name
		words = append([]string{words[0][:min(12, len(words[0]))]}, words...)
		b.Version = words[0]
	}
	b.Modified = strings.HasSuffix(b.Version, "-dirty")
	if m := described.FindStringSubmatch(b.Version); m[1] != "unknown" && !hash.MatchString(m[1]) {
		b.Tag = m[1]
	}
	if len(words) == 3 {
		b.Commit, b.Date = words[1], words[2]
	}
}

// recorded takes what is missing from the go command: the version of a module that 'go
// install' fetched, or the commit of the checkout.
func (b *Build) recorded(info *debug.BuildInfo) {
	if version := info.Main.Version; b.Version == "" && version != "(devel)" {
		b.Version = version
		version, _, _ = strings.Cut(version, "+")
		if m := pseudo.FindStringSubmatch(version); m != nil {
			b.Commit = m[2]
			if date, err := time.Parse("20060102150405", m[1]); err == nil {
				b.Date = date.Format(time.RFC3339)
			}
		} else {
			b.Tag = version
		}
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) > len(b.Commit):
			b.Commit = s.Value
		case s.Key == "vcs.time" && b.Date == "":
			b.Date = s.Value
		case s.Key == "vcs.modified":
			b.Modified = b.Modified || s.Value == "true"
		}
	}
	if b.Version == "" {
		b.Version = b.Commit[:min(12, len(b.Commit))]
	}
}

// versionDocument is the JSON form.
type versionDocument struct {
	Schema string `json:"schema"`
	Build
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// ReadOnly is true where natkit can change nothing: built so, or by --read-only.
	ReadOnly bool `json:"read_only"`
}

func newVersion(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "print what this natkit was built from: tag, commit, date, Go, platform",
		Example: "  natkit version\n  natkit version -o json | jq -r .commit",
		RunE: func(*cobra.Command, []string) error {
			doc := versionDocument{versionSchema, env.Build, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, permit.IsReadOnly()}
			doc.Version = env.Version
			return env.print(doc)
		},
	}
	env.addJSON(cmd, versionSchema)
	return cmd
}

func (d versionDocument) Text(w io.Writer, style report.Style) error {
	t := &report.Table{Columns: []report.Column{{}, {}}}
	for _, row := range [][2]string{{"natkit", d.Version}, {"tag", d.Tag}, {"commit", d.Commit}, {"date", d.Date}, {"go", d.Go}, {"platform", d.Platform}} {
		t.Row(row[0], cmp.Or(row[1], "unknown"))
	}
	err := t.Write(w, style)
	if d.ReadOnly {
		fmt.Fprintln(w, "read-only: it cannot change the host")
	}
	if d.Modified {
		fmt.Fprintln(w, "with uncommitted changes")
	}
	return err
}
