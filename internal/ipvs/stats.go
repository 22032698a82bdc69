package ipvs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

const (
	statsFile  = "/proc/net/ip_vs_stats"
	perCPUFile = "/proc/net/ip_vs_stats_percpu"
)

// ParsePerCPU sums the lines of /proc/net/ip_vs_stats_percpu (ip_vs_stats_percpu_show,
// Linux 2.6.39 and newer): the number of a CPU and five counters, in hexadecimal. Its
// total is left out: an estimator writes it every two seconds, or never.
func ParsePerCPU(r io.Reader) (*snapshot.IPVSStats, error) {
	sum := &snapshot.IPVSStats{}
	found := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 6 || f[0] == "CPU" || f[0] == "~" {
			continue
		}
		s, err := parseCounters(f[1:])
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", perCPUFile, err)
		}
		sum.Connections += s.Connections
		sum.InPackets += s.InPackets
		sum.OutPackets += s.OutPackets
		sum.InBytes += s.InBytes
		sum.OutBytes += s.OutBytes
		found = true
	}
	if err := lines.Err(); err != nil || !found {
		return nil, errors.Join(fmt.Errorf("parse %s: no CPU", perCPUFile), err)
	}
	return sum, nil
}

// ParseStats reads the first line of numbers of /proc/net/ip_vs_stats, the totals
// (ip_vs_stats_show). From 2.6.39 on they are as old as the estimator's last turn, two
// seconds.
func ParseStats(r io.Reader) (*snapshot.IPVSStats, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 5 || f[0] == "Total" || f[0] == "Conns" || f[0] == "Conns/s" {
			continue
		}
		s, err := parseCounters(f)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", statsFile, err)
		}
		return s, nil
	}
	return nil, errors.Join(fmt.Errorf("parse %s: no totals in it", statsFile), lines.Err())
}

func parseCounters(f []string) (*snapshot.IPVSStats, error) {
	s := &snapshot.IPVSStats{}
	for i, to := range []*uint64{&s.Connections, &s.InPackets, &s.OutPackets, &s.InBytes, &s.OutBytes} {
		n, err := strconv.ParseUint(f[i], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("counter %d: %w", i+1, err)
		}
		*to = n
	}
	return s, nil
}
