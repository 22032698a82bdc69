package collect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

const (
	procSNMP      = "/proc/net/snmp"
	procNetstat   = "/proc/net/netstat"
	procSockstat  = "/proc/net/sockstat"
	procSockstat6 = "/proc/net/sockstat6"
	procSNMP6     = "/proc/net/snmp6"
	procXfrm      = "/proc/net/xfrm_stat"
)

// ReadTCP reads the TCP counters and sockets of one namespace (nil: this one). It takes
// about 0.1 ms.
func ReadTCP(ns *netns.Handle) (tcp *snapshot.TCP, err error) {
	src := newLive(Options{Netns: ns})
	insideErr := src.inside(func() error { tcp, err = readTCP(src); return nil })
	return tcp, errors.Join(insideErr, err)
}

// readTCP fails as a whole where one of the files with counters cannot be read: a rule
// must not take half of them for all.
func readTCP(src source) (*snapshot.TCP, error) {
	t := &snapshot.TCP{Counters: snapshot.Counters{}}
	var lacking error // people send one of them
	for _, path := range []string{procSNMP, procNetstat} {
		text, err := readText(src, path)
		if lacks(err) && lacking == nil {
			lacking = err
			continue
		}
		if err != nil {
			return nil, err
		}
		counters, err := parseCounters(strings.NewReader(text), path, "Tcp", "TcpExt", "Ip", "IpExt", "Icmp", "Udp")
		if err != nil {
			return nil, err
		}
		maps.Copy(t.Counters, counters)
	}
	for _, path := range []string{procSNMP6, procXfrm} {
		text, err := readText(src, path)
		if err == nil {
			err = parseCounterLines(strings.NewReader(text), path, t.Counters)
		}
		if err = noneIfAbsent(err); err != nil && !errors.Is(err, errNone) {
			return nil, err
		}
	}
	sockets, err := readTCPSockets(src)
	t.Sockets = sockets
	return t, firstError(lacking, err)
}

// parseCounters reads pairs of lines, names above values, each behind the name of
// their group (snmp_seq_show and netstat_seq_show, net/ipv4/proc.c); names and their
// order are other ones from kernel to kernel. What is negative is no counter and left
// out: Tcp MaxConn is -1.
func parseCounters(r io.Reader, path string, groups ...string) (snapshot.Counters, error) {
	wanted := map[string]bool{}
	for _, g := range groups {
		wanted[g] = true
	}
	counters := snapshot.Counters{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, snapshot.MemberMax)
	for lines.Scan() {
		group, names, ok := strings.Cut(lines.Text(), ":")
		if !ok || !lines.Scan() {
			return nil, fmt.Errorf("parse %s: line %.60q has no values", path, group)
		}
		again, values, ok := strings.Cut(lines.Text(), ":")
		if !ok || again != group {
			return nil, fmt.Errorf("parse %s: values of %.60q under the names of %.60q", path, again, group)
		}
		if !wanted[group] {
			continue
		}
		if err := addCounters(counters, group, strings.Fields(names), strings.Fields(values)); err != nil {
			return nil, fmt.Errorf("parse %s: %w", path, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	if len(counters) == 0 {
		return nil, fmt.Errorf("parse %s: no counters of %s in it", path, strings.Join(groups, " and "))
	}
	return counters, nil
}

// parseCounterLines reads a name and its value in each line (snmp6_seq_show_item, net/ipv6/proc.c;
// xfrm_statistics_seq_show, net/xfrm/xfrm_proc.c): of IPv6 the groups Ip6 and Udp6.
func parseCounterLines(r io.Reader, path string, to snapshot.Counters) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "\t")
		name = strings.TrimSpace(name)
		if !strings.HasPrefix(name, "Ip6") && !strings.HasPrefix(name, "Udp6") && !strings.HasPrefix(name, "Xfrm") {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		if err != nil {
			return fmt.Errorf("parse %s, %.60s: %w", path, name, err)
		}
		to[name] = n
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	return nil
}

func addCounters(to snapshot.Counters, group string, names, values []string) error {
	if len(names) != len(values) {
		return fmt.Errorf("%s: %d values under %d names", group, len(values), len(names))
	}
	for i, name := range names {
		if strings.HasPrefix(values[i], "-") {
			continue
		}
		n, err := strconv.ParseUint(values[i], 10, 64)
		if err != nil {
			return fmt.Errorf("%s %.60s: %w", group, name, err)
		}
		to[group+name] = n
	}
	return nil
}

// ReadTCPSockets reads the numbers of the calling thread's network namespace.
func ReadTCPSockets() (*snapshot.TCPSockets, error) { return readTCPSockets(newLive(Options{})) }

// readTCPSockets: a kernel without IPv6 has no sockstat6.
func readTCPSockets(src source) (*snapshot.TCPSockets, error) {
	text, err := readText(src, procSockstat)
	if err != nil {
		return nil, err
	}
	v4, err := parseSockstat(strings.NewReader(text), procSockstat, "TCP")
	if err != nil {
		return nil, err
	}
	s := &snapshot.TCPSockets{InUse: v4["inuse"], TimeWait: v4["tw"], Orphans: v4["orphan"], MemoryPages: v4["mem"]}
	if text, err = readText(src, procSockstat6); err != nil {
		return s, nil
	}
	v6, err := parseSockstat(strings.NewReader(text), procSockstat6, "TCP6")
	if err != nil {
		return nil, err
	}
	s.InUse6 = v6["inuse"]
	return s, nil
}

// parseSockstat reads the line of one protocol: names and values by turns
// (sockstat_seq_show, net/ipv4/proc.c).
func parseSockstat(r io.Reader, path, protocol string) (map[string]int64, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		if name != protocol {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields)%2 != 0 {
			return nil, fmt.Errorf("parse %s: line %.60q is not of names and values", path, lines.Text())
		}
		values := map[string]int64{}
		for i := 0; i < len(fields); i += 2 {
			n, err := strconv.ParseInt(fields[i+1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("parse %s, %.60s: %w", path, fields[i], err)
			}
			values[fields[i]] = n
		}
		return values, nil
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return nil, fmt.Errorf("parse %s: no line %s", path, protocol)
}
