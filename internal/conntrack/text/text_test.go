package text

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/unix"
)

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

const (
	start = 1763789929 * uint64(time.Second)
	now   = 1763789990
)

// cases pair an entry with its line in the tool's widest format.
var cases = []struct {
	name, line string
	entry      conntrack.Entry
}{
	{
		"DNATed TCP with everything",
		"ipv4     2 tcp      6 431999 ESTABLISHED src=198.18.0.1 dst=198.19.0.1 sport=1024 dport=8080 packets=12 bytes=3456 src=198.19.1.2 dst=198.18.0.1 sport=80 dport=1024 packets=10 bytes=18446744073709551615 [ASSURED] mark=1851880555 secctx=system_u:object_r:unlabeled_t:s0 zone=7 delta-time=61 [start=Sat Nov 22 05:38:49 2025] helper=ftp use=2 id=2960990108 labels=web,eu",
		conntrack.Entry{
			Family: unix.AF_INET,
			Orig:   conntrack.Tuple{Src: addr("198.18.0.1"), Dst: addr("198.19.0.1"), Proto: 6, SrcPort: 1024, DstPort: 8080},
			Reply:  conntrack.Tuple{Src: addr("198.19.1.2"), Dst: addr("198.18.0.1"), Proto: 6, SrcPort: 80, DstPort: 1024},
			Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed | conntrack.DstNAT, TCPState: conntrack.TCPEstablished,
			Fields: conntrack.HasCounters, Timeout: 431999, Mark: 1851880555, Zone: 7, ReplyZone: 7, Use: 2, ID: 2960990108, Start: start,
			Sent: conntrack.Counters{Packets: 12, Bytes: 3456}, Received: conntrack.Counters{Packets: 10, Bytes: 1<<64 - 1},
			SecCtx: []byte("system_u:object_r:unlabeled_t:s0"), Helper: []byte("ftp"), Labels: []byte{0x22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		},
	},
	{
		"unanswered UDP over IPv6 in a zone of its original direction",
		"ipv6     10 udp      17 29 src=2001:db8::1 dst=2001:db8::2 sport=7 dport=53 zone-orig=5 [UNREPLIED] src=2001:db8::2 dst=2001:db8::1 sport=53 dport=7 mark=0 use=1",
		conntrack.Entry{
			Family: unix.AF_INET6,
			Orig:   conntrack.Tuple{Src: addr("2001:db8::1"), Dst: addr("2001:db8::2"), Proto: 17, SrcPort: 7, DstPort: 53},
			Reply:  conntrack.Tuple{Src: addr("2001:db8::2"), Dst: addr("2001:db8::1"), Proto: 17, SrcPort: 53, DstPort: 7},
			Status: conntrack.Confirmed, Timeout: 29, Zone: 5, Use: 1,
		},
	},
	{
		"ICMP with an ID, SNATed, in a zone of the reply",
		"ipv4     2 icmp     1 29 src=198.18.0.1 dst=198.18.0.2 type=8 code=0 id=7 src=198.18.0.2 dst=203.0.113.9 type=0 code=0 id=65535 zone-reply=65535 mark=0 use=1 id=7",
		conntrack.Entry{
			Family: unix.AF_INET,
			Orig:   conntrack.Tuple{Src: addr("198.18.0.1"), Dst: addr("198.18.0.2"), Proto: 1, ICMPID: 7, ICMPType: 8},
			Reply:  conntrack.Tuple{Src: addr("198.18.0.2"), Dst: addr("203.0.113.9"), Proto: 1, ICMPID: 65535},
			Status: conntrack.Confirmed | conntrack.SeenReply | conntrack.SrcNAT, Timeout: 29, ReplyZone: 65535, Use: 1, ID: 7,
		},
	},
	{
		"SCTP that is offloaded",
		"ipv6     10 sctp     132 src=::1.2.3.4 dst=::1 sport=2905 dport=1 src=::1 dst=::1.2.3.4 sport=1 dport=2905 [OFFLOAD] mark=0 use=3",
		conntrack.Entry{
			Family: unix.AF_INET6,
			Orig:   conntrack.Tuple{Src: addr("::1.2.3.4"), Dst: addr("::1"), Proto: 132, SrcPort: 2905, DstPort: 1},
			Reply:  conntrack.Tuple{Src: addr("::1"), Dst: addr("::1.2.3.4"), Proto: 132, SrcPort: 1, DstPort: 2905},
			Status: conntrack.Confirmed | conntrack.SeenReply | conntrack.Offload, Fields: conntrack.NoState | conntrack.NoTimeout, Use: 3,
		},
	},
	{
		"SCTP with a state, offloaded by the device",
		"ipv4     2 sctp     132 9 SHUTDOWN_ACK_SENT src=198.18.0.1 dst=198.18.0.2 sport=2905 dport=1 src=198.18.0.2 dst=198.18.0.1 sport=1 dport=2905 [HW_OFFLOAD] mark=0 use=3",
		conntrack.Entry{
			Family: unix.AF_INET, SCTPState: 7, Timeout: 9,
			Orig:   conntrack.Tuple{Src: addr("198.18.0.1"), Dst: addr("198.18.0.2"), Proto: 132, SrcPort: 2905, DstPort: 1},
			Reply:  conntrack.Tuple{Src: addr("198.18.0.2"), Dst: addr("198.18.0.1"), Proto: 132, SrcPort: 1, DstPort: 2905},
			Status: conntrack.Confirmed | conntrack.SeenReply | conntrack.Offload | conntrack.HWOffload, Use: 3,
		},
	},
	{
		"GRE",
		"ipv4     2 gre      47 179 src=198.18.0.1 dst=198.18.0.2 srckey=0x1f dstkey=0xffff src=198.18.0.2 dst=198.18.0.1 srckey=0xffff dstkey=0x1f [ASSURED] mark=0 use=1",
		conntrack.Entry{
			Family: unix.AF_INET, Timeout: 179, Use: 1,
			Orig:   conntrack.Tuple{Src: addr("198.18.0.1"), Dst: addr("198.18.0.2"), Proto: 47, SrcPort: 31, DstPort: 65535},
			Reply:  conntrack.Tuple{Src: addr("198.18.0.2"), Dst: addr("198.18.0.1"), Proto: 47, SrcPort: 65535, DstPort: 31},
			Status: conntrack.Confirmed | conntrack.SeenReply | conntrack.Assured,
		},
	},
	{
		"a protocol without a name, no mark, ended",
		"ipv4     2 unknown  253 0 src=198.18.0.1 dst=198.18.0.2 src=198.18.0.2 dst=198.18.0.1 delta-time=2 [start=Sat Nov 22 05:38:49 2025] [stop=Sat Nov 22 05:38:51 2025]",
		conntrack.Entry{
			Family: unix.AF_INET,
			Orig:   conntrack.Tuple{Src: addr("198.18.0.1"), Dst: addr("198.18.0.2"), Proto: 253},
			Reply:  conntrack.Tuple{Src: addr("198.18.0.2"), Dst: addr("198.18.0.1"), Proto: 253},
			Status: conntrack.Confirmed | conntrack.SeenReply, Fields: conntrack.NoMark,
			Start: start, Stop: start + 2*uint64(time.Second),
		},
	},
}

func widest() Options {
	return Options{Extended: true, ID: true, Timestamps: true, Labels: &Labels{1: "web", 5: "eu"}, Now: now}
}

func TestAppend(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.line, string(Append(nil, &c.entry, widest()))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	e := cases[0].entry
	const plain = "tcp      6 431999 ESTABLISHED src=198.18.0.1 dst=198.19.0.1 sport=1024 dport=8080 packets=12 bytes=3456 src=198.19.1.2 dst=198.18.0.1 sport=80 dport=1024 packets=10 bytes=18446744073709551615 [ASSURED] mark=1851880555 secctx=system_u:object_r:unlabeled_t:s0 zone=7 delta-time=61 helper=ftp use=2"
	if got := string(Append(nil, &e, Options{Now: now})); got != plain {
		t.Errorf("plain:\n%s\nwant\n%s", got, plain)
	}
	e.Labels = []byte{1}
	if got := string(Append(nil, &e, Options{Labels: &Labels{}, Now: now})); got != plain+" labels" {
		t.Errorf("label without a name: %s", got)
	}
}

// TestAge: the age of an entry is that of the list it was in, whenever the list is written again.
func TestAge(t *testing.T) {
	e := conntrack.Entry{Start: 100e9}
	if got := string(Append(nil, &e, Options{})); strings.Contains(got, "delta-time") {
		t.Errorf("without a time of the list: %s", got)
	}
	SetAge(&e, 107)
	for _, got := range []string{string(Append(nil, &e, Options{})), string(Append(nil, &e, Options{Now: 900}))} {
		if !strings.Contains(got, "delta-time=7 ") && !strings.HasSuffix(got, "delta-time=7") {
			t.Errorf("listed 7 s after its beginning: %s", got)
		}
	}
	if SetAge(&e, 99); e.DeltaTime != 0 {
		t.Errorf("began after the list: %d", e.DeltaTime)
	}
	var none conntrack.Entry
	if SetAge(&none, 107); none.Fields.Has(conntrack.HasDeltaTime) {
		t.Error("an entry without a beginning has an age")
	}
}

// asRead is e as it comes back from its line in the tool's widest format.
func asRead(e conntrack.Entry) conntrack.Entry {
	e.Labels = nil // a text has names
	if e.Start != 0 {
		e.Fields |= conntrack.HasDeltaTime
		e.DeltaTime = uint64(deltaTime(&e, now))
	}
	return e
}

// readAll reads a text of which every line is to be an entry.
func readAll(t testing.TB, text string) []conntrack.Entry {
	t.Helper()
	all, stats, err := read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if stats.Garbled != 0 || stats.Unknown != 0 {
		t.Fatalf("%+v\n%s", stats, text)
	}
	return all
}

func read(r io.Reader) ([]conntrack.Entry, Stats, error) {
	var all []conntrack.Entry
	stats, err := Each(r, func(e *conntrack.Entry) error {
		all = append(all, e.Clone())
		return nil
	})
	return all, stats, err
}

func TestEachReadsWhatAppendWrites(t *testing.T) {
	var text, want = "", []conntrack.Entry(nil)
	for _, c := range cases {
		text += c.line + "\n"
		want = append(want, asRead(c.entry))
	}
	if d := cmp.Diff(want, readAll(t, text), compareAddr); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
	want = nil
	json, csv := "", string(AppendCSVHeader(nil))+"\n"
	for _, c := range cases {
		json += string(AppendJSON(nil, &c.entry)) + "\n"
		csv += string(AppendCSV(nil, &c.entry)) + "\n"
		want = append(want, c.entry)
	}
	if d := cmp.Diff(want, readAll(t, json), compareAddr); d != "" {
		t.Errorf("JSON (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want, readAll(t, csv), compareAddr); d != "" {
		t.Errorf("CSV (-want +got):\n%s", d)
	}
}

// TestFormsOfRecord holds the names and their order, on which others' programs
// rely.
func TestFormsOfRecord(t *testing.T) {
	const json = `{"family":"ipv4","proto":"tcp","timeout_seconds":431999,"state":"ESTABLISHED","status":"SEEN_REPLY|ASSURED|CONFIRMED|DST_NAT","orig_src":"198.18.0.1","orig_dst":"198.19.0.1","orig_sport":1024,"orig_dport":8080,"orig_packets":12,"orig_bytes":3456,"orig_zone":7,"reply_src":"198.19.1.2","reply_dst":"198.18.0.1","reply_sport":80,"reply_dport":1024,"reply_packets":10,"reply_bytes":18446744073709551615,"reply_zone":7,"mark":1851880555,"use":2,"id":2960990108,"start_unix_nanoseconds":1763789929000000000,"secctx":"system_u:object_r:unlabeled_t:s0","helper":"ftp","labels":"1 5"}`
	if d := cmp.Diff(json, string(AppendJSON(nil, &cases[0].entry))); d != "" {
		t.Errorf("JSON (-want +got):\n%s", d)
	}
	const header = "family,proto,timeout_seconds,state,status,orig_src,orig_dst,orig_sport,orig_dport,orig_icmp_type,orig_icmp_code,orig_icmp_id,orig_packets,orig_bytes,orig_zone,reply_src,reply_dst,reply_sport,reply_dport,reply_icmp_type,reply_icmp_code,reply_icmp_id,reply_packets,reply_bytes,reply_zone,mark,use,id,start_unix_nanoseconds,stop_unix_nanoseconds,delta_time_seconds,secctx,helper,labels"
	if d := cmp.Diff(header, string(AppendCSVHeader(nil))); d != "" {
		t.Errorf("CSV header (-want +got):\n%s", d)
	}
	const row = "ipv4,icmp,29,,SEEN_REPLY|CONFIRMED|SRC_NAT,198.18.0.1,198.18.0.2,,,8,0,7,,,,198.18.0.2,203.0.113.9,,,0,0,65535,,,65535,0,1,7,,,,,,"
	if d := cmp.Diff(row, string(AppendCSV(nil, &cases[2].entry))); d != "" {
		t.Errorf("CSV (-want +got):\n%s", d)
	}
	e := cases[0].entry
	e.SecCtx, e.Status = []byte("a,b\"\x1b[1m\\"), 1<<31|conntrack.Assured
	if got := string(AppendCSV(nil, &e)); !strings.Contains(got, `,"a,b??[1m?",`) || !strings.Contains(got, "ASSURED|0x80000000") {
		t.Errorf("CSV with a comma: %s", got)
	}
}

// others are lines of other tools and times, with the line in which natkit would
// write what they say.
var others = []struct{ name, line, same string }{
	{"/proc/net/nf_conntrack", "ipv4     2 tcp      6 117 TIME_WAIT src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 [ASSURED] mark=0 zone=0 use=2",
		"tcp      6 117 TIME_WAIT src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 [ASSURED] mark=0 use=2"},
	{"/proc/net/nf_conntrack with a security context", "ipv6     10 udp      17 29 src=2001:0db8:0000:0000:0000:0000:0000:0001 dst=2001:0db8:0000:0000:0000:0000:0000:0002 sport=1 dport=2 [UNREPLIED] src=2001:0db8:0000:0000:0000:0000:0000:0002 dst=2001:0db8:0000:0000:0000:0000:0000:0001 sport=2 dport=1 mark=0 secctx=s zone=0 use=2",
		"udp      17 29 src=2001:db8::1 dst=2001:db8::2 sport=1 dport=2 [UNREPLIED] src=2001:db8::2 dst=2001:db8::1 sport=2 dport=1 mark=0 secctx=s use=2"},
	{"/proc/net/ip_conntrack of 2.6", "tcp      6 431999 ESTABLISHED src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 packets=3 bytes=4 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 packets=5 bytes=6 [ASSURED] mark=0 secmark=0 use=1",
		"tcp      6 431999 ESTABLISHED src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 packets=3 bytes=4 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 packets=5 bytes=6 [ASSURED] mark=0 use=1"},
	{"/proc/net/ip_conntrack of 2.4", "udp      17 9 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 [UNREPLIED] src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 use=1",
		"udp      17 9 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 [UNREPLIED] src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 use=1"},
	{"an offloaded entry of OpenWrt", "ipv4     2 tcp      6 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 packets=3 bytes=123 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 packets=4 bytes=567 [HW_OFFLOAD] mark=0 zone=0 use=3",
		"tcp      6 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 packets=3 bytes=123 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 packets=4 bytes=567 [HW_OFFLOAD] mark=0 use=3"},
	{"GRE in /proc", "ipv4     2 gre      47 29 timeout=30, stream_timeout=180 src=198.18.0.1 dst=198.18.0.2 srckey=0x0 dstkey=0x1f src=198.18.0.2 dst=198.18.0.1 srckey=0x1f dstkey=0x0 mark=0 use=2",
		"gre      47 29 src=198.18.0.1 dst=198.18.0.2 srckey=0x0 dstkey=0x1f src=198.18.0.2 dst=198.18.0.1 srckey=0x1f dstkey=0x0 mark=0 use=2"},
	{"a state that was once LISTEN, blanks around", "  tcp      6 1 LISTEN src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 use=1 \t",
		"tcp      6 1 SYN_SENT2 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 use=1"},
	{"an ID that is like ICMP's", "udp      17 9 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 use=1 id=4294967295 labels=a,b",
		"udp      17 9 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 use=1 id=4294967295"},
	{"delta-time alone", "udp      17 9 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 mark=0 delta-time=0 use=1",
		"udp      17 9 src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 mark=0 delta-time=0 use=1"},
}

func TestEachReadsOtherForms(t *testing.T) {
	for _, c := range others {
		t.Run(c.name, func(t *testing.T) {
			for _, end := range []string{"", "\n", "\r\n"} {
				all := readAll(t, c.line+end)
				if len(all) != 1 {
					t.Fatalf("%d entries", len(all))
				}
				if d := cmp.Diff(c.same, string(Append(nil, &all[0], Options{ID: true}))); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			}
		})
	}
}

const good = "tcp      6 117 TIME_WAIT src=198.18.0.1 dst=198.18.0.2 sport=1 dport=2 src=198.18.0.2 dst=198.18.0.1 sport=2 dport=1 [ASSURED] mark=0 use=1\n"

// garbledLines are no entries, each with a part of the reported cause.
var garbledLines = []struct{ line, why string }{
	{"hello, world", whyOther},
	{"tcp", whyOther},
	{"12 34 56", whyOther},
	{"tcp 256 1 src=198.18.0.1", whyOther},
	{"ipv4 2 tcp", whyOther},
	{"tcp 6 4294967296 NONE", "timeout"},
	{"tcp 6 1 NONE", noTuple},
	{"tcp 6 1", noTuple},
	{good[:70], noReply},
	{good[:strings.LastIndex(good, " dst")], noReply},
	{good[:strings.LastIndex(good, " sport")], noPorts},
	{good[:strings.LastIndex(good, " dport")], noPorts},
	{strings.Replace(good, "198.18.0.1", "198.18.0.256", 1), "src has a value"},
	{strings.Replace(good, "198.18.0.1", "198.18.0.01", 1), "src has a value"},
	{strings.Replace(good, "dst=198.18.0.2", "dst=2001:db8::1%eth0", 1), "dst has a value"},
	{strings.Replace(good, "dst=198.18.0.2", "dst=2001:db8::1", 1), mixed},
	{strings.Replace(good, "dst=198.18.0.2", "dst=198.18.0.2 dst=198.18.0.2", 1), "dst has a value"},
	{strings.Replace(good, "sport=1", "sport=65536", 1), "sport"},
	{strings.Replace(good, "sport=1", "sport=", 1), "sport"},
	{strings.Replace(good, "src=", "sport=1 src=", 1), "before the addresses"},
	{strings.Replace(good, "dport=2", "dport=-1", 1), "dport"},
	{strings.Replace(good, "use=1", "use=1x", 1), "use"},
	{strings.Replace(good, "use=1", "packets=18446744073709551616", 1), "packets"},
	{strings.Replace(good, "use=1", "src=198.18.0.1", 1), "more than two"},
	{strings.Replace(good, "use=1", "[start=soon]", 1), "start"},
	{strings.Replace(good, "use=1", "[start=Sat Nov 22 05:38:49 1925]", 1), "start"},
	{strings.Replace(good, "use=1", "zone=65536", 1), "zone"},
	{"    [NEW] " + good, whyEvent},
	{"[1763789929.123456]\t    [NEW] " + good, whyEvent},
	{"<conntrack>", "XML"},
	{"-A -s 198.18.0.1 -d 198.18.0.2 -p tcp", "save"},
	{"300 proto=6 src=198.18.0.1 dst=198.18.0.2 sport=0 dport=45678 mask-src=255.255.255.255 mask-dst=255.255.255.255 sport=0 dport=65535", "expectation"},
	{`{"family":"ipv4"`, whyJSON},
	{`[`, whyArray},
	{`{"family":"ipv9"}`, "family has a value"},
	{`{"orig_src":"198.18.0.1","orig":{"dst":1}}`, whyJSON},
	{`{"orig_src":"198.18.0.1"} x`, whyJSON},
	{`{"mark":"4294967296"}`, "mark has a value"},
	{`{"status":"ASSURED|HAPPY"}`, "status has a value"},
	{`{"labels":"128"}`, "labels has a value"},
	{`{}`, noTuple},
	{strings.Repeat("x", maxLine+1), "longer than"},
	{strings.Repeat("x", 3*bufferSize), "longer than"},
}

func TestEachPassesOverGarbledLines(t *testing.T) {
	for _, c := range garbledLines {
		all, stats, err := read(strings.NewReader(good + strings.TrimSuffix(c.line, "\n") + "\n" + good))
		if err != nil || len(all) != 2 || stats.Lines != 3 || stats.Entries != 2 || stats.Garbled != 1 {
			t.Errorf("%.80q: %d entries, %+v, %v", c.line, len(all), stats, err)
			continue
		}
		if g := stats.First[0]; g.Line != 2 || !strings.Contains(g.Why, c.why) || len(g.Text) > 2*keptText {
			t.Errorf("%.80q: got %+v, want %q", c.line, g, c.why)
		}
	}
}

func TestEachRemembersFew(t *testing.T) {
	_, stats, err := read(strings.NewReader(good + strings.Repeat("\x1b[31mrubbish\n", 1000) + good))
	if err != nil || stats.Garbled != 1000 || len(stats.First) != kept || stats.First[4].Line != 6 {
		t.Errorf("%+v, %v", stats, err)
	}
	if text := stats.First[0].Text; text != `\x1b[31mrubbish` {
		t.Errorf("the text is %q, and would reach a terminal", text)
	}
}

func TestEachCountsWhatItDoesNotKnow(t *testing.T) {
	lines := []string{
		strings.Replace(good, "TIME_WAIT", "TIME_TRAVEL", 1),
		strings.Replace(good, "use=1", "use=1 colour=red [SHINY] more", 1),
		`{"colour":"red","proto":"udp","orig_src":"198.18.0.1","orig_dst":"198.18.0.2","reply_src":"198.18.0.2","reply_dst":"198.18.0.1","state":null,"mark":null}`,
		"colour,proto,orig_src,orig_dst,reply_src,reply_dst,state",
		"red,tcp,198.18.0.1,198.18.0.2,198.18.0.2,198.18.0.1,NAPPING",
	}
	all, stats, err := read(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil || len(all) != 4 || stats.Garbled != 0 || stats.Unknown != 7 || len(stats.FirstUnknown) != kept {
		t.Fatalf("%d entries, %+v, %v", len(all), stats, err)
	}
	if got := all[0].TCPState.String(); got != "UNKNOWN" {
		t.Errorf("unknown state became %s", got)
	}
	if all[2].Fields != conntrack.NoTimeout|conntrack.NoMark || all[2].Orig.Proto != 17 {
		t.Errorf("JSON became %+v", all[2])
	}
}

func TestEachIsSilentAboutTheTool(t *testing.T) {
	const total = "conntrack v1.4.7 (conntrack-tools): 2 flow entries have been shown.\n"
	for _, text := range []string{good + total + good, total + good + "\n" + good, good + good + total} {
		all, stats, err := read(strings.NewReader(text))
		if err != nil || len(all) != 2 || stats.Garbled != 0 || stats.Unknown != 0 {
			t.Errorf("%q: %+v, %v", text, stats, err)
		}
	}
	if _, stats, err := read(strings.NewReader(total)); err != nil || stats.Entries != 0 {
		t.Errorf("an empty table: %+v, %v", stats, err)
	}
}

func TestEachRefuses(t *testing.T) {
	rubbish := make([]byte, 1<<20)
	for i, rng := 0, rand.New(rand.NewPCG(1, 2)); i < len(rubbish); i++ {
		rubbish[i] = byte(rng.Uint32())
	}
	for _, c := range []struct {
		name, text string
		cause      error
		say        string
	}{
		{"nothing", "", ErrEmpty, "it is empty"},
		{"binary rubbish", string(rubbish), ErrNoList, "binary"},
		{"XML", "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<conntrack>\n<flow></flow></conntrack>\n", ErrNoList, "without xml"},
		{"another text", "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1\n", ErrNoList, "none of its 2 lines"},
		{"half a gzip", string(gzipped(good)[:20]), io.ErrUnexpectedEOF, "read connections"},
		{"a gzip of nothing", string(gzipped("")), ErrEmpty, ""},
		{"no more than a magic", "\x1f\x8b", io.ErrUnexpectedEOF, "gzipped"},
	} {
		_, _, err := read(strings.NewReader(c.text))
		if !errors.Is(err, c.cause) || !strings.Contains(err.Error(), c.say) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 500 {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func gzipped(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.Bytes()
}

func TestEachReadsGzipAndBrokenReaders(t *testing.T) {
	text := strings.Repeat(good, 3000) // more than the buffer
	for name, r := range map[string]io.Reader{
		"gzip":                   bytes.NewReader(gzipped(text)),
		"two gzips":              bytes.NewReader(append(gzipped(good), gzipped(text[len(good):])...)),
		"byte for byte":          iotest.OneByteReader(strings.NewReader(text)),
		"a mark in a gzip":       bytes.NewReader(gzipped("\ufeff" + text)),
		"a mark of byte order":   strings.NewReader("\ufeff" + text),
		"data together with EOF": iotest.DataErrReader(strings.NewReader(text)),
	} {
		all, stats, err := read(r)
		if err != nil || len(all) != 3000 || stats.Lines != 3000 {
			t.Errorf("%s: %+v, %v", name, stats, err)
		}
	}
	broken := io.MultiReader(strings.NewReader(good+good), iotest.ErrReader(io.ErrClosedPipe))
	if all, _, err := read(broken); !errors.Is(err, io.ErrClosedPipe) || len(all) != 2 || !strings.Contains(err.Error(), "after line 2:") {
		t.Errorf("broken pipe: %d entries, %v", len(all), err)
	}
	cut := io.MultiReader(strings.NewReader(good+good[:strings.LastIndex(good, "dport=")+len("dport=")+1]), iotest.ErrReader(io.ErrUnexpectedEOF))
	if all, stats, err := read(cut); !errors.Is(err, io.ErrUnexpectedEOF) || len(all) != 1 || stats.Lines != 1 {
		t.Errorf("a line that is cut off: %d entries of %d lines, %v", len(all), stats.Lines, err)
	}
	if _, err := Each(strings.NewReader(text), func(*conntrack.Entry) error { return io.ErrShortWrite }); err != io.ErrShortWrite {
		t.Errorf("fn's error became %v", err)
	}
}

func TestReadLabels(t *testing.T) {
	l, err := ReadLabels(strings.NewReader("# names\n0 zero\n127\tlast # comment\n\n5\n"))
	if err != nil || l[0] != "zero" || l[127] != "last" || l[5] != "" {
		t.Errorf("%v, %v", l, err)
	}
	for _, bad := range []string{"128 x", "x 1", "-1 x"} {
		if _, err := ReadLabels(strings.NewReader("0 a\n" + bad)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAddressesAreReadAsByNetip(t *testing.T) {
	texts := []string{
		"0.0.0.0", "255.255.255.255", "1.2.3", "1.2.3.4.5", "1..2.3", "256.1.1.1", "01.2.3.4", "1.2.3.0004", "", ".", ":", "::", ":::", "1::", "::1", "1:2:3:4:5:6:7:8",
		"1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4::5:6:7:8", "::1.2.3.4", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4",
		"1:2:3:4:5:6:7:1.2.3.4", "1.2.3.4::", "12345::", "g::", "1:2", "fe80::1%eth0", "::1.2.3.256", "1:", ":1", "::1:", "1.2.3.4:80", "2001:DB8::A", "::0001", "::00001",
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		b := make([]byte, 1+rng.IntN(20))
		for i := range b {
			b[i] = "::..0123f%"[rng.IntN(10)]
		}
		texts = append(texts, string(b))
	}
	for _, text := range texts {
		want, err := netip.ParseAddr(text)
		var got netip.Addr
		if ok := address([]byte(text), &got); ok != (err == nil && want.Zone() == "") || ok && got != want {
			t.Errorf("%q: got %v, %v; netip says %v, %v", text, got, ok, want, err)
		}
	}
}
