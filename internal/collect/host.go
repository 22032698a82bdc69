package collect

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// What of the host is mistaken for faults of NAT: its queues, and its reverse path filter.

const (
	procSoftnet = "/proc/net/softnet_stat"
	procNetlink = "/proc/net/netlink"
	// mostQueues and mostPaths bound what is kept of a host with very many listeners and
	// interfaces.
	mostQueues = 20
	mostPaths  = 256
)

// readSoftnet reads the queues between the interfaces and the protocols, which are the
// machine's in every namespace.
func (o *observation) readSoftnet(context.Context) error {
	text, err := readText(o.src, procSoftnet)
	if err == nil {
		o.Softnet, err = parseSoftnet(strings.NewReader(text))
	}
	return noneIfAbsent(err)
}

// noneIfAbsent is errNone for a file that is neither here nor in an older bundle.
func noneIfAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// parseSoftnet sums the lines of the CPUs, whose columns are hexadecimal and only become more
// (softnet_seq_show, net/core/net-procfs.c).
func parseSoftnet(r io.Reader) (*snapshot.Softnet, error) {
	s := &snapshot.Softnet{}
	lines := bufio.NewScanner(r)
	cpus := 0
	for ; lines.Scan(); cpus++ {
		f := strings.Fields(lines.Text())
		if len(f) < 3 {
			return nil, fmt.Errorf("parse %s: line %.60q has fewer than 3 columns", procSoftnet, lines.Text())
		}
		processed, err1 := strconv.ParseUint(f[0], 16, 32)
		dropped, err2 := strconv.ParseUint(f[1], 16, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("parse %s: %w", procSoftnet, err)
		}
		s.Processed += uint32(processed)
		s.Dropped += uint32(dropped)
	}
	if err := lines.Err(); err != nil || cpus == 0 {
		return nil, fmt.Errorf("parse %s: no CPU: %w", procSoftnet, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return s, nil
}

// readEventListeners reads who subscribed to conntrack's events in this namespace.
func (o *observation) readEventListeners(context.Context) error {
	text, err := readText(o.src, procNetlink)
	if err == nil {
		o.EventListeners, err = parseEventListeners(strings.NewReader(text))
	}
	return noneIfAbsent(err)
}

// parseEventListeners reads the sockets of netlink by the names in the header
// (netlink_native_seq_show, net/netlink/af_netlink.c).
func parseEventListeners(r io.Reader) ([]snapshot.EventListener, error) {
	// A group is a bit of the column from bit 0 on; those of conntrack are the first six
	// (NFNLGRP_CONNTRACK_NEW to NFNLGRP_CONNTRACK_EXP_DESTROY).
	const ofConntrack = 1<<unix.NFNLGRP_CONNTRACK_EXP_DESTROY - 1
	lines := bufio.NewScanner(r)
	lines.Scan()
	column := map[string]int{}
	for i, name := range strings.Fields(lines.Text()) {
		column[name] = i
	}
	for _, name := range []string{"Eth", "Pid", "Groups", "Drops", "Inode"} {
		if _, there := column[name]; !there {
			return nil, fmt.Errorf("parse %s: no column %s in the header", procNetlink, name)
		}
	}
	all := []snapshot.EventListener{}
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < len(column) {
			return nil, fmt.Errorf("parse %s: line %.60q has fewer columns than the header", procNetlink, lines.Text())
		}
		groups, err1 := strconv.ParseUint(f[column["Groups"]], 16, 64)
		// Portids of sockets after a process's first one are negative.
		port, err2 := strconv.ParseInt(f[column["Pid"]], 10, 64)
		drops, err3 := strconv.ParseUint(f[column["Drops"]], 10, 64)
		inode, err4 := strconv.ParseUint(f[column["Inode"]], 10, 64)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("parse %s: %w", procNetlink, err)
		}
		if f[column["Eth"]] == strconv.Itoa(unix.NETLINK_NETFILTER) && groups&ofConntrack != 0 {
			all = append(all, snapshot.EventListener{PortID: uint32(port & math.MaxUint32), Inode: inode, Drops: drops})
		}
	}
	return all, lines.Err()
}
