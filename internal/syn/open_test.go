package syn

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tap"
	"github.com/natkit/natkit/internal/testutil"
)

// TestOpenConnection: a client that forgot its connection without a word uses its port
// again while the server still has the connection open. The server's challenge ACK makes
// the client end it, so that it is gone when it is asked for; it was not TIME_WAIT.
func TestOpenConnection(t *testing.T) {
	r := newReusing(t, servers[0], map[string]string{"tcp_timestamps": "2", "tcp_invalid_ratelimit": "0"})
	var accepted <-chan struct{}
	r.server, accepted = r.holding()
	next := r.forget(40000)
	<-accepted // what follows may come in by another CPU, before the last segment of the handshake
	tp, err := Start(t.Context(), Options{Netns: r.ns, Answers: true})
	if err != nil {
		t.Fatal(err)
	}
	r.send(40000, next-1<<20, milliseconds(t)+1000)
	r.until("netstat", func(text string) bool { return counter(t, text, "TcpExt:", "TCPSYNChallenge") == 1 })
	got, err := tp.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if byTimestamp, bySequence := got.Rejected(); byTimestamp+bySequence > 0 || got.SYNs != 1 {
		t.Errorf("no SYN met TIME_WAIT: %+v", got)
	}
}

// TestLateListener: where nothing listens nothing is watched, until something does.
func TestLateListener(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("syn-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	r := &reusing{t, ns, servers[0]}
	r.in(func() error { return up("lo") })
	tp, err := startBy(t, Options{Netns: ns, Answers: true}, tap.SocketSource)
	if err != nil {
		t.Fatal(err)
	}
	r.until("packet", func(text string) bool { return running(text) == 0 })
	at, _ := r.holding()
	r.until("packet", func(text string) bool { return running(text) == 1 })
	r.in(func() error {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			c.Close()
		}
		return err
	})
	got, err := tp.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if got.SYNs != 1 || got.Elsewhere != 0 {
		t.Errorf("%+v", got)
	}
}

// holding is a server that keeps its connections open; of each it tells that it has it.
func (r *reusing) holding() (at netip.AddrPort, accepted <-chan struct{}) {
	r.t.Helper()
	tell := make(chan struct{}, 10)
	at = netip.AddrPortFrom(r.server.Addr(), r.server.Port()+1)
	r.in(func() error {
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		r.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				r.t.Cleanup(func() { c.Close() })
				tell <- struct{}{}
			}
		}()
		return nil
	})
	return at, tell
}

// forget makes a connection and drops the client's end without a segment, and returns
// the client's next sequence number.
func (r *reusing) forget(port uint16) (next uint32) {
	r.t.Helper()
	r.in(func() error {
		fd, at, err := r.socket(unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, at(port)); err != nil {
			return err
		}
		if err := unix.Connect(fd, at(r.server.Port())); err != nil {
			return err
		}
		if next, err = nextSequence(fd); err != nil {
			return err
		}
		// What closes in repair mode sends nothing.
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
	})
	return next
}

// counter is the value of a protocol's counter in the text of /proc/net/snmp or netstat.
func counter(t *testing.T, text, protocol, name string) int {
	t.Helper()
	var names, values []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, protocol) {
			names, values = values, strings.Fields(line)
		}
	}
	if i := slices.Index(names, name); i >= 0 && i < len(values) {
		n, err := strconv.Atoi(values[i])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("no counter %s of %s in %q", name, protocol, text)
	return 0
}
