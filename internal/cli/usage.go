package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/suggest"
)

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// malformedError is a file that was read and is not what the verb reads.
type malformedError struct{ err error }

func (m malformedError) Error() string { return m.err.Error() }
func (m malformedError) Unwrap() error { return m.err }

// malformed marks the error of reading a file, unless it is one of the operating system
// or an interrupt: then nothing is known about the file.
func malformed(err error) error {
	var path *fs.PathError
	var errno unix.Errno
	if err == nil || errors.As(err, &path) || errors.As(err, &errno) || errors.Is(err, context.Canceled) {
		return err
	}
	return malformedError{err}
}

// flagError says what is wrong with a flag in natkit's words.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	case errors.As(err, &bare):
		return usagef("--%s needs a value", bare.GetFlag().Name)
	case errors.As(err, &invalid):
		return usagef("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), plainCause(invalid.Unwrap()))
	case errors.As(err, &syntax):
		return usagef("%q is no flag", syntax.GetSpecifiedFlag())
	}
	return usageError{err}
}

func unknownFlag(cmd *cobra.Command, err *pflag.NotExistError) error {
	name := err.GetSpecifiedName()
	if err.GetSpecifiedShortnames() != "" {
		return usagef("unknown flag -%s for %q%s", name, cmd.CommandPath(), conntrackHint("-"+name))
	}
	if hint := conntrackHint("--" + name); hint != "" {
		return usagef("unknown flag --%s for %q%s", name, cmd.CommandPath(), hint)
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	return usagef("unknown flag --%s for %q%s", name, cmd.CommandPath(), suggest.Hint("--"+name, known))
}

// plainCause leaves out which function of Go's library could not parse a number.
func plainCause(err error) error {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "parsing "); ok && strings.HasPrefix(text, "strconv.") {
		if i := strings.LastIndex(after, ": "); i >= 0 && strings.HasSuffix(after, "out of range") {
			return errors.New("out of range")
		}
		return errors.New("not a number")
	}
	return err
}

// flagGroups are what cobra says of flags that exclude or need each other, and how
// natkit ends such a sentence.
var flagGroups = []struct {
	pattern *regexp.Regexp
	ending  string
}{
	{regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; \[(.*)\] were all set$`), "are mutually exclusive"},
	{regexp.MustCompile(`^if any flags in the group \[(.*)\] are set they must all be set; missing \[.*\]$`), "go together"},
	{regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`), "are missing: one of them is required"},
}

// checkFlagGroups checks the flags that exclude or need each other.
func checkFlagGroups(cmd *cobra.Command) error {
	err := cmd.ValidateFlagGroups()
	if err == nil {
		return nil
	}
	for _, g := range flagGroups {
		if m := g.pattern.FindStringSubmatch(err.Error()); m != nil {
			return usagef("%s %s", flagList(strings.Fields(m[1])), g.ending)
		}
	}
	return usageError{err}
}

// flagList is "--a, --b and --c".
func flagList(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return "--" + names[0]
	}
	return "--" + strings.Join(names[:last], ", --") + " and --" + names[last]
}

// checkArgs is check, with what cobra says of the number of arguments in natkit's words.
func checkArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		var said usageError
		switch {
		case errors.As(err, &said):
			return err
		case !cobraArgs.MatchString(err.Error()):
			return usageError{err}
		}
		_, wants, _ := strings.Cut(cmd.Use, " ")
		switch {
		case cmd.HasSubCommands():
			return unknownCommand(cmd, args[0])
		case wants == "":
			return usagef("unexpected argument %q: %q takes none", args[0], cmd.CommandPath())
		case len(args) == 0:
			return usagef("an argument is missing: %s %s", cmd.CommandPath(), wants)
		}
		return usagef("wrong number of arguments (%d): %s %s", len(args), cmd.CommandPath(), wants)
	}
}

// cobraArgs matches the errors of cobra.NoArgs, ExactArgs, MinimumNArgs and so on.
var cobraArgs = regexp.MustCompile(`^(accepts .*arg\(s\)|requires at least \d+ arg|unknown command ".*" for ".*"$)`)

// unknownCommand is the error of a word that is no command of cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	var known []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(append(known, sub.Name()), sub.Aliases...)
		}
	}
	return usagef("unknown command %q for %q%s", word, cmd.CommandPath(), suggest.Hint(word, known))
}
