package collect

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

const (
	procARP   = "/proc/net/stat/arp_cache"
	procNDisc = "/proc/net/stat/ndisc_cache"
)

// readNeighbours reads the neighbour tables, which only the initial network namespace shows
// (neigh_table_init).
func (o *observation) readNeighbours(context.Context) error {
	n := &snapshot.Neighbours{}
	for path, table := range map[string]**snapshot.NeighbourTable{procARP: &n.ARP, procNDisc: &n.NDisc} {
		text, err := readText(o.src, path)
		if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(errNotRecorded)) {
			continue
		}
		if err == nil {
			*table, err = parseNeighbours(strings.NewReader(text), path)
		}
		if err != nil {
			return err
		}
	}
	if *n == (snapshot.Neighbours{}) {
		return errNone
	}
	o.Neighbours = n
	return nil
}

// parseNeighbours sums the lines of the CPUs (neigh_stat_seq_show, net/core/neighbour.c);
// entries are the table's, the same on every line.
func parseNeighbours(r io.Reader, path string) (*snapshot.NeighbourTable, error) {
	cpus, err := parseStatTable(r, path)
	if err != nil {
		return nil, err
	}
	t := &snapshot.NeighbourTable{Entries: cpus[0]["entries"]}
	for _, cpu := range cpus {
		t.Lookups += cpu["lookups"]
		t.Hits += cpu["hits"]
		t.ResolutionsFailed += cpu["res_failed"]
		t.UnresolvedDiscards += cpu["unresolved_discards"]
		t.GCRuns += cpu["forced_gc_runs"]
		t.TableFulls += cpu["table_fulls"]
	}
	return t, nil
}
