package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/testutil"
)

// TestMain makes this test binary a natkit of its own when it is called by that
// name, so that scripts run the whole program without building it first.
func TestMain(m *testing.M) {
	if build.IsInit() {
		os.Exit(build.InitMain())
	}
	testscript.Main(m, map[string]func(){"natkit": natkitMain, "natkit-unclassified": unclassifiedMain, "udp-flood": floodMain, "top-that-panics": panickingTopMain, "write-capture": writeCaptureMain, "read-tables": readTablesMain, "rename-host": renameHostMain, "answer-tcp": answerMain})
}

func natkitMain() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	os.Exit(Run(ctx, Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StdinTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		Getenv:         os.Getenv,
		Version:        "v0.0.0-test",
	}, os.Args[1:]))
}

// floodMain opens UDP flows to ADDR:PORT until its script ends, or for longer than
// scripts take on slow machines: few enough that what is admitted to a full table in
// half a second leads to one size of the table only. A second ADDR:PORT answers them.
func floodMain() {
	ctx, stop := context.WithTimeout(context.Background(), testutil.Patience(10*time.Minute))
	defer stop()
	to, err := netip.ParseAddrPort(os.Args[1])
	if err == nil && len(os.Args) > 2 {
		err = testutil.AnswerUDP(ctx, netip.MustParseAddrPort(os.Args[2]))
	}
	if err == nil {
		err = testutil.FloodUDP(ctx, to, 4000)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// answerMain takes connections at each ADDR:PORT, and keeps them until its script ends or they do.
func answerMain() {
	for _, address := range os.Args[1:] {
		l, err := net.Listen("tcp", address)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			for {
				if c, err := l.Accept(); err == nil {
					go func() { _, _ = io.Copy(io.Discard, c) }()
				}
			}
		}()
	}
	time.Sleep(testutil.Patience(10 * time.Minute))
}

// TestScript runs testdata/script/*.txtar, the language of which is that of
// testscript with these words more:
//
//	needs root nft       skip (or fail, by testutil's rule) without them
//	lockhost             keep other tests from host-wide values until the end; with
//	                     'room' only from lowering the limit
//	exits 2 natkit …     run a command that must end with this exit code
//	finally ip netns …   run a command, that must succeed, at the end of the script,
//	                     however it ends; the last one first
//	same-findings A B    two JSON documents of doctor have findings, the same ones
//	                     with the same remedies
//	names-rejected L P T a report of pcap names each SYN that a lab's server rejected, by
//	                     tcpdump's numbers
//	[root]               condition: the effective user is root
//	[kprobes]            condition: eBPF programs can be attached to kernel functions
//
// read-tables DIR… prints the rows of tables as JSON. // $PID is the test's process number, to make names with. $FIRST has bundles of the first form, $RECORDINGS one of each scenario; $FLEET and
// $KUBECTLNATKIT are the collectors of deploy.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/script",
		RequireUniqueNames: true,
		UpdateScripts:      os.Getenv("NATKIT_UPDATE_SCRIPTS") != "",
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "kprobes":
				return testutil.Kprobe.Probe() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Setup: func(env *testscript.Env) error {
			tb, ok := env.T().(testing.TB)
			if !ok {
				return errors.New("testscript no longer hands on the *testing.T that testutil needs")
			}
			env.Values[testKey{}] = tb
			env.Setenv("PID", strconv.Itoa(os.Getpid()))
			first, err := filepath.Abs("../collect/testdata/bundle-1")
			env.Setenv("FIRST", first)
			recordings, err2 := filepath.Abs("../lab/run/testdata/recordings")
			env.Setenv("RECORDINGS", recordings)
			deploy, err3 := filepath.Abs("../../deploy")
			env.Setenv("FLEET", deploy+"/natkit-fleet")
			env.Setenv("KUBECTLNATKIT", deploy+"/kubectl-natkit")
			return errors.Join(err, err2, err3)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"needs":          needs,
			"lockhost":       lockHost,
			"exits":          exits,
			"finally":        finally,
			"same-findings":  sameFindings,
			"names-rejected": namesRejected,
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

func lockHost(ts *testscript.TestScript, neg bool, args []string) {
	roomOnly := len(args) == 1 && args[0] == "room"
	if neg || len(args) > 0 && !roomOnly {
		ts.Fatalf("usage: lockhost [room]")
	}
	testutil.LockHost(ts.Value(testKey{}).(testing.TB))
	if roomOnly {
		return
	}
	// Scripts that lock the host lower its limit; not where that would hurt.
	if name, entries, err := dump.Busiest(); err != nil || entries > 1000 {
		ts.Fatalf("not touching this host's limit: network namespace %s tracks %d connections (%v)", name, entries, err)
	}
}

func finally(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: finally COMMAND…")
	}
	tb := ts.Value(testKey{}).(testing.TB)
	ts.Defer(func() {
		if err := ts.Exec(args[0], args[1:]...); err != nil {
			tb.Errorf("%s: %v", strings.Join(args, " "), err)
		}
	})
}

// curedBy is what two looks at one fault have in common: the numbers differ.
type curedBy struct {
	Findings []struct {
		ID       string
		Remedies []struct {
			Title     string
			Automatic bool
			Changes   []struct{ Kind, Target, Before, After string }
		}
	}
}

func sameFindings(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same-findings FILE FILE")
	}
	var docs [2]curedBy
	for i, name := range args {
		if err := json.Unmarshal([]byte(ts.ReadFile(name)), &docs[i]); err != nil {
			ts.Fatalf("%s: %v", name, err)
		}
		if len(docs[i].Findings) == 0 || len(docs[i].Findings[0].Remedies) == 0 {
			ts.Fatalf("%s: no finding with a remedy", name)
		}
	}
	if diff := cmp.Diff(docs[0], docs[1]); diff != "" {
		ts.Fatalf("%s and %s differ:\n%s", args[0], args[1], diff)
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
