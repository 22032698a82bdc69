package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
)

// lossCount is a counter of the kernel's of packets that were lost on the way through the gateway.
type lossCount struct {
	where string
	n     uint64
}

// losses are in the order of a packet's way.
type losses []lossCount

// readLosses reads the counters of all places between the client and the server where a packet can be lost.
func readLosses(gateway, server *netns.Handle) (all losses, err error) {
	links, err := dropped(gateway)
	if err != nil {
		return nil, err
	}
	for _, l := range links { // of a veth that is sent to by XDP_REDIRECT, those that its ring had no room for, too (veth_get_stats64)
		all = append(all, lossCount{"in the ring of the gateway's " + l.Name, l.Statistics.RxDropped})
	}
	cpus, err := dump.Stats(gateway)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"drop", "early_drop", "insert_failed", "chaintoolong", "invalid"} {
		sum := uint64(0)
		for _, cpu := range cpus {
			sum += cpu[name]
		}
		all = append(all, lossCount{"conntrack " + name, sum})
	}
	for _, l := range links {
		all = append(all, lossCount{"as the gateway sent them to " + l.Name, l.Statistics.TxDropped})
	}
	if links, err = dropped(server); err != nil {
		return nil, err
	}
	for _, l := range links {
		all = append(all, lossCount{"in the ring of the server's " + l.Name, l.Statistics.RxDropped})
	}
	backlog, err := backlogDropped()
	return append(all, lossCount{"in the backlog of a CPU (netdev_max_backlog)", backlog}), err
}

func dropped(ns *netns.Handle) (links []*netlink.LinkAttrs, err error) {
	err = ns.Do(func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			if a := l.Attrs(); a.Name != "lo" && a.Statistics != nil {
				links = append(links, a)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the counters of interfaces: %w", err)
	}
	return links, nil
}

// backlogDropped sums the second column of /proc/net/softnet_stat, that of the whole host.
func backlogDropped() (sum uint64, err error) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		columns := strings.Fields(line)
		if len(columns) < 2 {
			return 0, fmt.Errorf("read /proc/net/softnet_stat: %q has no second column", line)
		}
		n, err := strconv.ParseUint(columns[1], 16, 32)
		if err != nil {
			return 0, fmt.Errorf("read /proc/net/softnet_stat: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// since says what was lost since before, and where.
func (l losses) since(before losses) string {
	var where []string
	for i, c := range l {
		if n := c.n - before[i].n; n > 0 {
			where = append(where, fmt.Sprintf("%d %s", n, c.where))
		}
	}
	if len(where) == 0 {
		return "no counter of the kernel says where"
	}
	return strings.Join(where, ", ")
}
