package collect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/snapshot"
)

const procStat = "/proc/net/stat/nf_conntrack"

// readStat asks ctnetlink, and reads the file where it may not. Many kernels do
// not have the file (CONFIG_NF_CONNTRACK_PROCFS), all refuse ctnetlink to users.
func readStat(ctx context.Context, src source) (*snapshot.ConntrackStat, error) {
	var cpus []map[string]uint64
	netlinkErr := src.counters(ctx, func(msgs []byte) (err error) {
		cpus, err = dump.AppendStats(cpus, msgs)
		return err
	})
	if netlinkErr == nil && len(cpus) > 0 {
		return &snapshot.ConntrackStat{Source: "ctnetlink", PerCPU: cpus}, nil
	}
	data, err := readText(src, procStat)
	if err == nil {
		cpus, err = parseStat(strings.NewReader(data))
	}
	if err != nil {
		return nil, errors.Join(netlinkErr, err)
	}
	return &snapshot.ConntrackStat{Source: procStat, PerCPU: cpus}, nil
}

// statNames are the columns that ctnetlink knows by another name.
var statNames = map[string]string{"clashres": "clash_resolve", "chainlength": "chaintoolong"}

// parseStat reads the counters of each CPU (ct_cpu_seq_show,
// net/netfilter/nf_conntrack_standalone.c). The columns were renamed in place: searched
// became clashres in 5.10, delete_list became chainlength in 5.15.
func parseStat(r io.Reader) ([]map[string]uint64, error) {
	cpus, err := parseStatTable(r, procStat)
	for _, cpu := range cpus {
		delete(cpu, "entries") // of the namespace, the same on every line
		for name, ctnetlinkName := range statNames {
			if n, ok := cpu[name]; ok {
				delete(cpu, name)
				cpu[ctnetlinkName] = n
			}
		}
	}
	return cpus, err
}

// parseStatTable reads a file of /proc/net/stat by the names in its header, which begins
// with entries: one line for each CPU, in hexadecimal.
func parseStatTable(r io.Reader, path string) ([]map[string]uint64, error) {
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		return nil, fmt.Errorf("parse %s: no header", path)
	}
	names := strings.Fields(lines.Text())
	if len(names) == 0 || names[0] != "entries" {
		return nil, fmt.Errorf("parse %s: header %.60q does not begin with entries", path, lines.Text())
	}
	var cpus []map[string]uint64
	for lines.Scan() {
		values := strings.Fields(lines.Text())
		if len(values) != len(names) {
			return nil, fmt.Errorf("parse %s: %d values under %d names", path, len(values), len(names))
		}
		cpu := map[string]uint64{}
		for i, name := range names {
			v, err := strconv.ParseUint(values[i], 16, 64)
			if err != nil {
				return nil, fmt.Errorf("parse %s, column %s: %w", path, name, err)
			}
			cpu[name] = v
		}
		cpus = append(cpus, cpu)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	if len(cpus) == 0 {
		return nil, fmt.Errorf("parse %s: no CPU", path)
	}
	return cpus, nil
}
