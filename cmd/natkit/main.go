// Command natkit finds out why NAT on Linux is slow or loses connections, fixes
// it, and proves the fix under load.
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/cli"
)

// version is set by the linker (Makefile), from git.
var version = "unknown"

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	return cli.Run(ctx, cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv:  os.Getenv,
		Version: version,
	}, os.Args[1:])
}
