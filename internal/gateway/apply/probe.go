package apply

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway/health"
	"golang.org/x/sys/unix"
)

// probe checks a host once, from the namespace. The error is why it is not up, in a few words.
func (h Host) probe(ctx context.Context, t health.Target) error {
	f, err := h.socket(t)
	if err != nil {
		return err
	}
	defer f.Close()
	deadline := time.Now().Add(t.Timeout)
	if err := f.SetDeadline(deadline); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { f.SetDeadline(time.Unix(1, 0)) })()
	switch err = connected(f); {
	case err == nil && t.At.Port() == 0:
		err = echoes(f, t.At.Addr().Is6())
	case err == nil && t.Path != "":
		err = asksHTTP(f, t)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer within %s", t.Timeout)
	}
	return err
}

// socket begins a connection. It is made in the namespace, and then used from anywhere. It is closed by an RST: each
// check would leave an entry in TIME_WAIT.
func (h Host) socket(t health.Target) (*os.File, error) {
	a := t.At.Addr().Unmap()
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(t.At.Port()), Addr: a.As16()})
	if a.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(t.At.Port()), Addr: a.As4()}
	}
	var fd int
	err := h.Netns.Do(func() (err error) {
		const how = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
		if t.At.Port() > 0 {
			fd, err = unix.Socket(family, unix.SOCK_STREAM|how, 0)
			return err
		}
		protocol := map[int]int{unix.AF_INET: unix.IPPROTO_ICMP, unix.AF_INET6: unix.IPPROTO_ICMPV6}[family]
		fd, err = unix.Socket(family, unix.SOCK_RAW|how, protocol)
		if errors.Is(err, unix.EPERM) { // net.ipv4.ping_group_range may permit this
			fd, err = unix.Socket(family, unix.SOCK_DGRAM|how, protocol)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	if err := through(fd, t); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("ask by %s: %w", cmp.Or(t.Through, "zone "+t.Zone), err)
	}
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "check of "+t.At.String()), nil
}

// through binds a socket to the interface of a target, or its VRF, and gives its packets the mark.
func through(fd int, t health.Target) error {
	if t.Mark == 0 {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(t.Mark)); err != nil {
		return err
	}
	if device := cmp.Or(t.Through, t.VRF); device != "" {
		return unix.BindToDevice(fd, device)
	}
	return nil
}

// echoes sends an echo request and waits for its reply. A raw socket of IPv4 has each message behind its IP header; the
// kernel computes the checksum of ICMPv6 in any case.
func echoes(f *os.File, v6 bool) error {
	request := binary.BigEndian.AppendUint64([]byte{8, 0, 0, 0, 0, 0, 0, 1}, rand.Uint64())
	reply := byte(0)
	if v6 {
		request[0], reply = 128, 129
	}
	binary.BigEndian.PutUint16(request[4:], uint16(rand.Uint32()))
	binary.BigEndian.PutUint16(request[2:], frame.SumOf(request))
	if _, err := f.Write(request); err != nil {
		return err
	}
	for buf := make([]byte, 2048); ; {
		n, err := f.Read(buf)
		if err != nil {
			return err
		}
		b := buf[:n]
		if n > 20 && b[0]>>4 == 4 && !v6 {
			b = b[min(n, int(b[0]&15)*4):]
		}
		if len(b) >= len(request) && b[0] == reply && bytes.Equal(b[8:len(request)], request[8:]) {
			return nil
		}
	}
}

// connected waits until the connection is made.
func connected(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		// The event may have come before this waits for it.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		if err != nil || n == 0 {
			return false
		}
		var number int
		if number, result = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); result == nil && number != 0 {
			result = unix.Errno(number)
		}
		return true
	})
	return errors.Join(err, result)
}

// longestAnswer bounds what is read of an answer.
const longestAnswer = 4096

// asksHTTP asks for the path, and takes a status from 200 to 399.
func asksHTTP(f *os.File, t health.Target) error {
	request, err := http.NewRequest(http.MethodGet, "http://"+t.At.String()+t.Path, nil)
	if err != nil {
		return err
	}
	request.Close = true
	request.Header.Set("User-Agent", "natkit")
	if err := request.Write(f); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(io.LimitReader(f, longestAnswer)), request)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ECONNRESET):
		return err
	case err != nil:
		return errors.New("the answer is not HTTP")
	case answer.StatusCode < 200 || answer.StatusCode > 399:
		return fmt.Errorf("HTTP status %d", answer.StatusCode)
	}
	return nil
}
