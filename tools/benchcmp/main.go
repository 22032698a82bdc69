// Command benchcmp takes natkit's benchmarks: natkit against other programs and
// against its own limits. It rewrites the measured parts of docs/benchmarks.md and
// the JSON documents below docs/benchmarks. `make bench` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/tools/bench"
)

// suites are all benchmarks, in the order in which they are taken. Each is made
// for the path of the program to measure.
var suites = []func(natkit string) bench.Suite{limitsSuite, fillSuite, conntrackSuite, httpSuite, connectSuite, connectPacketSuite, holdSuite, packetsSuite, planesSuite, mappingsSuite, partsSuite, bulkSuite,
	rfc9693Suite,
	dropsSuite, watchSuite, flowsSuite, synsSuite, doctorSuite, textsSuite, fleetSuite, doctorWatchSuite, tablesSuite, recordSuite, rulesSuite, portsSuite, topSuite, natLogSuite, scrapeSuite, pcapSuite, simulateSuite, planSuite, gatewaySuite, pairsSuite, backendsSuite}

func init() { apply.Init(nil) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "benchcmp: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	natkit := flag.String("natkit", "bin/natkit", "the program to measure")
	only := flag.String("suite", "", "take only these benchmarks, separated by commas")
	rounds := flag.Int("rounds", 0, "rounds of each benchmark (0: as many as its own)")
	doc := flag.String("doc", "", "rewrite the figures in this document NAME.md and in NAME/SUITE.json; empty prints them")
	list := flag.Bool("list", false, "list the benchmarks")
	flag.Parse()
	path, err := filepath.Abs(*natkit)
	if err != nil {
		return err
	}
	chosen, err := choose(*only, path)
	if err != nil {
		return err
	}
	if *list {
		return printList(os.Stdout, chosen)
	}
	lock, err := lockHost(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	return take(ctx, chosen, *rounds, *doc)
}

// hostLock is what tests lock that change a value of the host (testutil.LockHost).
const hostLock = "/run/lock/natkit-test.lock"

// lockHost keeps tests away that change a value of the whole host: one that lowers nf_conntrack_max for a second has the
// kernel evict the entries of a benchmark (early_drop).
func lockHost(ctx context.Context) (io.Closer, error) {
	f, err := os.OpenFile(hostLock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the host for a benchmark: %w", err)
	}
	for said := false; ; said = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !said {
			progress("waiting for a test that changes values of the host, or a benchmark (%s)", hostLock)
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = wait(ctx, time.Second/5)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock the host for a benchmark: %w", err), f.Close())
		}
	}
}

// choose makes the named suites, or all.
func choose(names, natkit string) ([]bench.Suite, error) {
	var all, chosen []bench.Suite
	var known []string
	for _, make := range suites {
		s := make(natkit)
		all, known = append(all, s), append(known, s.Name)
	}
	if names == "" {
		return all, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fmt.Errorf("no benchmark %q; there are: %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func printList(w io.Writer, all []bench.Suite) error {
	for _, s := range all {
		if _, err := fmt.Fprintf(w, "%-10s %2d rounds  %s\n", s.Name, s.Rounds, s.Title); err != nil {
			return err
		}
	}
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// take runs the suites one after the other. One that fails or is refused does not
// keep the others from their figures.
func take(ctx context.Context, chosen []bench.Suite, rounds int, doc string) error {
	for _, s := range chosen {
		if err := s.Check(rounds); err != nil {
			return err
		}
	}
	origin, err := bench.Describe(ctx)
	if err != nil {
		return err
	}
	for _, busy := range origin.Machine.Busy {
		progress("warning: the machine is not quiet: %s", busy)
	}
	var without []string
	for _, s := range chosen {
		result, err := s.Run(ctx, bench.Options{Rounds: rounds, Origin: origin, Progress: progress})
		if err == nil {
			err = publish(result, doc)
		}
		if err == nil {
			err = ctx.Err() // what follows is not taken
		}
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			progress("%v", err)
			without = append(without, s.Name)
		}
	}
	if len(without) > 0 {
		return fmt.Errorf("no figures of %s, for the reasons given above", strings.Join(without, ", "))
	}
	return nil
}

func publish(r *bench.Result, doc string) error {
	for _, v := range r.Verdicts {
		progress("%s: %s: %s: %s", r.Suite, v.Text, v.Outcome, v.Seen)
	}
	if doc != "" {
		return r.Write(doc)
	}
	_, err := fmt.Println(r.Markdown())
	return err
}
