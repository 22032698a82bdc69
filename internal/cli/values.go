package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// number is the value of a flag: a whole number between bounds.
type number[T int | int64] struct {
	to          *T
	least, most T
}

// between is a number from least to most.
func between[T int | int64](to *T, least, most T) pflag.Value { return &number[T]{to, least, most} }

// natural is a number that is not negative.
func natural[T int | int64](to *T) pflag.Value { return orMore(to, 0) }

// orMore is a number from least on.
func orMore[T int | int64](to *T, least T) pflag.Value { return between(to, least, math.MaxInt) }

func (n *number[T]) String() string {
	if n.to == nil {
		return "0"
	}
	return fmt.Sprint(*n.to)
}

func (n *number[T]) Type() string { return "int" }

func (n *number[T]) Set(text string) error {
	v, err := strconv.ParseInt(text, 10, strconv.IntSize)
	switch {
	case err != nil:
		return errors.New("not a number")
	case T(v) >= n.least && T(v) <= n.most:
		*n.to = T(v)
		return nil
	case n.most < math.MaxInt:
		return fmt.Errorf("must be from %d to %d", n.least, n.most)
	case n.least == 0:
		return errors.New("must not be negative")
	case n.most == math.MaxInt:
		return fmt.Errorf("must be %d or more", n.least)
	}
	return fmt.Errorf("must be %d or more", n.least)
}

// seconds is the value of a flag: a duration that takes plain seconds, as ab's, too.
type seconds time.Duration

func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

func (s *seconds) Type() string { return "TIME" }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.ParseFloat(text, 64); numErr == nil {
		d, err = time.Duration(n*float64(time.Second)), nil
		if !(n < 1e9) {
			return errors.New("too long")
		}
	}
	if err != nil {
		return errors.New("must be a number of seconds, or a time such as 500ms, 10s, 2m")
	}
	if d < 0 {
		return errors.New("must not be negative")
	}
	*s = seconds(d)
	return nil
}

// period is the value of a flag: seconds between bounds.
type period struct {
	*seconds
	least, most time.Duration
}

// periodBetween is a time from least to most, or without an upper bound where most is 0.
func periodBetween(to *time.Duration, least, most time.Duration) pflag.Value {
	return &period{(*seconds)(to), least, most}
}

func (p *period) Set(text string) error {
	var d seconds
	if err := d.Set(text); err != nil {
		return err
	}
	switch below := time.Duration(d) < p.least; {
	case p.most == 0 && below:
		return fmt.Errorf("must be %s or more", p.least)
	case p.most > 0 && (below || time.Duration(d) > p.most):
		return fmt.Errorf("must be from %s to %s", p.least, p.most)
	}
	*p.seconds = d
	return nil
}

// parsed is the value of a flag that a function takes where it is given.
type parsed struct {
	text string
	set  func(string) error
}

func (v *parsed) String() string { return v.text }
func (v *parsed) Type() string   { return "string" }
func (v *parsed) Set(text string) error {
	v.text = text
	return v.set(text)
}

// into parses a flag's value by a function of the package that it is for.
func into[T any](to *T, parse func(string) (T, error)) pflag.Value {
	return &parsed{set: func(text string) (err error) {
		*to, err = parse(text)
		return err
	}}
}

// memorySize is the value of a flag: an amount of memory in bytes, 64M, 1G, 500000000.
type memorySize int64

// minMemory is what a bound on natkit's memory must leave it.
const minMemory memorySize = 24 << 20

func (m *memorySize) Type() string { return "SIZE" }

func (m *memorySize) String() string {
	for i, unit := range "GMK" {
		if bytes := memorySize(1) << (30 - 10*i); *m > 0 && *m%bytes == 0 {
			return strconv.FormatInt(int64(*m/bytes), 10) + string(unit)
		}
	}
	return strconv.FormatInt(int64(*m), 10)
}

func (m *memorySize) Set(text string) error {
	n, ok := parseBytes(text)
	least := minMemory
	switch {
	case !ok:
		return errors.New("must be an amount of memory: 64M, 1G, …")
	case memorySize(n) < least:
		return fmt.Errorf("must be %s at least, most of which natkit needs for itself", least.String())
	}
	*m = memorySize(n)
	return nil
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

// parseFilter reads the words of a packet filter; no words are nil.
func parseFilter(words []string) (*frame.Filter, error) {
	expr, err := frame.ParseFilter(words)
	if err != nil {
		return nil, usageError{err}
	}
	return expr, nil
}

// completeWords offers words, for the shell.
func completeWords(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeList offers the words of a list that are not in it yet, also behind a comma.
func completeList(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) (offered []string, _ cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		for _, word := range words {
			if !strings.Contains(","+before, ","+word+",") {
				offered = append(offered, before+word)
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completeNoFiles keeps the shell from offering files for values that are no plain text.
func completeNoFiles(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		_, isParsed := f.Value.(*parsed)
		if _, has := cmd.GetFlagCompletionFunc(f.Name); !has && (isParsed || f.Value.Type() != "string" && !isSwitch(f)) {
			completeFlags(cmd, map[string]cobra.CompletionFunc{f.Name: cobra.NoFileCompletions})
		}
	})
}
