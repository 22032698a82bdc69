package tap

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

var server = netip.MustParseAddrPort("127.0.0.1:80")

// reusing is a namespace with a server that closes first, so that it holds TIME_WAIT.
type reusing struct {
	t  *testing.T
	ns *netns.Handle
}

func newReusing(t *testing.T, sysctls map[string]string) *reusing {
	testutil.NeedRoot(t)
	ns, err := netns.New("syn-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	r := &reusing{t, ns}
	r.in(func() error {
		for name, value := range sysctls {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return up("lo")
	})
	r.in(func() error {
		l, err := net.Listen("tcp4", server.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		return nil
	})
	return r
}

func (r *reusing) in(fn func() error) {
	r.t.Helper()
	if err := r.ns.Do(fn); err != nil {
		r.t.Fatal(err)
	}
}

func up(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// close makes a connection from a port, which the server closes first, and returns the
// client's next sequence number: what TIME_WAIT expects.
func (r *reusing) close(port uint16) (next uint32) {
	r.t.Helper()
	r.in(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: server.Addr().As4(), Port: int(port)}); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: server.Addr().As4(), Port: int(server.Port())}); err != nil {
			return err
		}
		var b [1]byte
		if _, err := unix.Read(fd, b[:]); err != nil { // the server's FIN
			return err
		}
		const sendQueue = 2 // TCP_SEND_QUEUE, include/uapi/linux/tcp.h
		for _, o := range [][2]int{{unix.TCP_REPAIR, 1}, {unix.TCP_REPAIR_QUEUE, sendQueue}} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, o[0], o[1]); err != nil {
				return err
			}
		}
		seq, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		next = uint32(seq) + 1 // the FIN
		if err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0)
	})
	return next
}

// send puts a SYN on the loopback interface, with a timestamp where it is not 0.
func (r *reusing) send(port uint16, isn, tsval uint32) {
	r.t.Helper()
	r.in(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, segment(port, isn, tsval), 0, &unix.SockaddrInet4{Addr: server.Addr().As4()})
	})
}

func segment(port uint16, isn, tsval uint32) []byte {
	b := make([]byte, 20, 32)
	binary.BigEndian.PutUint16(b[0:], port)
	binary.BigEndian.PutUint16(b[2:], server.Port())
	binary.BigEndian.PutUint32(b[4:], isn)
	b[12], b[13] = 5<<4, byte(packet.SYN)
	binary.BigEndian.PutUint16(b[14:], 65535)
	if tsval != 0 {
		b = append(b, 1, 1, packet.OptionTimestamps, 10)
		b = binary.BigEndian.AppendUint32(b, tsval)
		b = binary.BigEndian.AppendUint32(b, 0)
		b[12] = 8 << 4
	}
	sum := uint32(unix.IPPROTO_TCP + len(b) + 2*(0x7f00+0x0001)) // the pseudo header
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// until waits for a condition on a file below /proc/net of the namespace.
func (r *reusing) until(file string, met func(text string) bool) {
	r.t.Helper()
	deadline := time.Now().Add(testutil.Patience(10 * time.Second))
	for {
		var text []byte
		r.in(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/" + file); return err })
		if met(string(text)) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("/proc/net/%s is still\n%s", file, text)
		}
		time.Sleep(time.Millisecond)
	}
}

// milliseconds is what the kernel's timestamps show with tcp_timestamps=2, about.
func milliseconds(t *testing.T) uint32 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint32(ts.Nano() / 1e6)
}

// TestRejectedSYNs sends SYNs that TIME_WAIT rejects by each of its two tests, and some
// that it accepts.
func TestRejectedSYNs(t *testing.T) {
	// Without RFC 1337 the client's RST removes TIME_WAIT; there is nobody who would
	// send it, so the kernel does.
	r := newReusing(t, map[string]string{"tcp_timestamps": "2", "tcp_rfc1337": "1", "tcp_invalid_ratelimit": "0"})
	var next [4]uint32
	for i := range next {
		next[i] = r.close(uint16(40000 + i))
	}
	r.until("sockstat", func(text string) bool { return strings.Contains(text, " tw 4 ") })
	tp, err := Start(t.Context(), Options{Netns: r.ns})
	if err != nil {
		t.Fatal(err)
	}
	now := milliseconds(t)
	const old = 100_000
	// A repeated SYN is the sign upon which answers are looked at.
	r.send(40000, next[0]+1<<20, now-old)
	r.send(40000, next[0]+1<<20, now-old)
	r.until("packet", func(text string) bool { return strings.Count(text, "\n") == 1+3 })
	r.send(40000, next[0]+1<<20, now-old)
	r.send(40001, next[1]-1<<20, 0)
	r.send(40002, next[2]+1<<20, 0)        // accepted
	r.send(40003, next[3]-1<<20, now+1000) // accepted: its timestamp is newer
	r.send(40004, 1, 0)                    // nothing in TIME_WAIT
	got, err := tp.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	if len(got.Sources) != 1 {
		t.Fatalf("sources: %+v", got.Sources)
	}
	want := snapshot.SYNSource{Source: "127.0.0.1", Destination: "127.0.0.1", SYNs: 7, Repeated: 2, Plain: 3,
		BySequence: 1, Clocks: 2}
	// The RST for the first answer is a sign, too: then the second one is looked at.
	want.ByTimestamp = min(max(got.Sources[0].ByTimestamp, 1), 2)
	want.TimeWait = want.ByTimestamp + want.BySequence
	if s := got.Sources[0]; s != want {
		t.Errorf("seen %+v, want %+v", s, want)
	}
	if got.Lost != 0 || got.Sample != 1 || got.Elsewhere != 0 || got.AnswersSeconds == 0 {
		t.Errorf("%+v", got)
	}
}

// TestFlood: where SYNs come faster than they are looked at, fewer connections are
// looked at, and the watch ends in time.
func TestFlood(t *testing.T) {
	r := newReusing(t, map[string]string{"tcp_rfc1337": "0"})
	tp, err := Start(t.Context(), Options{Netns: r.ns})
	if err != nil {
		t.Fatal(err)
	}
	sent, began := 0, time.Now()
	r.in(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// Long enough for the rate to be looked at a few times.
		for end := time.Now().Add(testutil.Patience(400 * time.Millisecond)); time.Now().Before(end); sent++ {
			if err := unix.Sendto(fd, segment(uint16(1024+sent%60000), uint32(sent), 0), 0, &unix.SockaddrInet4{Addr: server.Addr().As4()}); err != nil {
				return err
			}
		}
		return nil
	})
	rate := float64(sent) / time.Since(began).Seconds()
	got, err := tp.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d sent, %d looked at, 1 in %d in the end, %d lost", sent, got.SYNs, got.Sample, got.Lost)
	if got.SYNs == 0 || got.SYNs > uint64(sent) {
		t.Errorf("%+v", got)
	}
	if rate > 2*mostPerSecond && got.Sample == 1 { // an emulated processor sends fewer
		t.Errorf("%.0f SYNs/s were sent, and all were looked at", rate)
	}
}

// TestListening: SYNs to others than listeners are counted apart.
func TestListening(t *testing.T) {
	l := &listening{ends: map[netip.AddrPort]bool{}, ports: map[uint16]anyOf{}, own: map[netip.Addr]bool{netip.MustParseAddr("198.18.0.2"): true, netip.MustParseAddr("2001:db8::2"): true}}
	l.addEnd(netip.MustParseAddrPort("198.18.0.9:81"), false)
	l.addEnd(netip.MustParseAddrPort("0.0.0.0:80"), false)
	l.addEnd(netip.MustParseAddrPort("[::]:443"), true)
	l.addEnd(netip.MustParseAddrPort("[::ffff:198.18.0.9]:82"), true)
	for end, want := range map[string]bool{
		"198.18.0.9:81": true, "198.18.0.9:82": true, "198.18.0.2:80": true, "127.0.0.3:80": true, "198.18.0.2:443": true, "[2001:db8::2]:443": true,
		"198.18.0.2:81": false, "198.18.0.3:80": false, "[2001:db8::2]:80": false, "[2001:db8::3]:443": false,
	} {
		if got := l.to(netip.MustParseAddrPort(end)); got != want {
			t.Errorf("%s is listened at: %v", end, got)
		}
	}
}
