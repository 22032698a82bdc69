package conntrack

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// cases pair an entry with the attributes of its message in hexadecimal, written
// out from nfnetlink_conntrack.h in the order of ctnetlink_fill_info, on a
// little-endian machine.
var cases = []struct {
	name  string
	attrs string
	entry Entry
}{
	{
		name: "DNATed TCP, marked",
		attrs: "34000180" + "14000180" + "08000100c6120000" + "08000200c6130001" +
			"1c000280" + "0500010006000000" + "0600020004000000" + "060003001f900000" +
			"34000280" + "14000180" + "08000100c6130102" + "08000200c6120000" +
			"1c000280" + "0500010006000000" + "0600020000500000" + "0600030004000000" +
			"080003000000 01ae" + "0800070000000258" +
			"30000480" + "2c000180" + "0500010003000000" + "0500020000000000" + "0500030000000000" +
			"0600040000000000" + "0600050000000000" +
			"080008006e61746b" + "08000c00b06d5f9c" + "08000b0000000001",
		entry: Entry{
			Family:   unix.AF_INET,
			Orig:     Tuple{Src: addr("198.18.0.0"), Dst: addr("198.19.0.1"), Proto: 6, SrcPort: 1024, DstPort: 8080},
			Reply:    Tuple{Src: addr("198.19.1.2"), Dst: addr("198.18.0.0"), Proto: 6, SrcPort: 80, DstPort: 1024},
			Status:   SeenReply | Assured | Confirmed | DstNAT | SrcNATDone | DstNATDone,
			TCPState: TCPEstablished, Timeout: 600, Mark: 0x6e61746b, ID: 0xb06d5f9c, Use: 1,
		},
	},
	{
		name: "unanswered UDP over IPv6 in a zone of its original direction, with a time stamp",
		attrs: "54000180" + "2c000180" + "1400030020010db8000000000000000000000001" + "1400040020010db8000000000000000000000002" +
			"1c000280" + "0500010011000000" + "0600020000070000" + "0600030000350000" + "0600030000050000" +
			"4c000280" + "2c000180" + "1400030020010db8000000000000000000000002" + "1400040020010db8000000000000000000000001" +
			"1c000280" + "0500010011000000" + "0600020000350000" + "0600030000070000" +
			"0800030000000008" + "080007000000001e" + "10001480" + "0c000100" + "17a0000000000001",
		entry: Entry{
			Family: unix.AF_INET6,
			Orig:   Tuple{Src: addr("2001:db8::1"), Dst: addr("2001:db8::2"), Proto: 17, SrcPort: 7, DstPort: 53},
			Reply:  Tuple{Src: addr("2001:db8::2"), Dst: addr("2001:db8::1"), Proto: 17, SrcPort: 53, DstPort: 7},
			Status: Confirmed, Timeout: 30, Zone: 5, Start: 0x17a0000000000001, Fields: NoMark,
		},
	},
	{
		name: "ICMP echo, an attribute from the future",
		attrs: "3c000180" + "14000180" + "08000100c6120001" + "08000200c6120002" +
			"24000280" + "0500010001000000" + "0600040000070000" + "0500050008000000" + "0500060000000000" +
			"3c000280" + "14000180" + "08000100c6120002" + "08000200c6120001" +
			"24000280" + "0500010001000000" + "0600040000070000" + "0500050000000000" + "0500060000000000" +
			"0800030000000008" + "080007000000001e" + "0800ff3fffffffff",
		entry: Entry{
			Family: unix.AF_INET,
			Orig:   Tuple{Src: addr("198.18.0.1"), Dst: addr("198.18.0.2"), Proto: 1, ICMPID: 7, ICMPType: 8},
			Reply:  Tuple{Src: addr("198.18.0.2"), Dst: addr("198.18.0.1"), Proto: 1, ICMPID: 7, ICMPType: 0},
			Status: Confirmed, Timeout: 30, Fields: NoMark,
		},
	},
}

// extended are what an entry has where things are switched on.
var extended = Entry{
	Family: unix.AF_INET6,
	Orig:   Tuple{Src: addr("2001:db8::1"), Dst: addr("2001:db8::2"), Proto: 132, SrcPort: 7, DstPort: 2905},
	Reply:  Tuple{Src: addr("2001:db8::2"), Dst: addr("2001:db8::1"), Proto: 132, SrcPort: 2905, DstPort: 7},
	Status: Confirmed, SCTPState: 4, Timeout: 30, ReplyZone: 65535, Mark: 1, Use: 2, ID: 3,
	Fields: HasCounters, Sent: Counters{1, 1<<64 - 1}, Received: Counters{0, 0}, Start: 1, Stop: 2,
	Helper: []byte("ftp"), SecCtx: []byte("system_u:object_r:unlabeled_t:s0"), Labels: []byte{0x22, 0, 0, 0, 0, 0, 0, 0},
}

// variants are entries whose zeros have meanings.
var variants = []Entry{
	extended,
	{Family: unix.AF_INET, Orig: cases[0].entry.Orig, Reply: cases[0].entry.Reply, Fields: NoTimeout | NoState | NoMark, Status: Offload},
	{Family: unix.AF_INET, Orig: cases[0].entry.Orig, Reply: cases[0].entry.Reply, Timeout: 1, Zone: 5, ReplyZone: 5},
	{Family: unix.AF_INET, Orig: cases[0].entry.Orig, Reply: cases[0].entry.Reply, Timeout: 1, Zone: 5, ReplyZone: 6},
	{Family: unix.AF_INET, Orig: dccp(cases[0].entry.Orig), Reply: dccp(cases[0].entry.Reply), DCCPState: 4, Fields: HasCounters},
	{Family: unix.AF_INET, Orig: dccp(cases[0].entry.Orig), Reply: dccp(cases[0].entry.Reply)},
}

func dccp(t Tuple) Tuple {
	t.Proto = unix.IPPROTO_DCCP
	return t
}

func TestEncodedEntriesComeBack(t *testing.T) {
	for i, want := range variants {
		m, _, err := netlink.Next(Append(nil, New, 0, 1, &want))
		var got Entry
		if err == nil {
			err = got.Decode(m.Body)
		}
		if err != nil || !got.Equal(&want) {
			t.Errorf("variant %d: %v (-want +got):\n%s", i, err, cmp.Diff(want, got, compareAddr))
		}
		kept := got.Clone()
		clear(m.Body) // what the entry points to is used again
		if !kept.Equal(&want) || i == 0 && got.Equal(&want) {
			t.Errorf("variant %d: the copy is not one, or the entry is: %+v", i, kept)
		}
	}
}

func TestEqualSeesEveryField(t *testing.T) {
	for i := range reflect.TypeFor[Entry]().NumField() {
		e := extended.Clone()
		e.TCPState, e.DCCPState, e.DeltaTime = 1, 1, 1
		o := e.Clone()
		if !e.Equal(&o) {
			t.Fatal("a copy is not equal")
		}
		f := reflect.ValueOf(&o).Elem().Field(i)
		f.SetZero()
		if !reflect.ValueOf(e).Field(i).IsZero() && e.Equal(&o) {
			t.Errorf("without %s it is equal", reflect.TypeFor[Entry]().Field(i).Name)
		}
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func needLittleEndian(t testing.TB) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		testutil.Impossible(t, "the recorded messages are those of a little-endian machine")
	}
}

func TestDecode(t *testing.T) {
	needLittleEndian(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			attrs := unhex(t, c.attrs)
			body := append([]byte{c.entry.Family, 0, 0, 0}, attrs...)
			var got Entry
			if err := got.Decode(body); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.entry, got, compareAddr); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			again := got
			back := Append(nil, New, 0, 1, &again)
			if err := got.Decode(back[unix.SizeofNlMsghdr:]); err != nil {
				t.Fatalf("decode what was encoded: %v", err)
			}
			if d := cmp.Diff(c.entry, got, compareAddr); d != "" {
				t.Errorf("after encoding (-want +got):\n%s", d)
			}
			for n := range body {
				// Any cut must give an error or an entry, never a panic.
				var cut Entry
				_ = cut.Decode(body[:n:n])
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	needLittleEndian(t)
	tests := map[string]struct {
		body string
		want error
	}{
		"nothing":                           {"", netlink.ErrTruncated},
		"half a header":                     {"0200", netlink.ErrTruncated},
		"no tuples":                         {"02000000" + "0800030000000008", errNoTuple},
		"attribute shorter than its header": {"02000000" + "0300030000000000", netlink.ErrTruncated},
		"attribute longer than the message": {"02000000" + "0900030000000008", netlink.ErrTruncated},
		"status of two bytes":               {"02000000" + "0600030000080000", netlink.ErrTruncated},
		"three bytes behind":                {"02000000" + "0800030000000008" + "000000", netlink.ErrTruncated},
		"tuple with half an address":        {"02000000" + "1000018" + "0" + "0c000180" + "06000100c6120000", netlink.ErrTruncated},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var e Entry
			if err := e.Decode(unhex(t, c.body)); !errors.Is(err, c.want) {
				t.Errorf("Decode = %v, want %v", err, c.want)
			}
		})
	}
	t.Run("addresses of two families", func(t *testing.T) {
		e := Entry{Family: unix.AF_INET, Orig: Tuple{Src: addr("198.18.0.1"), Dst: addr("2001:db8::1")}}
		if err := e.Check(); err == nil {
			t.Error("Check accepted it")
		}
	})
}

func TestNextRefuses(t *testing.T) {
	good := netlink.End(AppendHeader(nil, New, 0, 1, unix.AF_INET), 0)
	for n := range len(good) - 1 {
		if _, _, err := netlink.Next(good[:n]); err == nil {
			t.Errorf("%d bytes of a message of %d were accepted", n, len(good))
		}
	}
	short := append([]byte(nil), good...)
	binary.NativeEndian.PutUint32(short, 15)
	if _, _, err := netlink.Next(short); err == nil {
		t.Error("a length below the header's was accepted")
	}
	two := append(append([]byte(nil), good...), good...)
	m, rest, err := netlink.Next(two)
	if err != nil || m.Type != New || len(rest) != len(good) {
		t.Errorf("Next = %+v, %d left, %v", m, len(rest), err)
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	needLittleEndian(t)
	datagram := append(manyEntries(50), kernelEntries(t, 49, countersAndTimes)...)
	datagram = Append(datagram, New, 0, 1, &extended)
	var e Entry
	add := func(*Entry) error { return nil }
	_ = Each(datagram, &e, add)
	if n := testing.AllocsPerRun(20, func() {
		if err := Each(datagram, &e, add); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for 100 entries", n)
	}
}

func manyEntries(n int) []byte {
	var b []byte
	for i := range n {
		e := cases[0].entry
		e.Orig.SrcPort = uint16(i)
		b = Append(b, New, unix.NLM_F_MULTI, 1, &e)
	}
	return b
}

func FuzzDecode(f *testing.F) {
	for _, c := range cases {
		f.Add(Append(nil, New, 0, 1, &c.entry))
		f.Add(AppendInsert(nil, 0, 1, &c.entry))
	}
	for i := range variants {
		f.Add(Append(nil, New, 0, 1, &variants[i]))
		f.Add(AppendInsert(nil, 0, 1, &variants[i]))
	}
	f.Add(manyEntries(3))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		defer testutil.Bounded(t, len(datagram))()
		var e, again Entry
		_ = Each(datagram, &e, func(e *Entry) error {
			back := Append(nil, New, 0, 1, e)
			m, rest, err := netlink.Next(back)
			if err != nil || len(rest) != 0 {
				t.Fatalf("encoded %+v is no message: %v, %d bytes behind", e, err, len(rest))
			}
			if err := again.Decode(m.Body); err != nil {
				t.Fatalf("decode what was encoded of %+v: %v", e, err)
			}
			if !again.Equal(e) {
				t.Fatalf("decode–encode–decode:\n%+v\n%+v", *e, again)
			}
			AppendInsert(nil, 0, 1, e)
			return nil
		})
		for b := datagram; len(b) > 0; {
			m, rest, err := netlink.Next(b)
			if err != nil {
				return
			}
			_, _ = StatsCPU(m.Body)
			_, _ = m.Answer()
			b = rest
		}
	})
}

// kernelEntries are n messages as the kernel writes them of a TCP connection;
// more has the attributes of counters and times.
func kernelEntries(tb testing.TB, n int, more string) (b []byte) {
	attrs := unhex(tb, cases[0].attrs+more)
	for range n {
		start := len(b)
		b = append(AppendHeader(b, New, unix.NLM_F_MULTI, 1, unix.AF_INET), attrs...)
		b = netlink.End(b, start)
	}
	return b
}

// countersAndTimes are CTA_COUNTERS_ORIG, CTA_COUNTERS_REPLY and CTA_TIMESTAMP.
const countersAndTimes = "1c000980" + "0c000100000000000000000c" + "0c0002000000000000000d80" +
	"1c000a80" + "0c000100000000000000000a" + "0c0002000000000000000c00" +
	"10001480" + "0c000100" + "17a0000000000001"

func BenchmarkDecode(b *testing.B) {
	needLittleEndian(b)
	const n = 50
	for _, c := range []struct {
		name     string
		datagram []byte
	}{{"plain", kernelEntries(b, n, "")}, {"counters", kernelEntries(b, n, countersAndTimes)}} {
		b.Run(c.name, func(b *testing.B) {
			var e Entry
			b.ReportAllocs()
			for b.Loop() {
				if err := Each(c.datagram, &e, func(*Entry) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
		})
	}
}

// FuzzTuple compares the short way with the general one.
func FuzzTuple(f *testing.F) {
	for _, c := range append([]Entry{cases[0].entry, cases[1].entry, cases[2].entry}, variants...) {
		f.Add(appendTuple(nil, ctaTupleOrig, &c.Orig, 0)[unix.SizeofNlAttr:])
		f.Add(appendTuple(nil, ctaTupleReply, &c.Reply, 7)[unix.SizeofNlAttr:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		defer testutil.Bounded(t, len(b))()
		var short, general Tuple
		var zone uint16
		if short.decodePlain(b) {
			if err := general.decodeAttrs(b, &zone); err != nil || general != short || zone != 0 {
				t.Fatalf("%x: %+v; attribute by attribute %+v, zone %d, %v", b, short, general, zone, err)
			}
		}
	})
}

func TestNames(t *testing.T) {
	for proto, want := range map[uint8]string{6: "tcp", 17: "udp", 47: "gre", 132: "sctp", 136: "udplite", 58: "icmpv6", 200: "200"} {
		if got := nat.ProtocolName(proto); got != want {
			t.Errorf("ProtocolName(%d) = %q, want %q", proto, got, want)
		}
	}
	if got := TCPState(99).String(); got != "UNKNOWN" {
		t.Errorf("state 99 = %q", got)
	}
}

func TestMirrorTwiceIsItself(t *testing.T) {
	for _, c := range cases {
		if got := c.entry.Orig.Mirror().Mirror(); got != c.entry.Orig {
			t.Errorf("%+v became %+v", c.entry.Orig, got)
		}
	}
	for typ := range 256 {
		for _, proto := range []uint8{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
			tu := Tuple{Proto: proto, ICMPType: uint8(typ)}
			if got := tu.Mirror().Mirror(); got != tu {
				t.Errorf("protocol %d type %d became %d", proto, typ, got.ICMPType)
			}
		}
	}
}
