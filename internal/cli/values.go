package cli

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// value is the value of a flag that a function reads when it is given.
type value struct {
	// text is the default and then what was given; texts are all of a flag that may be repeated.
	text  string
	texts []string
	kind  string
	set   func(string) error
}

// repeatable is the kind of flags that may be repeated.
const repeatable = "stringArray"

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return cmp.Or(v.kind, "string") }
func (v *value) Set(text string) error {
	v.text, v.texts = text, append(v.texts, text)
	return v.set(text)
}

// into parses a flag's value by a function of the package that it is for.
func into[T any](to *T, parse func(string) (T, error)) *value {
	return &value{set: func(text string) (err error) {
		*to, err = parse(text)
		return err
	}}
}

// oneOf parses one of these words.
func oneOf[T ~string](words ...T) func(string) (T, error) {
	return func(text string) (T, error) {
		if !slices.Contains(words, T(text)) {
			return "", fmt.Errorf("must be one of %s", strings.ReplaceAll(strings.Trim(fmt.Sprint(words), "[]"), " ", ", "))
		}
		return T(text), nil
	}
}

// natural is a number that is not negative.
func natural[T int | int64](to *T) pflag.Value { return between(to, 0, math.MaxInt) }

// between is a number from least to most; math.MaxInt is no upper bound.
func between[T int | int64](to *T, least, most T) pflag.Value {
	v := into(to, func(text string) (T, error) {
		n, err := strconv.ParseInt(text, 10, strconv.IntSize)
		switch {
		case err != nil:
			return 0, errors.New("not a number")
		case T(n) >= least && T(n) <= most:
			return T(n), nil
		case most == math.MaxInt && least == 0:
			return 0, errors.New("must not be negative")
		}
		return 0, outside(fmt.Sprint(least), fmt.Sprint(most), most == math.MaxInt)
	})
	v.kind, v.text = "int", fmt.Sprint(*to)
	return v
}

func outside(least, most string, unbounded bool) error {
	if unbounded {
		return fmt.Errorf("must be %s or more", least)
	}
	return fmt.Errorf("must be from %s to %s", least, most)
}

// period is a time from least to most, or without an upper bound where most is 0.
func period(to *time.Duration, least, most time.Duration) pflag.Value {
	v := into(to, func(text string) (time.Duration, error) {
		d, err := parseSeconds(text)
		if err == nil && (d < least || most > 0 && d > most) {
			err = outside(least.String(), most.String(), most == 0)
		}
		return d, err
	})
	if v.kind = "TIME"; *to != 0 {
		v.text = to.String()
	}
	return v
}

// parseSeconds reads a time, also plain seconds as ab takes them.
func parseSeconds(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.ParseFloat(text, 64); numErr == nil && !math.IsNaN(n) {
		d, err = time.Duration(n*float64(time.Second)), nil
		if !(n < 1e9) {
			return 0, errors.New("too long")
		}
	}
	switch {
	case err != nil:
		return 0, errors.New("must be a number of seconds, or a time such as 500ms, 10s, 2m")
	case d < 0:
		return 0, errors.New("must not be negative")
	}
	return d, nil
}

// minMemory is what a bound on natkit's memory must leave it.
const minMemory = 24 << 20

// memory is an amount of memory in bytes, whole MiB by default: 64M, 1G, 500000000.
func memory(to *int64) pflag.Value {
	v := into(to, func(text string) (int64, error) {
		n, ok := parseBytes(text)
		switch {
		case !ok:
			return 0, errors.New("must be an amount of memory: 64M, 1G, …")
		case n < minMemory:
			return 0, fmt.Errorf("must be %dM at least, most of which natkit needs for itself", minMemory>>20)
		}
		return n, nil
	})
	v.kind, v.text = "SIZE", fmt.Sprintf("%dM", *to>>20)
	return v
}

// parseBytes reads a number of bytes as people write it: 64M, 64 MiB, 1g; units are
// powers of 1,024.
func parseBytes(text string) (n int64, ok bool) {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(text)), "B"), "I")
	shift := 0
	if n := len(number); n > 0 {
		if i := strings.IndexByte("KMGT", number[n-1]); i >= 0 {
			number, shift = strings.TrimSpace(number[:n-1]), 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, false
	}
	return n << shift, true
}

// parseShare reads a part of a whole, such as 0.001 or 0.1%.
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		share /= 100
	}
	if err != nil || !(share >= 0 && share <= 1) {
		return 0, errors.New("must be a share from 0 to 1, or from 0% to 100%")
	}
	return share, nil
}

// notEmpty refuses the empty text that a script gives whose variable is not set.
func notEmpty(what string) func(string) (string, error) {
	return func(text string) (string, error) {
		if text == "" {
			return "", fmt.Errorf("the name of %s is missing", what)
		}
		return text, nil
	}
}

// parseFilter reads the words of a packet filter; no words are nil.
func parseFilter(words []string) (*frame.Filter, error) {
	expr, err := frame.ParseFilter(words)
	return expr, usage(err)
}

// offer completes by the words that a function returns.
func offer(words func() []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words(), cobra.ShellCompDirectiveNoFileComp
	}
}

// offerOrFile is offer where the name of a file may stand as well. Words that are read from
// data, such as the names of scenarios, are for offer: commands are made at every start.
func offerOrFile(words func() []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words(), cobra.ShellCompDirectiveDefault
	}
}

// completeWords offers words, for the shell.
func completeWords(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeList offers the words of a list that are not in it yet, also behind a comma.
func completeList(words func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) (offered []string, _ cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		for _, word := range words() {
			name, _, _ := strings.Cut(word, "\t")
			if !strings.Contains(","+before, ","+name+",") {
				offered = append(offered, before+word)
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completeNoFiles keeps the shell from offering files for values that are no plain text.
func completeNoFiles(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		_, isParsed := f.Value.(*value)
		if _, has := cmd.GetFlagCompletionFunc(f.Name); !has && (isParsed || f.Value.Type() != "string" && !isSwitch(f)) {
			completeFlags(cmd, map[string]cobra.CompletionFunc{f.Name: cobra.NoFileCompletions})
		}
	})
}
