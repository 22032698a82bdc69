package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// everyVerb calls fn with each command that does something, but for cobra's own.
func everyVerb(t *testing.T, fn func(path string, cmd *cobra.Command)) {
	t.Helper()
	seen := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			if !sub.HasSubCommands() || sub.Annotations != nil {
				seen++
				fn(strings.TrimPrefix(sub.CommandPath(), "natkit "), sub)
			}
			visit(sub)
		}
	}
	visit(newRoot(testEnv(io.Discard, io.Discard)))
	if seen < 30 {
		t.Errorf("only %d verbs were seen", seen)
	}
}

func testEnv(stdout, stderr io.Writer) *Env {
	return &Env{Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr, Getenv: func(string) string { return "" }}
}

// readers change nothing; each other verb takes --yes.
var readers = []string{"version", "doctor", "snapshot", "diff", "sysctl", "tune list", "top", "conntrack", "conntrack list", "conntrack count", "conntrack events",
	"ports", "flows", "drops", "profile", "path", "pcap", "exporter", "simulate", "plan", "gateway check", "gateway plan", "gateway status", "gateway explain", "gateway import", "gateway log", "gateway schema", "gateway who",
	"lab list", "lab exec", "bench http", "bench connect", "bench hold", "bench udp", "bench packets", "bench rfc9693", "bench serve",
	"record", "record mark", "record show", "record list", "record export"}

// ofNoNamespace are the verbs that work on no network namespace, on that of a lab or a
// transaction, or on the whole host; each other verb takes --netns and --pid.
var ofNoNamespace = []string{"version", "tune list", "tune confirm", "tune undo", "gateway set", "gateway schema", "profile", "pcap", "simulate",
	"lab run", "lab list", "lab up", "lab down", "lab clean", "lab exec", "record mark", "record show", "record list", "record export"}

func TestEveryVerbHasTheSameFlags(t *testing.T) {
	everyVerb(t, func(path string, cmd *cobra.Command) {
		needs := []string{"quiet", "verbose", "numeric"}
		if cmd.Flags().Lookup("json") != nil {
			needs = append(needs, "output")
		}
		if !slices.Contains(readers, path) && path != "gateway edit" { // which asks what to do
			needs = append(needs, "yes")
		}
		if !slices.Contains(ofNoNamespace, path) {
			needs = append(needs, "netns", "pid")
		}
		for _, name := range needs {
			if cmd.Flags().Lookup(name) == nil {
				t.Errorf("natkit %s has no --%s", path, name)
			}
		}
		if yes := cmd.Flags().Lookup("yes"); slices.Contains(neverAsk, path) && !strings.Contains(yes.Usage, "does not ask") {
			t.Errorf("natkit %s --yes: %q", path, yes.Usage)
		}
		for letter, name := range map[string]string{"v": "verbose", "y": "yes"} {
			if f := cmd.Flags().ShorthandLookup(letter); f != nil && f.Name != name {
				t.Errorf("natkit %s -%s is --%s", path, letter, f.Name)
			}
		}
	})
}

// raw is what cobra, pflag and Go's library say and natkit does not.
var raw = []string{"unknown flag:", "unknown shorthand", "flag needs an argument", "invalid argument", "bad flag syntax", "arg(s)", "requires at least",
	"flags in the group", "strconv", "required flag"}

func checkUsage(t *testing.T, code int, stdout, stderr string, args []string) {
	t.Helper()
	if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, "natkit: ") || !strings.Contains(stderr, "\nsee 'natkit") {
		t.Errorf("natkit %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	for _, phrase := range raw {
		if strings.Contains(stderr, phrase) {
			t.Errorf("natkit %s: %s", strings.Join(args, " "), stderr)
		}
	}
}

func TestWrongUsageOfEveryVerb(t *testing.T) {
	try := func(args ...string) {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), *testEnv(&stdout, &stderr), args)
		checkUsage(t, code, stdout.String(), stderr.String(), args)
	}
	everyVerb(t, func(path string, cmd *cobra.Command) {
		words := strings.Fields(path)
		try(append(words, "--no-such-flag")...)
		try(append(words, "-Z")...)
		try(append(words, "--=x")...)
		try(append(words, "--quiet", "--verbose")...)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal == "" {
				try(append(words, "--"+f.Name)...)
			}
			if strings.HasPrefix(f.Value.Type(), "int") || strings.HasPrefix(f.Value.Type(), "uint") || f.Value.Type() == "bool" {
				try(append(words, "--"+f.Name+"=x")...)
				try(append(words, "--"+f.Name+"=99999999999999999999")...)
			}
			if f.Name == "output" && f.Value.Type() == "string" && path != "snapshot" {
				try(append(words, "--output", "xml")...)
			}
		})
		for _, n := range []int{0, 1, 20} {
			err := error(nil)
			if cmd.Args != nil {
				err = cmd.Args(cmd, slices.Repeat([]string{"x"}, n))
			}
			if err != nil {
				code := exitCode(io.Discard, cmd, err)
				checkUsage(t, code, "", "natkit: "+err.Error()+"\nsee 'natkit", words)
			}
		}
	})
}

func TestFlagGroupsInWords(t *testing.T) {
	for _, tt := range []struct {
		group func(*cobra.Command)
		args  []string
		want  string
	}{
		{func(c *cobra.Command) { c.MarkFlagsMutuallyExclusive("a", "b", "c") }, []string{"--b", "--a"}, "--a and --b are mutually exclusive"},
		{func(c *cobra.Command) { c.MarkFlagsMutuallyExclusive("a", "b", "c") }, []string{"--c", "--b", "--a"}, "--a, --b and --c are mutually exclusive"},
		{func(c *cobra.Command) { c.MarkFlagsRequiredTogether("a", "b") }, []string{"--b"}, "--a and --b go together"},
		{func(c *cobra.Command) { c.MarkFlagsOneRequired("a", "b") }, nil, "--a and --b are missing: one of them is required"},
		{func(c *cobra.Command) { c.MarkFlagsOneRequired("a", "b") }, []string{"--a"}, ""},
		{func(c *cobra.Command) { requires(c, "a", "b", "c") }, []string{"--a"}, "--a requires --b or --c"},
		{func(c *cobra.Command) { requires(c, "a", "b", "c") }, []string{"--a", "--c"}, ""},
		{func(c *cobra.Command) { requires(c, "a", "b") }, nil, ""},
	} {
		cmd := &cobra.Command{Use: "x", Run: func(*cobra.Command, []string) {}}
		for _, name := range []string{"a", "b", "c"} {
			cmd.Flags().Bool(name, false, "")
		}
		tt.group(cmd)
		if err := cmd.ParseFlags(tt.args); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := checkFlagGroups(cmd); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%v: %q, want %q", tt.args, got, tt.want)
		}
	}
}

// TestOutput: --output is another name for --json and --csv, and no other form of it
// goes with them.
func TestOutput(t *testing.T) {
	run := func(args ...string) (int, string) {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), *testEnv(&stdout, &stderr), args)
		return code, stdout.String() + stderr.String()
	}
	_, long := run("lab", "fill", "--list", "--json")
	for _, args := range [][]string{{"-o", "json"}, {"--output=json"}, {"-ojson", "--json"}} {
		if code, text := run(append([]string{"lab", "fill", "--list"}, args...)...); code != exitOK || text != long || !json.Valid([]byte(text)) {
			t.Errorf("%v: exit code %d, %s", args, code, text)
		}
	}
	curves := filepath.Join(t.TempDir(), "curves.csv")
	_, plain := run("simulate", "--csv", "-")
	if code, text := run("simulate", "-o", "csv"); code != exitOK || text != plain || !strings.HasPrefix(text, "start_s,") {
		t.Errorf("exit code %d, %.200s", code, text)
	}
	if code, text := run("simulate", "-o", "json", "--csv", curves); code != exitOK || !json.Valid([]byte(text)) {
		t.Errorf("exit code %d, %.200s", code, text)
	}
	if _, err := os.Stat(curves); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"lab", "list", "--json", "-o", "text"}, {"lab", "list", "-o", "csv"}, {"simulate", "-o", "csv", "--csv", curves},
		{"simulate", "-o", "csv", "--json"}, {"conntrack", "list", "--csv", "-o", "json"}, {"snapshot", "-o", "json"}} {
		if code, text := run(args...); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", args, code, text)
		}
	}
}

// TestTablesAsCSV: tables that scripts ask for have the columns of the JSON document.
func TestTablesAsCSV(t *testing.T) {
	table := filepath.Join(t.TempDir(), "table")
	line := "tcp 6 29 ESTABLISHED src=198.18.0.1 dst=203.0.113.1 sport=1024 dport=53 src=203.0.113.1 dst=192.0.2.1 sport=53 dport=4096 mark=0 use=1\n"
	if err := os.WriteFile(table, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]map[string]string{
		"ports -o csv --from " + table:            {"address": "192.0.2.1", "protocol": "tcp", "used": "1"},
		"sysctl -o csv net.core.somaxconn":        {"name": "net.core.somaxconn", "default": "4096"},
		"sysctl --csv net.ipv4.tcp_ehash_entries": {"name": "net.ipv4.tcp_ehash_entries", "default": ""},
	}
	for args, want := range cases {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), *testEnv(&stdout, &stderr), strings.Fields(args))
		lines, err := csv.NewReader(&stdout).ReadAll()
		if code != exitOK || err != nil || len(lines) != 2 {
			t.Errorf("%s: exit code %d, %v, %q %s", args, code, err, lines, &stderr)
			continue
		}
		for name, value := range want {
			if i := slices.Index(lines[0], name); i < 0 || lines[1][i] != value {
				t.Errorf("%s: %s is not %q in %q", args, name, value, lines)
			}
		}
	}
}

// TestWide: nothing is wrapped, cut or filled up.
func TestWide(t *testing.T) {
	longest := func(args ...string) (columns int) {
		var stdout bytes.Buffer
		if code := Run(t.Context(), *testEnv(&stdout, io.Discard), args); code != exitOK {
			t.Fatalf("%v: exit code %d", args, code)
		}
		for line := range strings.Lines(stdout.String()) {
			columns = max(columns, len([]rune(line)))
		}
		return columns
	}
	text, wide := longest("simulate", "--list"), longest("simulate", "--list", "-o", "wide")
	if text > 101 || wide <= text || wide > 1000 {
		t.Errorf("text has %d columns, wide %d", text, wide)
	}
}

func TestConntrackHabits(t *testing.T) {
	for args, want := range map[string]string{
		"conntrack -L":                        "conntrack list",
		"conntrack -L conntrack -p tcp":       "conntrack list -p tcp",
		"conntrack -p tcp -L -o extended":     "conntrack list -p tcp -o extended",
		"conntrack --dump -n":                 "conntrack list -n",
		"conntrack -C":                        "conntrack count",
		"conntrack -E -e NEW":                 "conntrack events -e NEW",
		"conntrack -D -s 198.18.0.7":          "conntrack delete -s 198.18.0.7",
		"conntrack -F":                        "conntrack delete --all",
		"conntrack --flush conntrack -y":      "conntrack delete --all -y",
		"conntrack --by state":                "conntrack --by state",
		"conntrack list -p tcp":               "conntrack list -p tcp",
		"lab exec gateway -- conntrack -L -n": "lab exec gateway -- conntrack -L -n",
	} {
		if got := strings.Join(conntrackHabits(strings.Fields(args)), " "); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// full is a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestHelpThatCannotBeWritten: the help is output, too.
func TestHelpThatCannotBeWritten(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"doctor", "--help"}, {"--version"}} {
		var stderr bytes.Buffer
		env := testEnv(full{}, &stderr)
		env.Version = "any"
		if code := Run(t.Context(), *env, args); code != exitFailed || stderr.String() != "natkit: no space left on device\n" {
			t.Errorf("natkit %s: exit code %d: %s", strings.Join(args, " "), code, &stderr)
		}
	}
}

// TestValuesThatAreNotNumbers: the cause is the one that the user sees.
func TestValuesThatAreNotNumbers(t *testing.T) {
	for _, tc := range []struct{ verb, flag, value, want string }{
		{"lab run", "requests", "0", "must be 1 or more"},
		{"lab run", "concurrency", "-1", "must be 1 or more"},
		{"lab run", "timeout", "0", "must be 1ms or more"},
		{"doctor", "max-memory", "-5", "must not be negative"},
		{"doctor", "max-memory", "-x", "not a number"},
		{"doctor", "for", "NaN", "must be a number of seconds, or a time such as 500ms, 10s, 2m"},
		{"doctor", "for", "inf", "too long"},
	} {
		var stderr bytes.Buffer
		Run(t.Context(), *testEnv(io.Discard, &stderr), append(strings.Fields(tc.verb), "--"+tc.flag, tc.value))
		if want := fmt.Sprintf("natkit: --%s %q: %s\n", tc.flag, tc.value, tc.want); !strings.HasPrefix(stderr.String(), want) {
			t.Errorf("%s, want %s", &stderr, want)
		}
	}
}

// TestDumbTerminalHasNoProgressLine: it has no way to erase one.
func TestDumbTerminalHasNoProgressLine(t *testing.T) {
	var stderr bytes.Buffer
	env := testEnv(io.Discard, &stderr)
	env.StderrTerminal, env.Getenv = true, func(name string) string { return map[string]string{"TERM": "dumb"}[name] }
	p := env.progress()
	p.Show("reading")
	p.Clear()
	if stderr.Len() > 0 {
		t.Errorf("%q", &stderr)
	}
}
