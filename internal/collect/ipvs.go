package collect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/ipvs"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

const (
	procIPVS            = "/proc/net/ip_vs"
	procIPVSStats       = "/proc/net/ip_vs_stats"
	procIPVSPerCPU      = "/proc/net/ip_vs_stats_percpu"
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
		o.IPVS, err = ipvs.ParseServices(strings.NewReader(text))
	}
	if err != nil {
		return err
	}
	err = o.readIPVSStats()
	var timeoutsErr error
	o.IPVS.Timeouts, timeoutsErr = answer(o, question{"IPVS timeouts", "ipvs_timeouts.json"}, askIPVSTimeouts)
	return errors.Join(err, timeoutsErr)
}

func (o *observation) readIPVSStats() error {
	text, err := readText(o.src, procIPVSPerCPU)
	if err == nil {
		o.IPVS.Stats, err = ipvs.ParsePerCPU(strings.NewReader(text))
		return err
	}
	if text, err = readText(o.src, procIPVSStats); err == nil {
		o.IPVS.Stats, err = ipvs.ParseStats(strings.NewReader(text))
	}
	return err
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
	t := ipvs.NewTable()
	t.At, t.Complete = began.Uptime, whole
	if o.IPVS.Timeouts != nil {
		t.FinSeconds = o.IPVS.Timeouts.TCPFin
	}
	if err := ipvs.ParseConnections(bytes.NewReader(text), t.Add); err != nil {
		return err
	}
	o.ipvsTable = t
	o.IPVS.Connections = t.Summary(nil, ipvsMost)
	return nil
}

// compareIPVS tells which tuples were used again between two observations.
func (o *observation) compareIPVS(first *observation) {
	if o.ipvsTable != nil && first.ipvsTable != nil && o.ipvsTable.At > first.ipvsTable.At {
		o.IPVS.Connections = o.ipvsTable.Summary(first.ipvsTable, ipvsMost)
	}
}

// Generic netlink of IPVS (include/uapi/linux/ip_vs.h).
const (
	ipvsFamily        = "IPVS"
	ipvsVersion       = 1
	ipvsGetConfig     = 13 // IPVS_CMD_GET_CONFIG
	ipvsTimeoutTCP    = 4  // IPVS_CMD_ATTR_TIMEOUT_TCP
	ipvsTimeoutTCPFin = 5
	ipvsTimeoutUDP    = 6
)

// askIPVSTimeouts asks for the family by name, which loads no module: /proc/net/ip_vs is
// there.
func askIPVSTimeouts() (*snapshot.IPVSTimeouts, error) {
	c, err := socket.Dial(nil, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("read the timeouts of IPVS: %w", err)
	}
	defer c.Close()
	family, err := askGeneric(c, unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 1, netlink.AppendText(nil, unix.CTRL_ATTR_FAMILY_NAME, ipvsFamily))
	id := family.Get(unix.CTRL_ATTR_FAMILY_ID)
	if err != nil || len(id) != 2 {
		return nil, fmt.Errorf("read the timeouts of IPVS: generic netlink family %s: %w", ipvsFamily, cmp.Or(err, netlink.ErrTruncated))
	}
	config, err := askGeneric(c, binary.NativeEndian.Uint16(id), ipvsGetConfig, ipvsVersion, nil)
	if err != nil {
		return nil, fmt.Errorf("read the timeouts of IPVS: %w", netns.Denied(err, netns.NetAdmin))
	}
	return timeoutsOf(config), nil
}

// askGeneric sends a command with attributes (struct genlmsghdr), and returns those of the
// answer.
func askGeneric(c *socket.Conn, family uint16, command, version byte, attributes []byte) (netlink.Attrs, error) {
	answers, err := c.Ask(family, 0, append([]byte{command, version, 0, 0}, attributes...))
	if err == nil && (len(answers) != 1 || len(answers[0].Body) < unix.GENL_HDRLEN) {
		err = fmt.Errorf("%d answers, expected one", len(answers))
	}
	if err != nil {
		return nil, err
	}
	return netlink.ParseAttrs(answers[0].Body[unix.GENL_HDRLEN:])
}

func timeoutsOf(a netlink.Attrs) *snapshot.IPVSTimeouts {
	seconds := func(kind uint16) int64 {
		if b := a.Get(kind); len(b) == 4 {
			return int64(binary.NativeEndian.Uint32(b))
		}
		return 0
	}
	return &snapshot.IPVSTimeouts{TCP: seconds(ipvsTimeoutTCP), TCPFin: seconds(ipvsTimeoutTCPFin), UDP: seconds(ipvsTimeoutUDP)}
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
