// Command natkit finds out why NAT on Linux is slow or loses connections, fixes
// it, and proves the fix under load.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/natkit/natkit/internal/cli"
	"github.com/natkit/natkit/internal/lab/build"
)

// version is set by the linker (Makefile), from git.
var version string

func main() {
	if build.IsInit() {
		os.Exit(build.InitMain())
	}
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	// A second signal ends natkit at once, as if it had no handler; the guard
	// process then puts the host's values back.
	context.AfterFunc(ctx, stop)
	return cli.Run(ctx, cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StdinTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		StderrTerminal: term.IsTerminal(int(os.Stderr.Fd())),

		Getenv:  os.Getenv,
		Version: programVersion(),
	}, os.Args[1:])
}

// programVersion falls back on what `go install` recorded.
func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
