package socket

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// pair returns a Conn and the kernel's end, at which these datagrams were sent.
func pair(t *testing.T, datagrams ...[]byte) *Conn {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := New(ends[0])
	t.Cleanup(func() { c.Close(); unix.Close(ends[1]) })
	for _, d := range datagrams {
		if _, err := unix.Write(ends[1], d); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func message(kind, flags uint16, seq uint32, body ...byte) []byte {
	return netlink.End(append(netlink.Begin(nil, kind, flags, seq), body...), 0)
}

func refusal(seq uint32, errno unix.Errno) []byte {
	return message(unix.NLMSG_ERROR, 0, seq, append([]byte{byte(-errno), 0xff, 0xff, 0xff}, make([]byte, 16)...)...)
}

func acknowledgement(seq uint32) []byte {
	return message(unix.NLMSG_ERROR, 0, seq, make([]byte, 20)...)
}

func TestAsk(t *testing.T) {
	const multi = unix.NLM_F_MULTI
	two := append(message(20, multi, 1, 1, 2, 3, 4), message(20, multi, 1, 5, 6, 7, 8)...)
	for _, tt := range []struct {
		name      string
		datagrams [][]byte
		messages  int
		err       error
	}{
		{"one", [][]byte{message(20, 0, 1, 1)}, 1, nil},
		{"one that claims to be a part", [][]byte{message(20, multi, 1, 1)}, 1, nil},
		{"a dump", [][]byte{two, two, message(unix.NLMSG_DONE, multi, 1, 0, 0, 0, 0)}, 4, nil},
		{"a dump of an old kernel", [][]byte{append(two, message(unix.NLMSG_DONE, multi, 1)...)}, 2, nil},
		{"a dump that fails", [][]byte{two, message(unix.NLMSG_DONE, multi, 1, 0xfe, 0xff, 0xff, 0xff)}, 2, unix.ENOENT},
		{"refused", [][]byte{refusal(1, unix.EPERM)}, 0, unix.EPERM},
		{"acknowledged", [][]byte{acknowledgement(1)}, 0, nil},
		{"an answer to another", [][]byte{message(20, 0, 9, 1), message(20, 0, 1, 1)}, 1, nil},
		{"garbled", [][]byte{{1, 2, 3}}, 0, netlink.ErrTruncated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := uint16(0)
			if strings.HasPrefix(tt.name, "a dump") {
				flags = unix.NLM_F_DUMP
			}
			all, err := pair(t, tt.datagrams...).Ask(20, flags, nil)
			if len(all) != tt.messages || !errors.Is(err, tt.err) || (err != nil) != (tt.err != nil) {
				t.Errorf("%d messages, %v", len(all), err)
			}
		})
	}
}

func TestTransact(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answers [][]byte
		refused []uint32
		fails   bool
	}{
		{"all done", [][]byte{acknowledgement(10)}, nil, false},
		{"two refused", [][]byte{append(refusal(2, unix.ENOENT), refusal(5, unix.EBUSY)...), acknowledgement(10)}, []uint32{2, 5}, false},
		{"the last refused", [][]byte{refusal(10, unix.ENOENT)}, []uint32{10}, false},
		{"no answer", nil, nil, true},
		{"no acknowledgement", [][]byte{message(20, 0, 1, 1)}, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			refused, err := pair(t, tt.answers...).Transact(message(20, unix.NLM_F_ACK, 10))
			if len(refused) != len(tt.refused) || (err != nil) != tt.fails {
				t.Fatalf("%v, %v", refused, err)
			}
			for i, seq := range tt.refused {
				if refused[i].Seq != seq {
					t.Errorf("refused: %v", refused)
				}
			}
		})
	}
}

func TestReceiveEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := pair(t).Receive(ctx, make([]byte, 100)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestReceiveDoesNotAllocate: a dump of a million entries has 7,000 datagrams.
func TestReceiveDoesNotAllocate(t *testing.T) {
	var datagrams [][]byte
	for range 60 {
		datagrams = append(datagrams, message(20, 0, 1, 1))
	}
	c, buf, ctx := pair(t, datagrams...), make([]byte, DatagramMax), t.Context()
	if n := testing.AllocsPerRun(50, func() {
		if _, err := c.Receive(ctx, buf); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for each datagram", n)
	}
}

// TestKernel makes a batch of 2,000 messages about connections that do not exist, and a
// request that a kernel refuses.
func TestKernel(t *testing.T) {
	testutil.NeedRoot(t)
	c, err := Dial(testutil.Namespace(t), unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const get, remove = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1, unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	header := netlink.AppendNetfilter(nil, unix.AF_INET, 0)
	if _, err := c.Ask(get, 0, header); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a connection without a tuple: %v", err)
	}
	if _, err := c.Ask(get, unix.NLM_F_DUMP, header); err != nil {
		t.Error(err)
	}
	tuple, ends := netlink.BeginNest(header, 1)
	tuple, ip := netlink.BeginNest(tuple, 1)
	tuple = netlink.AppendAttr(tuple, 1, []byte{198, 18, 0, 1})
	tuple = netlink.EndNest(netlink.AppendAttr(tuple, 2, []byte{198, 18, 0, 2}), ip)
	tuple, proto := netlink.BeginNest(tuple, 2)
	tuple = netlink.AppendU8(tuple, 1, unix.IPPROTO_UDP)
	tuple = netlink.EndNest(netlink.AppendU16(netlink.AppendU16(tuple, 2, 1000), 3, 53), proto)
	tuple = netlink.EndNest(tuple, ends)
	var batch []byte
	const messages = 2000
	for range messages {
		start := len(batch)
		batch = netlink.Begin(batch, remove, unix.NLM_F_REQUEST|unix.NLM_F_ACK, c.NextSeq())
		batch = netlink.End(append(batch, tuple...), start)
	}
	refused, err := c.Transact(batch)
	if err != nil || len(refused) != messages || !errors.Is(refused[0], unix.ENOENT) || refused[messages-1].Seq != c.LastSeq() {
		t.Errorf("%d refused, %v", len(refused), err)
	}
	if !c.Empty() || c.Drops() != 0 {
		t.Errorf("empty %v, %d drops", c.Empty(), c.Drops())
	}
}
