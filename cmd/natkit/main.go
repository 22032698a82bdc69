// Command natkit finds out why NAT on Linux is slow or loses connections, fixes
// it, and proves the fix under load.
package main

import (
	"context"
	_ "embed"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/natkit/natkit/internal/cli"
)

// version is set by the linker (Makefile), to what scripts/version prints.
var version string

// archived is filled in where git makes an archive (export-subst in .gitattributes).
//
//go:embed VERSION
var archived string

func main() {
	if code, done := runInit(); done {
		os.Exit(code)
	}
	os.Exit(run())
}

// oneSignal is the time within which signals count as one: timeout(1) sends each twice, to
// the process and to its group.
const oneSignal = 250 * time.Millisecond

// untilSignal returns a context that a signal ends. From then on, once later runs what it
// gets, a second one ends natkit at once, as if it had no handler; the guard process then puts
// the host's values back.
func untilSignal(later func(func())) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), ending()...)
	context.AfterFunc(ctx, func() { later(stop) })
	return ctx, stop
}

// ending are the signals that end natkit: not a hang-up that is ignored, as by nohup(1).
func ending() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{os.Interrupt, syscall.SIGTERM}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
}

func run() int {
	ctx, stop := untilSignal(func(f func()) { time.AfterFunc(oneSignal, f) })
	defer stop()
	info, _ := debug.ReadBuildInfo()
	built := cli.BuildOf(version, archived, info)
	return cli.Run(ctx, cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StdinTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		StderrTerminal: term.IsTerminal(int(os.Stderr.Fd())),

		Getenv:  environment(os.Stdout, os.Stderr),
		Version: built.Version,
		Build:   built,
	}, os.Args[1:])
}
