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
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
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

// readAcceptQueues asks sock_diag for the listeners with connections that wait for accept.
func (o *observation) readAcceptQueues(context.Context) error {
	queues, err := answer(o, question{"accept queues", "accept_queues.json"}, func() (*[]snapshot.AcceptQueue, error) {
		w, err := o.src.world()
		if err != nil {
			return nil, err
		}
		defer w.close()
		all, err := w.sockets("tcp")
		all = slices.DeleteFunc(all, func(q snapshot.AcceptQueue) bool { return q.Waiting == 0 })
		free := func(q snapshot.AcceptQueue) int64 { return int64(q.Limit) - int64(q.Waiting) }
		slices.SortStableFunc(all, func(a, b snapshot.AcceptQueue) int {
			return cmp.Or(cmp.Compare(free(a), free(b)), a.Socket.Compare(b.Socket))
		})
		all = all[:min(len(all), mostQueues)]
		return &all, err
	})
	if err == nil {
		o.AcceptQueues = *queues
	}
	return noneIfAbsent(err)
}

// readReversePaths lists the interfaces with a strict reverse path filter, if it dropped
// anything so far.
func (o *observation) readReversePaths(context.Context) error {
	if o.TCP == nil || o.TCP.Counters["TcpExtIPReversePathFilter"] == 0 {
		return errNone
	}
	paths, err := answer(o, question{"reverse paths", "reverse_paths.json"}, o.askReversePaths)
	if err == nil {
		o.ReversePaths = *paths
	}
	return noneIfAbsent(err)
}

// askReversePaths asks, for each interface, for the route to a public address that leads out of
// it: that is a default route, also one of a table for the interface's own address.
func (o *observation) askReversePaths() (*[]snapshot.ReversePath, error) {
	k, err := o.asksRoutes()
	if err != nil {
		return nil, err
	}
	paths := []snapshot.ReversePath{}
	links := k.sorted()
	for _, l := range links[:min(len(links), mostPaths)] {
		// The effective value is the larger one, and 2 is loose (IN_DEV_RPFILTER).
		if mode := max(k.strictFilter("all"), k.strictFilter(l.name)); mode != 1 || l.flags&unix.IFF_UP == 0 || l.flags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		path := snapshot.ReversePath{Interface: l.name}
		if path.Default, err = k.leadsOut(l); err != nil {
			return nil, err
		}
		if !path.Default {
			path.Selected = k.selectedWay(l)
		}
		paths = append(paths, path)
	}
	return &paths, nil
}

// selectedWay is the routing rule for packets of a mark, or that come in by an interface, that leads to a default
// route out of this one: fib_validate_source asks without either, unless src_valid_mark is set.
func (r *router) selectedWay(l *link) string {
	for _, name := range []string{"all", l.name} {
		if text, _ := r.file("/proc/sys/net/ipv4/conf/" + name + "/src_valid_mark"); strings.TrimSpace(string(text)) != "0" {
			return ""
		}
	}
	tables := r.defaultTables(l)
	for i := range r.rules {
		rule := &r.rules[i]
		if rule.v6 || rule.mark == 0 && rule.in == "" || rule.from.IsValid() || rule.invert || !slices.Contains(tables, rule.table) {
			continue
		}
		word := fmt.Sprintf("fwmark %#x", rule.mark)
		if rule.mark == 0 {
			word = "iif " + rule.in
		}
		return fmt.Sprintf("%d: %s lookup %d", rule.priority, word, rule.table)
	}
	return ""
}

func (r *router) strictFilter(device string) int {
	text, _ := r.file("/proc/sys/net/ipv4/conf/" + device + "/rp_filter")
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// readICMPErrors asks the rules what becomes of the ICMP errors by which this machine answers
// packets that are too large to forward, if there were any.
func (o *observation) readICMPErrors(context.Context) (err error) {
	if o.TCP == nil || o.TCP.Counters["IpFragFails"] == 0 {
		return errNone
	}
	o.ICMPErrors, err = answer(o, question{"filters of ICMP errors", "icmp_errors.json"}, func() (*snapshot.Filter, error) {
		tables, err := o.judged()
		if err != nil {
			return nil, err
		}
		k := &lookups{tables: tables, judged: mostJudged}
		const unreachable, tooLarge = 3, 4 // ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED
		return k.filter(&ruleset.Packet{Conn: ruleset.ConnRelated, Packet: nat.Packet{Protocol: unix.IPPROTO_ICMP}, ICMP: true, Type: unreachable, Code: tooLarge}, "output", "postrouting"), nil
	})
	return noneIfAbsent(err)
}

// mostLinks and mostQueuesRead bound what is kept of a host with very many interfaces.
const (
	mostLinks      = 2048
	mostQueuesRead = 2048
)

// readLinks reads what interfaces, their queues and filters of tc lost.
func (o *observation) readLinks(context.Context) (err error) {
	o.Links, err = answer(o, question{"interfaces and queues", "links.json"}, askLinks)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// readIPsecPolicies lists the policies of IPsec, if it dropped anything so far.
func (o *observation) readIPsecPolicies(context.Context) error {
	if o.TCP == nil || !ipsecDropped(o.TCP.Counters) {
		return errNone
	}
	policies, err := answer(o, question{"IPsec policies", "ipsec_policies.json"}, askIPsecPolicies)
	if err == nil {
		o.IPsecPolicies = *policies
	}
	return noneIfAbsent(err)
}

func ipsecDropped(counters snapshot.Counters) bool {
	for name, n := range counters {
		if n > 0 && strings.HasPrefix(name, "Xfrm") {
			return true
		}
	}
	return false
}
