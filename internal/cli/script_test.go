package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/testutil"
)

// TestMain makes this test binary a natkit of its own when it is called by that
// name, so that scripts run the whole program without building it first.
func TestMain(m *testing.M) {
	if build.IsInit() {
		os.Exit(build.InitMain())
	}
	testscript.Main(m, map[string]func(){"natkit": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
		defer stop()
		os.Exit(Run(ctx, Env{
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			Getenv:  os.Getenv,
			Version: "v0.0.0-test",
		}, os.Args[1:]))
	}})
}

// TestScript runs testdata/script/*.txtar, the language of which is that of
// testscript with these words more:
//
//	needs root nft       skip (or fail, by testutil's rule) without them
//	exits 2 natkit …     run a command that must end with this exit code
//	[root]               condition: the effective user is root
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/script",
		RequireUniqueNames: true,
		UpdateScripts:      os.Getenv("NATKIT_UPDATE_SCRIPTS") != "",
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Setup: func(env *testscript.Env) error {
			tb, ok := env.T().(testing.TB)
			if !ok {
				return errors.New("testscript no longer hands on the *testing.T that testutil needs")
			}
			env.Values[testKey{}] = tb
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"needs": needs,
			"exits": exits,
		},
	})
}

// testKey finds the test behind a script.
type testKey struct{}

func needs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: needs root|PROGRAM…")
	}
	tb := ts.Value(testKey{}).(testing.TB)
	for _, arg := range args {
		if arg == "root" {
			testutil.NeedRoot(tb)
		} else {
			testutil.NeedProgram(tb, arg)
		}
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("run %s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s: exit code %d, want %d", args[1], got, want)
	}
}
