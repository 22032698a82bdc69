package run

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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
		m.tell(wordAlive)
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

// tell sends assignments, one in a line. A manager that does not listen is no reason
// not to translate.
func (m *manager) tell(assignments ...string) {
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
