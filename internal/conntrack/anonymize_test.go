package conntrack

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// flipped stands for a replacement: every bit but the last eight.
func flipped(a netip.Addr) netip.Addr {
	b := a.AsSlice()
	for i := range b[:len(b)-1] {
		b[i] ^= 0xff
	}
	to, _ := netip.AddrFromSlice(b)
	return to
}

func anonymizedEntries() []Entry {
	addr := netip.MustParseAddr
	return []Entry{
		{
			Family: unix.AF_INET, Fields: HasCounters, Status: Confirmed, Timeout: 117, TCPState: 3, ID: 7, Use: 1, Mark: 5,
			Orig:  Tuple{Src: addr("10.77.3.5"), Dst: addr("81.2.69.160"), Proto: unix.IPPROTO_TCP, SrcPort: 40000, DstPort: 80},
			Reply: Tuple{Src: addr("81.2.69.160"), Dst: addr("81.2.69.142"), Proto: unix.IPPROTO_TCP, SrcPort: 80, DstPort: 1024},
			Sent:  Counters{3, 180}, Received: Counters{2, 120}, Start: 1, Stop: 2,
			Helper: []byte("ftp"), SecCtx: []byte("system_u:object_r:acme_t:s0"), Labels: []byte("acmeacmeacmeacme"),
		},
		{
			Family: unix.AF_INET6, Status: Confirmed, Timeout: 29, ID: 8, Use: 1, Zone: 3, ReplyZone: 4,
			Orig:  Tuple{Src: addr("fd42:1:2:3::5"), Dst: addr("2a02:6b8:5::160"), Proto: unix.IPPROTO_ICMPV6, ICMPID: 9, ICMPType: 128},
			Reply: Tuple{Src: addr("2a02:6b8:5::160"), Dst: addr("2a02:6b8:5::142"), Proto: unix.IPPROTO_ICMPV6, ICMPID: 9, ICMPType: 129},
		},
	}
}

func TestAnonymize(t *testing.T) {
	var datagram []byte
	entries := anonymizedEntries()
	for i := range entries {
		datagram = Append(datagram, New, 0, 1, &entries[i])
	}
	// What this natkit does not know: an attribute, one in a tuple, and a message that quotes another.
	start := len(datagram)
	datagram = AppendHeader(datagram, New, 0, 1, unix.AF_INET)
	datagram = append(datagram, Append(nil, New, 0, 1, &entries[0])[unix.SizeofNlMsghdr+netlink.SizeofNetfilter:]...)
	datagram = netlink.AppendText(datagram, 99, "acmeplan")
	datagram = netlink.End(datagram, start)
	start = len(datagram)
	datagram = netlink.Begin(datagram, unix.NLMSG_ERROR, 0, 1)
	datagram = append(append(datagram, 0xf3, 0xff, 0xff, 0xff), netlink.AppendText(nil, 1, "acme 81.2.69.160")...)
	datagram = netlink.End(datagram, start)

	size := len(datagram)
	if err := Anonymize(datagram, flipped); err != nil {
		t.Fatal(err)
	}
	if len(datagram) != size {
		t.Errorf("%d bytes became %d", size, len(datagram))
	}
	entries = append(entries, entries[0])
	for i := range entries {
		e := &entries[i]
		e.SecCtx, e.Labels = nil, nil
		for _, a := range []*netip.Addr{&e.Orig.Src, &e.Orig.Dst, &e.Reply.Src, &e.Reply.Dst} {
			*a = flipped(*a)
		}
	}
	var got []Entry
	var e Entry
	if err := Each(datagram, &e, func(e *Entry) error { got = append(got, *e); return nil }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(entries, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Error(d)
	}
	for _, secret := range []string{"acme", "81.2", "\x51\x02\x45", "\x45\x02\x51", "\x2a\x02\x06\xb8", "\x0a\x4d\x03"} {
		if bytes.Contains(datagram, []byte(secret)) {
			t.Errorf("%q came through", secret)
		}
	}
}

// FuzzAnonymize: what can be decoded has replaced addresses and no names, and nothing of what cannot be comes through.
func FuzzAnonymize(f *testing.F) {
	entries := anonymizedEntries()
	for i := range entries {
		f.Add(Append(nil, New, 0, 1, &entries[i]))
	}
	f.Add([]byte{20, 0, 0, 0, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0})
	f.Add([]byte{})
	nowhere := func(a netip.Addr) netip.Addr {
		if a.Is4() {
			return netip.IPv4Unspecified()
		}
		return netip.IPv6Unspecified()
	}
	f.Fuzz(func(t *testing.T, datagram []byte) {
		count := func(each func(*Entry)) (n int, err error) {
			var e Entry
			err = Each(datagram, &e, func(e *Entry) error { n++; each(e); return nil })
			return n, err
		}
		before, wrong := count(func(*Entry) {})
		err := Anonymize(datagram, nowhere)
		after, _ := count(func(e *Entry) {
			for _, a := range []netip.Addr{e.Orig.Src, e.Orig.Dst, e.Reply.Src, e.Reply.Dst} {
				if !a.IsUnspecified() {
					t.Errorf("the address %s came through", a)
				}
			}
			if len(e.SecCtx)+len(bytes.Trim(e.Labels, "\x00")) > 0 {
				t.Errorf("%q, %q came through", e.SecCtx, e.Labels)
			}
		})
		if err == nil && wrong == nil && before != after {
			t.Errorf("%d entries became %d", before, after)
		}
	})
}
