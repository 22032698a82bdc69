// Command fleet writes the tables of a simulated fleet, as nodes with natkit write theirs: what tests and benchmarks of
// the questions in deploy/sql are put to.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

func main() {
	fleet := Fleet{}
	flag.Uint64Var(&fleet.Seed, "seed", 1, "all rows follow from this and the numbers below")
	flag.IntVar(&fleet.Nodes, "nodes", 100, "number of nodes")
	flag.IntVar(&fleet.Days, "days", 1, "number of days")
	flag.IntVar(&fleet.Connections, "connections", 50000, "connections in the NAT log of a node (two rows each)")
	flag.IntVar(&fleet.TableEntries, "entries", 10000, "entries in the table of a node at each reading")
	flag.IntVar(&fleet.Readings, "readings", 4, "how often the table is read")
	flag.DurationVar(&fleet.SampleEvery, "sample-every", time.Minute, "time between samples")
	flag.DurationVar(&fleet.ServiceEvery, "service-every", 10*time.Minute, "time between counts of services")
	start := flag.String("start", "2026-11-30", "the first day")
	dir := flag.String("dir", "", "where to write")
	tables := flag.String("tables", "nat_log,entries,samples,services", "which tables")
	flag.Parse()
	day, err := time.Parse(time.DateOnly, *start)
	if err != nil || *dir == "" || fleet.Nodes < 1 || fleet.Days < 1 || fleet.Readings < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "fleet: -dir is required; -start is a day, numbers are positive")
		os.Exit(2)
	}
	fleet.Start = day
	rows, err := fleet.Write(*dir, strings.Split(*tables, ","), runtime.NumCPU())
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
	fmt.Println(rows)
}
