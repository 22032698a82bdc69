package collect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/natkit/natkit/internal/snapshot"
)

const (
	procIPVS            = "/proc/net/ip_vs"
	procIPVSStats       = "/proc/net/ip_vs_stats_percpu"
	procIPVSConnections = "/proc/net/ip_vs_conn"
	ipvsSysctls         = sysctlRoot + "net/ipv4/vs"
)

const (
	// ipvsBytes bounds what is read of the table of connections, some 90,000 entries, and
	// ipvsPatience for how long. For every page most kernels walk the table from its
	// beginning (ip_vs_conn_seq_start), so that the whole of a large one would take minutes.
	ipvsBytes    = 6 << 20
	ipvsPatience = time.Second
	// ipvsMost bounds the services, and clients and servers of each, in a snapshot.
	ipvsMost = 20
)

// readIPVS reads services and counters where this namespace has IPVS.
func (o *observation) readIPVS(context.Context) error {
	text, err := readText(o.src, procIPVS)
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	if err == nil {
		o.IPVS, err = parseIPVSServices(strings.NewReader(text))
	}
	if err != nil {
		return err
	}
	if text, err = readText(o.src, procIPVSStats); err == nil {
		o.IPVS.Stats, err = parseIPVSStats(strings.NewReader(text))
	}
	var timeoutsErr error
	o.IPVS.Timeouts, timeoutsErr = answer(o, question{"IPVS timeouts", "ipvs_timeouts.json"}, askIPVSTimeouts)
	return errors.Join(err, timeoutsErr)
}

func (o *observation) readIPVSConnections(context.Context) error {
	if o.IPVS == nil {
		return errNone
	}
	began := o.src.clock("ipvs_conn")
	text, whole, err := o.src.readStart(procIPVSConnections, ipvsBytes, ipvsPatience)
	if err != nil {
		return err
	}
	t := newIPVSTable()
	t.at, t.complete = began.Uptime, whole
	if o.IPVS.Timeouts != nil {
		t.finSeconds = o.IPVS.Timeouts.TCPFin
	}
	if err := parseIPVSConnections(bytes.NewReader(text), t.add); err != nil {
		return err
	}
	o.ipvsTable = t
	o.IPVS.Connections = t.summary(nil, ipvsMost)
	return nil
}

// compareIPVS finds the tuples that were used again between two observations.
func (o *observation) compareIPVS(first *observation) {
	if o.ipvsTable != nil && first.ipvsTable != nil && o.ipvsTable.at > first.ipvsTable.at {
		o.IPVS.Connections = o.ipvsTable.summary(first.ipvsTable, ipvsMost)
	}
}

// RecordIPVS reads IPVS alone, and again after o.For where that is not 0. Where there is
// none, Snapshot.IPVS is nil, and Parts say why where it could not be read.
func RecordIPVS(ctx context.Context, o RecordOptions) (*snapshot.Recording, error) {
	src := newLive(o.Options)
	r := &snapshot.Recording{Schema: snapshot.RecordingSchema}
	first, err := observeIPVS(ctx, src)
	if err != nil {
		return nil, err
	}
	r.Snapshots = append(r.Snapshots, first.Snapshot)
	if o.For == 0 || first.IPVS == nil {
		return r, nil
	}
	o.progress("waiting " + o.For.String() + " to compare")
	pause(ctx, o.For)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	second, err := observeIPVS(ctx, src)
	if err != nil {
		return nil, err
	}
	if second.IPVS != nil {
		second.compareIPVS(first)
	}
	r.Snapshots = append(r.Snapshots, second.Snapshot)
	return r, nil
}

func observeIPVS(ctx context.Context, src source) (*observation, error) {
	o := newObservation(src)
	o.Sysctls = snapshot.Sysctls{}
	o.collect(ctx, append(only("kernel", "ipvs", "ipvs_connections"), collector{snapshot.PartSysctls,
		func(o *observation, _ context.Context) error { return readIPVSSysctls(src, o.Sysctls) }}))
	if why := o.PartError("netns"); why != "" {
		return nil, errors.New(why)
	}
	return o, nil
}

// readIPVSSysctls reads those of IPVS. A directory without IPVS, or of an older natkit's
// bundle, is not there.
func readIPVSSysctls(src source, into snapshot.Sysctls) (err error) {
	names, _ := src.list(ipvsSysctls, "")
	for _, name := range names {
		err = firstError(err, readSysctl(src, into, snapshot.IPVSPrefix+name))
	}
	return err
}

// cutPort splits C6120001:0050 and [2001:0db8:…]:0050.
func cutPort(text string) (addr, port string) {
	at := max(0, strings.LastIndexByte(text, ':'))
	return text[:at], text[min(len(text), at+1):]
}

// parseIPVSEnd reads an address as the kernel writes it, eight hexadecimal digits in the
// order of reading (%08X of ntohl) or all groups of an IPv6 address (%pI6), and the four
// digits of a port.
func parseIPVSEnd(addr, port string) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(strings.Trim(addr, "[]"))
	if len(addr) == 8 && !strings.Contains(addr, ":") {
		var four uint64
		four, err = strconv.ParseUint(addr, 16, 32)
		a = netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(four))))
	}
	p, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(port) != 4 || a.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%.60q and %.60q are not a hexadecimal address and port", addr, port)
	}
	return netip.AddrPortFrom(a, uint16(p)), nil
}

// parseIPVSServices reads /proc/net/ip_vs (ip_vs_info_seq_show, net/netfilter/ipvs/ip_vs_ctl.c):
// a line for each service, and one for each of its real servers below it.
func parseIPVSServices(r io.Reader) (*snapshot.IPVS, error) {
	lines := bufio.NewScanner(r)
	v := &snapshot.IPVS{Services: []snapshot.IPVSService{}}
	if !lines.Scan() {
		return nil, errors.Join(fmt.Errorf("parse %s: empty", procIPVS), lines.Err())
	}
	if _, err := fmt.Sscanf(lines.Text(), "IP Virtual Server version %s (size=%d)", &v.Version, &v.Buckets); err != nil {
		return nil, fmt.Errorf("parse %s: header %.60q does not name the version and the size", procIPVS, lines.Text())
	}
	for lines.Scan() {
		if err := addIPVSLine(v, strings.Fields(lines.Text())); err != nil {
			return nil, fmt.Errorf("parse %s, line %.80q: %w", procIPVS, lines.Text(), err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse %s: %w", procIPVS, err)
	}
	return v, nil
}

func addIPVSLine(v *snapshot.IPVS, f []string) error {
	switch {
	case len(f) == 0 || f[0] == "Prot":
		return nil
	case f[0] != "->":
		s, err := parseIPVSService(f)
		if err == nil {
			v.Services = append(v.Services, s)
		}
		return err
	case len(f) > 1 && strings.HasPrefix(f[1], "RemoteAddress"):
		return nil
	case len(v.Services) == 0:
		return errors.New("a server without a service")
	}
	server, err := parseIPVSServer(f)
	if err == nil {
		last := &v.Services[len(v.Services)-1]
		last.Servers = append(last.Servers, server)
	}
	return err
}

// parseService reads "TCP  C6120001:0050 wlc persistent 75000 FFFFFFFF" and "FWM  00000007
// rr".
func parseIPVSService(f []string) (s snapshot.IPVSService, err error) {
	if len(f) < 3 {
		return s, errors.New("neither a service nor a server")
	}
	s.Servers = []snapshot.IPVSServer{}
	if f[0] == "FWM" {
		mark, err := strconv.ParseUint(f[1], 16, 32)
		if err != nil {
			return s, fmt.Errorf("firewall mark %.20q: not a hexadecimal number", f[1])
		}
		s.Address = fmt.Sprintf("fwmark %d", mark)
	} else {
		address, err := parseIPVSEnd(cutPort(f[1]))
		if err != nil {
			return s, err
		}
		s.Protocol, s.Address = strings.ToLower(f[0]), address.String()
	}
	// The time of persistence is in ticks, 75000 for 300 s where HZ is 250.
	s.Scheduler, s.OnePacket, s.Persistent = f[2], slices.Contains(f[3:], "ops"), slices.Contains(f[3:], "persistent")
	return s, nil
}

// parseServer reads "-> C6120102:0050      Masq    1      3          1200".
func parseIPVSServer(f []string) (s snapshot.IPVSServer, err error) {
	if len(f) < 6 {
		return s, errors.New("expected an address, a method of forwarding, a weight and two numbers of connections")
	}
	address, err := parseIPVSEnd(cutPort(f[1]))
	if err != nil {
		return s, err
	}
	s.Address, s.Forward = address.String(), f[2]
	for i, to := range []*int64{&s.Weight, &s.Active, &s.Inactive} {
		if *to, err = strconv.ParseInt(f[3+i], 10, 64); err != nil {
			return s, fmt.Errorf("column %d: %w", 4+i, err)
		}
		*to = max(0, *to) // an atomic counter may be negative for a moment
	}
	return s, nil
}

// parseIPVSStats sums the lines of /proc/net/ip_vs_stats_percpu (ip_vs_stats_percpu_show):
// the number of a CPU and five counters, in hexadecimal. Its total is left out: an
// estimator writes it every two seconds, or never.
func parseIPVSStats(r io.Reader) (*snapshot.IPVSStats, error) {
	sum, found := &snapshot.IPVSStats{}, false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 6 || f[0] == "CPU" || f[0] == "~" {
			continue
		}
		for i, to := range []*uint64{&sum.Connections, &sum.InPackets, &sum.OutPackets, &sum.InBytes, &sum.OutBytes} {
			n, err := strconv.ParseUint(f[1+i], 16, 64)
			if err != nil {
				return nil, fmt.Errorf("parse %s, counter %d: %w", procIPVSStats, i+1, err)
			}
			*to += n
		}
		found = true
	}
	if err := lines.Err(); err != nil || !found {
		return nil, errors.Join(fmt.Errorf("parse %s: no CPU", procIPVSStats), err)
	}
	return sum, nil
}

// ipvsTuple is what an entry is found by.
type ipvsTuple struct {
	// Protocol is tcp, udp or sctp; ip for templates of a firewall mark.
	Protocol        string
	Client, Service netip.AddrPort
}

// ipvsConnection is one entry of the table.
type ipvsConnection struct {
	ipvsTuple
	Server netip.AddrPort
	// State is the kernel's name, such as TIME_WAIT.
	State string
	// Expires is the time left in seconds, 0 where it is over.
	Expires int64
}

// template: persistence keeps entries without a client port, beside those of connections.
func (c *ipvsConnection) template() bool { return c.Client.Port() == 0 }

// parseIPVSConnections calls fn with each entry of /proc/net/ip_vs_conn; fn must not keep
// the pointer. A last line without an end was cut off and is left out.
//
// Columns are separated by blanks in all kernels (ip_vs_conn_seq_show,
// net/netfilter/ipvs/ip_vs_conn.c): protocol, client, service and server with a port
// each, state, seconds left, and since 2.6.37 name and data of a persistence engine,
// which are ignored.
func parseIPVSConnections(r io.Reader, fn func(*ipvsConnection)) error {
	text := bufio.NewReaderSize(r, 64<<10)
	for number := 1; ; number++ {
		line, err := text.ReadSlice('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("parse %s, line %d: %w", procIPVSConnections, number, err)
		}
		if number == 1 {
			if !strings.HasPrefix(string(line), "Pro FromIP") {
				return fmt.Errorf("parse %s: header %.60q does not begin with Pro FromIP", procIPVSConnections, line)
			}
			continue
		}
		c, err := parseIPVSConnection(strings.Fields(string(line)))
		if err != nil {
			return fmt.Errorf("parse %s, line %d: %w", procIPVSConnections, number, err)
		}
		fn(&c)
	}
}

// parseIPVSConnection shares the texts of protocols and states.
func parseIPVSConnection(f []string) (c ipvsConnection, err error) {
	if len(f) < 9 {
		return c, fmt.Errorf("%d columns, fewer than 9", len(f))
	}
	c.Protocol, c.State = unique.Make(strings.ToLower(f[0])).Value(), unique.Make(f[7]).Value()
	for i, to := range []*netip.AddrPort{&c.Client, &c.Service, &c.Server} {
		if *to, err = parseIPVSEnd(f[1+2*i], f[2+2*i]); err != nil {
			return c, err
		}
	}
	left, err := strconv.ParseUint(f[8], 10, 64)
	if err != nil {
		return c, fmt.Errorf("seconds left %.30q: not a number", f[8])
	}
	c.Expires = secondsLeft(left)
	return c, nil
}

// secondsLeft: where a timer is late the kernel's unsigned difference wraps around.
func secondsLeft(n uint64) int64 {
	if n > math.MaxInt32/1000 {
		return 0
	}
	return int64(n)
}
