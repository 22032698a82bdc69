package syn

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

var servers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80"), netip.MustParseAddrPort("[::1]:80")}

// reusing is a namespace with a server that closes first, so that it holds TIME_WAIT.
type reusing struct {
	t      *testing.T
	ns     *netns.Handle
	server netip.AddrPort
}

func newReusing(t *testing.T, server netip.AddrPort, sysctls map[string]string) *reusing {
	testutil.NeedRoot(t)
	ns, err := netns.New("syn-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	r := &reusing{t, ns, server}
	r.in(func() error {
		for name, value := range sysctls {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return up("lo")
	})
	r.in(func() error {
		l, err := net.Listen("tcp", server.String())
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

// socket is one of the server's family, with the address of a port there.
func (r *reusing) socket(kind, protocol int) (fd int, at func(port uint16) unix.Sockaddr, err error) {
	if r.server.Addr().Is4() {
		fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, protocol)
		return fd, func(port uint16) unix.Sockaddr {
			return &unix.SockaddrInet4{Addr: r.server.Addr().As4(), Port: int(port)}
		}, err
	}
	fd, err = unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, protocol)
	return fd, func(port uint16) unix.Sockaddr {
		return &unix.SockaddrInet6{Addr: r.server.Addr().As16(), Port: int(port)}
	}, err
}

// close makes a connection from a port, which the server closes first, and returns the
// client's next sequence number: what TIME_WAIT expects.
func (r *reusing) close(port uint16) (next uint32) {
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
		var b [1]byte
		if _, err := unix.Read(fd, b[:]); err != nil { // the server's FIN
			return err
		}
		next, err = nextSequence(fd)
		return err
	})
	return next
}

// nextSequence is that of a socket, behind the FIN that it will send.
func nextSequence(fd int) (uint32, error) {
	const sendQueue, offSilently = 2, -1 // TCP_SEND_QUEUE, TCP_REPAIR_OFF_NO_WP, include/uapi/linux/tcp.h
	for _, o := range [][2]int{{unix.TCP_REPAIR, 1}, {unix.TCP_REPAIR_QUEUE, sendQueue}} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, o[0], o[1]); err != nil {
			return 0, err
		}
	}
	seq, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	if err != nil {
		return 0, err
	}
	return uint32(seq) + 1, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, offSilently)
}

// sender is a raw socket for segments to the server; the kernel adds the checksum where
// it is of IPv6.
func (r *reusing) sender() (fd int, to unix.Sockaddr, err error) {
	fd, at, err := r.socket(unix.SOCK_RAW, unix.IPPROTO_TCP)
	if err == nil && !r.server.Addr().Is4() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, 16)
	}
	return fd, at(0), err
}

// send puts a SYN on the loopback interface, with a timestamp where it is not 0.
func (r *reusing) send(port uint16, isn, tsval uint32) {
	r.t.Helper()
	r.in(func() error {
		fd, to, err := r.sender()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, rawSegment(port, r.server.Port(), isn, tsval), 0, to)
	})
}

// rawSegment has the checksum of one from 127.0.0.1 to itself.
func rawSegment(from, to uint16, isn, tsval uint32) []byte {
	b := make([]byte, 20, 32)
	binary.BigEndian.PutUint16(b[0:], from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], isn)
	b[12], b[13] = 5<<4, byte(frame.SYN)
	binary.BigEndian.PutUint16(b[14:], 65535)
	if tsval != 0 {
		b = append(b, 1, 1, frame.OptionTimestamps, 10)
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
	deadline := time.Now().Add(testutil.Patience(time.Minute))
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

// untilClientsClosed waits for the server's last ACK: a client in LAST_ACK takes answers that are for nobody afterwards.
func (r *reusing) untilClientsClosed() {
	r.t.Helper()
	file := "tcp"
	if !r.server.Addr().Is4() {
		file = "tcp6"
	}
	toServer := fmt.Sprintf(":%04X", r.server.Port())
	r.until(file, func(text string) bool {
		for line := range strings.Lines(text) {
			if strings.HasSuffix(strings.Fields(line)[2], toServer) {
				return false
			}
		}
		return true
	})
}

// milliseconds is what the kernel's timestamps show with tcp_timestamps=2, about.
func milliseconds(t *testing.T) uint32 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint32(ts.Nano() / 1e6)
}
