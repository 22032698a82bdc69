package apply

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

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
	if err = connected(f); err == nil && t.Path != "" {
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
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
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
	if _, err := fmt.Fprintf(f, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: natkit\r\nAccept: */*\r\nConnection: close\r\n\r\n", t.Path, t.At); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(f, longestAnswer)).ReadString('\n')
	words := strings.Fields(line)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case len(words) < 2 || !strings.HasPrefix(words[0], "HTTP/1."):
		return errors.New("the answer is not HTTP")
	}
	status, err := strconv.Atoi(words[1])
	if err != nil || status < 200 || status > 399 {
		return fmt.Errorf("HTTP status %.20s", words[1])
	}
	return nil
}
