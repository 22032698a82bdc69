package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long interfaces and addresses must have been quiet before they are
	// read; those that change all the time are read after settleMax.
	settle, settleMax = 300 * time.Millisecond, 3 * time.Second
	// usualLook is how often the rules themselves are checked, and how soon what
	// failed is tried again.
	usualLook = 30 * time.Second
	// mostQuick is how many times rules that were removed are put in force again at
	// once; until they stay, that is then left to the periodic check.
	mostQuick = 3
	// undoPatience is how long an undo may take before it is checked again.
	undoPatience = 5 * time.Second
)

// addressesChanged is the reason to apply that is not worth a line where nothing follows
// from it.
const addressesChanged = "addresses changed"

// Service keeps a configuration in force until its context ends, for a service
// manager. What it applied stays then: a restart must cut no connection.
type Service struct {
	Host Host
	// File is the configuration's path.
	File string
	// Reload has a value when the file is to be read again (SIGHUP).
	Reload <-chan os.Signal
	// UndoOnExit takes everything back at the end.
	UndoOnExit bool
	// Log receives each event, in one line.
	Log func(string)
	// Look is how often the file and the presence of the rules are checked; 0 is every
	// second.
	Look time.Duration
	// Getenv is the environment, where the service manager has its messages.
	Getenv func(string) string
}

// Run applies and watches. An error at the beginning ends it: nothing is in force that
// was not before. Later ones are logged, and the former rules stay.
func (s *Service) Run(ctx context.Context) error {
	if err := permit.Change("run the gateway"); err != nil {
		return err
	}
	m, err := newManager(s.Getenv, os.Getpid())
	if err != nil {
		return err
	}
	defer m.close()
	release, err := s.claim()
	if err != nil {
		return err
	}
	defer release()
	k := newKeeper(s, m)
	k.clean()
	links, err := s.Host.watchLinks(ctx)
	if err != nil {
		return err
	}
	tables, err := s.Host.watchTables(ctx)
	if err != nil {
		k.log("%v; checking for the rules every %s instead", err, k.look())
	}
	if err := s.Host.followWays(ctx); err != nil {
		k.log("%v; routes that change count within a second", err)
	}
	if err := k.begin(ctx); errors.Is(err, context.Canceled) {
		k.log("stopped before anything was changed: what was in force stays")
		return nil
	} else if err != nil {
		return err
	}
	k.notify(wordReady)
	k.loop(ctx, links, tables)
	m.notify(wordStopping)
	k.hosts.end()
	k.leases.end(k)
	return k.end()
}

// claim keeps a second service out of the namespace: they would replace each other's
// rules.
func (s *Service) claim() (release func(), err error) {
	inode, err := s.Host.Inode()
	if err != nil {
		return nil, err
	}
	return s.Host.store().Claim(inode, runnerHere(s.File).String())
}

// keeper is a service that runs.
type keeper struct {
	*Service
	manager *manager
	file    *fileWatch
	// text is the configuration that is in force, files what it names, plan and digest what it became.
	text   []byte
	files  *inputs
	plan   *gateway.Plan
	digest string
	// hosts checks those of the plan.
	hosts *hosts
	// owner is the transaction that put it in force; nil where it was found so.
	owner *journal.Transaction
	// devices are the interfaces of the kernel's fast path.
	devices string
	// uplinks are those of the plan.
	uplinks uplinks
	// leases are the ports that hosts inside have opened.
	leases *leases
	// had are the host's addresses as last seen.
	had map[netip.Addr]bool
	// waiting are the interfaces that do not exist, as last logged; off is the forwarding that
	// was turned off.
	waiting []string
	off     string
	// noted is what logNotes has logged of the configuration, runner the service itself.
	noted  []string
	runner Runner
	// failed has to be tried again. reported is the last logged value of rules that are no
	// longer natkit's; suspended is true while an undo by another process is respected.
	failed, suspended    bool
	reported, lastStatus string
	// removed is how many times the rules were not there since a periodic check found them.
	removed int
}

func newKeeper(s *Service, m *manager) *keeper {
	return &keeper{Service: s, manager: m, file: &fileWatch{}, hosts: newHosts(s.Host), leases: newLeases(), runner: runnerHere(s.File)}
}

func (k *keeper) log(format string, args ...any) {
	k.Log(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// clean undoes what a natkit that was killed, or a power loss, has left behind.
func (k *keeper) clean() {
	var undone []*journal.Transaction
	err := k.Host.Netns.Do(func() (err error) { undone, err = apply.Clean(k.Host.options(k.Host.keeps())); return err })
	for _, tx := range undone {
		k.log("undid %s (%s), which no other process would have undone", tx.ID, tx.Origin)
	}
	if err != nil {
		k.log("undo what is overdue: %v", err)
	}
}

func (k *keeper) begin(ctx context.Context) (err error) {
	files := newInputs(k.File)
	if k.text, err = ReadFile(k.File); err != nil {
		return err
	}
	if k.had, err = k.Host.addresses(); err != nil {
		return err
	}
	defer func() { k.file.take(files.infos) }()
	return k.apply(ctx, k.text, files, "start")
}

func (k *keeper) look() time.Duration { return cmp.Or(k.Look, fileLook) }

// loop waits for events until ctx ends.
func (k *keeper) loop(ctx context.Context, links, tables <-chan struct{}) {
	look, usual := time.NewTicker(k.look()), time.NewTicker(usualLook)
	defer look.Stop()
	defer usual.Stop()
	quiet := newQuiet()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-links:
			quiet.event(time.Now())
		case <-k.uplinks.routes:
			quiet.event(time.Now())
		case <-quiet.timer.C:
			quiet.begun = time.Time{}
			k.addresses(ctx)
		case <-tables:
			k.missing(ctx)
		case <-k.Reload:
			k.manager.notify(reloading())
			k.reload(ctx, "reload")
			k.notify(wordReady)
		case <-look.C:
			if k.file.look() {
				k.reload(ctx, "file changed")
			}
			k.missing(ctx)
			k.hosts.report(k)
			k.leases.look(ctx, k, time.Now())
		case <-usual.C:
			k.usual(ctx)
		case <-k.hosts.timer.C:
			k.hosts.start(ctx, time.Now())
		case r := <-k.hosts.results:
			k.hosts.done(ctx, k, r, time.Now())
		case r := <-k.leases.requests:
			k.leases.answer(k, r, time.Now())
		case <-k.leases.announce.C:
			k.leases.tell(time.Now())
		case <-k.manager.due():
		}
		k.manager.alive(time.Now())
		k.notify()
	}
}

// notify sends messages to the manager, and the status if it has changed.
func (k *keeper) notify(words ...string) {
	if now := status(k.status()); now != k.lastStatus {
		k.lastStatus = now
		words = append(words, now)
	}
	if len(words) > 0 {
		k.manager.notify(words...)
	}
}

// reload takes the file as it is now; a broken one changes nothing.
func (k *keeper) reload(ctx context.Context, reason string) {
	files := newInputs(k.File)
	text, err := ReadFile(k.File)
	if err == nil {
		err = k.apply(ctx, text, files, reason)
	}
	k.file.take(files.infos)
	if err != nil && ctx.Err() == nil {
		k.log("%s: %v; the former rules stay in force", reason, err)
	}
}

// addresses reads the current interfaces and addresses, deletes the connections
// whose address went, and applies again.
func (k *keeper) addresses(ctx context.Context) {
	now, err := k.Host.addresses()
	if err != nil {
		k.log("%v", err)
		k.failed = true
		return
	}
	k.drop(ctx, gone(k.had, now))
	k.had = now
	k.again(ctx, addressesChanged)
}

// again applies the same configuration to what the host is now.
func (k *keeper) again(ctx context.Context, reason string) {
	if k.leftAlone() {
		return
	}
	err := k.apply(ctx, k.text, k.files, reason)
	k.failed = err != nil
	if err != nil && ctx.Err() == nil {
		k.log("%s: %v; the former rules stay in force", reason, err)
	}
}

// missing checks, when rules have changed and at every tick, whether there are rules at all:
// without them connections that begin leave with addresses from inside. What failed has
// its time with the periodic check.
func (k *keeper) missing(ctx context.Context) {
	if k.suspended || k.failed || k.removed >= mostQuick {
		return
	}
	if there, err := k.Host.Engines.Present(k.Host.Netns); err == nil && !there {
		k.compare(ctx)
	}
}

// usual is the periodic check that the rules are still natkit's; it retries what failed.
func (k *keeper) usual(ctx context.Context) {
	if k.failed {
		k.addresses(ctx)
	}
	k.compare(ctx)
	if k.hosts.retry {
		k.hosts.use(k)
	}
	if k.uplinks.retry {
		k.uplinks.steer(ctx, k)
	}
	k.leases.usual(ctx, k)
	if !k.suspended {
		k.logForwarding()
	}
}

// status is a line about what is in force.
func (k *keeper) status() string {
	text := fmt.Sprintf("in force: %s (%s)", summary(k.plan), k.digest[:12])
	switch {
	case k.suspended:
		text = "suspended: the gateway was undone; reload to apply it again"
	case k.off != "":
		text = "forwards nothing: " + k.off + " set to 0; reload to set it again"
	case k.reported != "":
		text = "changed: the rules are not as they were applied; reload to apply them again"
	}
	if down := k.hosts.status(); down != "" {
		text += "; " + down
	}
	if len(k.waiting) > 0 {
		text += "; waiting for " + strings.Join(k.waiting, ", ")
	}
	return text
}

// end takes everything back, where that is wished.
func (k *keeper) end() error {
	if !k.UndoOnExit {
		return nil
	}
	return k.undoAll()
}

// manager is the service manager that started natkit (sd_notify(3)): one datagram for
// each message, to the socket that $NOTIFY_SOCKET names. Without one it is silent.
type manager struct {
	conn net.Conn
	// watchdog is how often the manager has to hear that natkit lives; 0 is never.
	watchdog time.Duration
	ticker   *time.Ticker
	last     time.Time
}

// newManager takes what the environment says. pid is natkit's own: $WATCHDOG_PID may
// name another process.
func newManager(getenv func(string) string, pid int) (*manager, error) {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return &manager{}, nil
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("reach the service manager at NOTIFY_SOCKET %q: %w", getenv("NOTIFY_SOCKET"), err)
	}
	m := &manager{conn: conn, watchdog: watchdogOf(getenv, pid)}
	if m.watchdog > 0 {
		m.ticker = time.NewTicker(m.watchdog)
	}
	return m, nil
}

// due has a value when the manager has to hear of natkit; without a watchdog never.
func (m *manager) due() <-chan time.Time {
	if m.ticker == nil {
		return nil
	}
	return m.ticker.C
}

// alive says so, often enough.
func (m *manager) alive(now time.Time) {
	if m.watchdog > 0 && now.Sub(m.last) >= m.watchdog/2 {
		m.last = now
		m.notify(wordAlive)
	}
}

// watchdogOf is half of the time after which the manager would end natkit
// (sd_watchdog_enabled(3)).
func watchdogOf(getenv func(string) string, pid int) time.Duration {
	if p := getenv("WATCHDOG_PID"); p != "" && p != strconv.Itoa(pid) {
		return 0
	}
	µs, err := strconv.ParseUint(getenv("WATCHDOG_USEC"), 10, 62)
	if err != nil || µs > uint64(24*time.Hour/time.Microsecond) {
		return 0
	}
	return time.Duration(µs) * time.Microsecond / 2
}

// notify sends assignments, one in a line. A manager that does not listen is no reason
// not to translate.
func (m *manager) notify(assignments ...string) {
	if m.conn != nil {
		m.conn.Write([]byte(strings.Join(assignments, "\n") + "\n"))
	}
}

// Words of sd_notify(3).
const (
	wordReady    = "READY=1"
	wordStopping = "STOPPING=1"
	wordAlive    = "WATCHDOG=1"
)

// reloading comes with the time (CLOCK_MONOTONIC), which Type=notify-reload needs.
func reloading() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "RELOADING=1"
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", time.Duration(now.Nano()).Microseconds())
}

// status is one line for `systemctl status`.
func status(text string) string { return "STATUS=" + strings.ReplaceAll(text, "\n", " ") }

func (m *manager) close() {
	if m.ticker != nil {
		m.ticker.Stop()
	}
	if m.conn != nil {
		m.conn.Close()
	}
}

// watchLinks has a value whenever an interface or an address of the namespace has
// changed, or may have.
func (h Host) watchLinks(ctx context.Context) (<-chan struct{}, error) {
	return h.watch(ctx, "interfaces and addresses", unix.NETLINK_ROUTE, func(netlink.Message) bool { return true },
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// neighbours are the link-layer addresses of hosts, by interface and address.
type neighbours map[string]string

// mostNeighbours bounds them.
const mostNeighbours = 1 << 16

// moved reports whether a message is of a neighbour that has another link-layer address than before: the kernel also sends
// one for each state of its search for one (__neigh_notify).
func (n neighbours) moved(m netlink.Message) bool {
	const size, index, attrDst, attrLladdr = 12, 4, 1, 2 // struct ndmsg; NDA_DST, NDA_LLADDR
	if len(m.Body) < size {
		return true
	}
	attrs, err := netlink.ParseAttrs(m.Body[size:])
	if err != nil {
		return true
	}
	address := string(attrs.Get(attrLladdr))
	if m.Type == unix.RTM_DELNEIGH || address == "" {
		return false // who is sent something asks anew
	}
	if len(n) >= mostNeighbours {
		clear(n)
	}
	key := string(m.Body[index:index+4]) + string(attrs.Get(attrDst))
	before, known := n[key]
	n[key] = address
	return known && before != address
}

// waysRest is how long after routes or neighbours have changed they are not looked at again.
const waysRest = 100 * time.Millisecond

// followWays has engines that remember routes and neighbours ask for them again whenever some have changed.
func (h Host) followWays(ctx context.Context) error {
	known := neighbours{}
	changed, err := h.watch(ctx, "routes and neighbours", unix.NETLINK_ROUTE, func(m netlink.Message) bool {
		isNeighbour := m.Type == unix.RTM_NEWNEIGH || m.Type == unix.RTM_DELNEIGH
		return !isNeighbour || known.moved(m)
	},
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			_ = h.Engines.Forget(h.Netns) // they ask again on their own, a little later
			select {
			case <-ctx.Done():
			case <-time.After(waysRest):
			}
		}
	}()
	return nil
}

// tablesLook is how often the service asks whether rules have changed: a question takes 10 µs.
const tablesLook = 100 * time.Millisecond

// watchTables has a value whenever the rules of nf_tables in the namespace have changed. It asks for their generation: as
// long as anybody listens to changes (NFNLGRP_NFTABLES), the kernel makes a message of each rule and each element that is
// written in any namespace of the host (nf_tables_setelem_notify, netlink_has_listeners), and a million elements take it
// 12 s instead of 0.8 s.
func (h Host) watchTables(ctx context.Context) (<-chan struct{}, error) {
	c, err := read.Dial(h.Netns)
	var was uint32
	if err == nil {
		was, err = c.Generation()
	}
	if err != nil {
		return nil, fmt.Errorf("watch the generation of nf_tables: %w", err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer c.Close()
		look := time.NewTicker(tablesLook)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			if now, err := c.Generation(); err == nil && now != was {
				was = now
				signalOn(changed)
			}
		}
	}()
	return changed, nil
}

// signalOn leaves a value, unless there is one.
func signalOn(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watchBuffer is in bytes. It may overflow: that counts as a message that matters.
const watchBuffer = 256 << 10

// watch has a value when the kernel has sent a message to a group that matters, or more
// than the socket's buffer holds: several before it is taken are one. It ends with ctx.
func (h Host) watch(ctx context.Context, what string, family int, matters func(netlink.Message) bool, groups ...int) (chan struct{}, error) {
	s, err := socket.Dial(h.Netns, family)
	if err == nil {
		err = s.SetReceiveBuffer(watchBuffer)
	}
	for i := 0; err == nil && i < len(groups); i++ {
		err = s.Join(groups[i])
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", what, err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer s.Close()
		for buf := make([]byte, socket.DatagramMax); ctx.Err() == nil; {
			b, err := s.Poll(buf)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded), err == nil && !contains(b, matters):
				continue
			case err != nil && !errors.Is(err, unix.ENOBUFS):
				return
			}
			signalOn(changed)
		}
	}()
	return changed, nil
}

// contains reports whether a datagram has a message that matters, or is malformed.
func contains(datagram []byte, matters func(netlink.Message) bool) bool {
	for len(datagram) > 0 {
		m, rest, err := netlink.Next(datagram)
		if err != nil || matters(m) {
			return true
		}
		datagram = rest
	}
	return false
}
