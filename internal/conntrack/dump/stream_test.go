package dump

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// kernelSays returns a socket at whose other end these datagrams were sent.
func kernelSays(t testing.TB, datagrams ...[]byte) *socket.Conn {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := socket.New(ends[0])
	t.Cleanup(func() { c.Close(); unix.Close(ends[1]) })
	for _, d := range datagrams {
		if _, err := unix.Write(ends[1], d); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func entryMessage(i int, flags uint16) []byte {
	e := established(i)
	return conntrack.Append(nil, conntrack.New, flags|unix.NLM_F_MULTI, 1, &e)
}

// control is an NLMSG_DONE or NLMSG_ERROR message.
func control(typ uint16, errno unix.Errno) []byte {
	b := binary.NativeEndian.AppendUint32(nil, 20)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
	return binary.NativeEndian.AppendUint32(b, uint32(-int32(errno)))
}

func TestGarbledStreams(t *testing.T) {
	one, done := entryMessage(1, 0), control(unix.NLMSG_DONE, 0)
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	wrong := join(one)
	wrong[20] = 0xff // the length of the first attribute
	for name, c := range map[string]struct {
		datagrams [][]byte
		entries   int
		complete  bool
		intr      bool
		err       string
	}{
		"whole":              {datagrams: [][]byte{join(one, one), done}, entries: 2, complete: true},
		"done with entries":  {datagrams: [][]byte{join(one, done)}, entries: 1, complete: true},
		"old done":           {datagrams: [][]byte{one, {16, 0, 0, 0, 3, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0}}, entries: 1, complete: true},
		"cut in a message":   {datagrams: [][]byte{join(one, one[:len(one)-8])}, entries: 0, err: "truncated"},
		"cut in a header":    {datagrams: [][]byte{one[:10]}, err: "truncated"},
		"cut attribute":      {datagrams: [][]byte{wrong, done}, err: "truncated"},
		"another's message":  {datagrams: [][]byte{control(99, 0), join(one, done)}, entries: 1, complete: true},
		"refused":            {datagrams: [][]byte{control(unix.NLMSG_ERROR, unix.EPERM)}, err: "CAP_NET_ADMIN"},
		"no conntrack":       {datagrams: [][]byte{control(unix.NLMSG_ERROR, unix.EINVAL)}, err: "CONFIG_NF_CT_NETLINK"},
		"fails at the end":   {datagrams: [][]byte{one, control(unix.NLMSG_DONE, unix.ENOMEM)}, entries: 1, err: "cannot allocate"},
		"interrupted":        {datagrams: [][]byte{one, entryMessage(2, unix.NLM_F_DUMP_INTR), done}, entries: 2, complete: true, intr: true},
		"empty error":        {datagrams: [][]byte{{18, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1}}, err: "truncated"},
		"length of zero":     {datagrams: [][]byte{make([]byte, 32)}, err: "truncated"},
		"length beyond all":  {datagrams: [][]byte{{255, 255, 255, 255, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}, err: "truncated"},
		"entry with nothing": {datagrams: [][]byte{{16, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}, err: "truncated"},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			var e conntrack.Entry
			r, err := receive(t.Context(), kernelSays(t, c.datagrams...), func(msgs []byte) error {
				return conntrack.Each(msgs, &e, func(*conntrack.Entry) error { n++; return nil })
			})
			if n != c.entries || r.Complete != c.complete || r.Interrupted != c.intr {
				t.Errorf("%d entries, %+v, %v; want %d", n, r, err, c.entries)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// TestStreamWithoutAnEnd has a kernel that stops in the middle: only the context
// ends it before the silence does.
func TestStreamWithoutAnEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(300*time.Millisecond))
	defer cancel()
	n := 0
	r, err := receive(ctx, kernelSays(t, entryMessage(1, 0)), func([]byte) error { n++; return nil })
	if !errors.Is(err, context.DeadlineExceeded) || r.Complete || n != 1 {
		t.Errorf("%+v, %v after %d datagrams", r, err, n)
	}
}

func FuzzStream(f *testing.F) {
	f.Add(append(entryMessage(1, 0), control(unix.NLMSG_DONE, 0)...))
	f.Add(control(unix.NLMSG_ERROR, unix.EPERM))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		defer testutil.Bounded(t, len(datagram))()
		readHeaders(datagram)
		var e conntrack.Entry
		_ = conntrack.Each(datagram, &e, func(*conntrack.Entry) error { return nil })
	})
}

func TestWholeBeginsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		interrupted int // number of dumps, from the first on
		err         error
		attempts    int
		still       bool
	}{
		"not":       {attempts: 1},
		"once":      {interrupted: 1, attempts: 2},
		"for ever":  {interrupted: 99, attempts: attempts, still: true},
		"overflown": {interrupted: 1, err: unix.ENOBUFS, attempts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			calls, restarts := 0, 0
			r, err := whole(t.Context(), func() { restarts++ }, func() (Result, error) {
				if calls++; calls <= c.interrupted {
					return Result{Interrupted: c.err == nil}, c.err
				}
				return Result{Complete: true}, nil
			})
			if err != nil || r.Attempts != c.attempts || calls != c.attempts || restarts != calls-1 || r.Interrupted != c.still {
				t.Errorf("%+v, %v after %d dumps and %d restarts", r, err, calls, restarts)
			}
		})
	}
}
