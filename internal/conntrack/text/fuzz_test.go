package text

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

// FuzzEach reads anything without a panic; what it took for an entry comes back
// from each form that natkit writes.
func FuzzEach(f *testing.F) {
	for _, c := range cases {
		f.Add([]byte(c.line))
		f.Add(AppendJSON(nil, &c.entry))
		f.Add(AppendCSV(append(AppendCSVHeader(nil), '\n'), &c.entry))
	}
	for _, c := range others {
		f.Add([]byte(c.line + "\r\n" + good))
	}
	for _, c := range garbledLines {
		f.Add([]byte(c.line[:min(len(c.line), 300)]))
	}
	f.Add(gzipped(good))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testutil.Bounded(t, len(text))()
		stats, err := Each(bytes.NewReader(text), func(e *conntrack.Entry) error {
			c := e.Clone()
			checkForms(t, &c)
			return nil
		})
		if stats.Entries+stats.Garbled > stats.Lines || len(stats.First) > kept || len(stats.FirstUnknown) > kept {
			t.Fatalf("%+v, %v", stats, err)
		}
		if stats.Entries == 0 && stats.Garbled > 0 && err == nil {
			t.Fatalf("no entry and no error: %+v", stats)
		}
	})
}

// checkForms writes e and reads it again.
func checkForms(t *testing.T, e *conntrack.Entry) {
	t.Helper()
	if err := e.Check(); err != nil {
		t.Fatalf("an entry of no form: %v", err)
	}
	normalize(e)
	again := readAll(t, string(AppendJSON(nil, e)))
	if len(again) != 1 || !again[0].Equal(e) {
		t.Fatalf("by JSON:\n%+v\n%+v", *e, again)
	}
	again = readAll(t, string(AppendCSV(append(AppendCSVHeader(nil), '\n'), e)))
	if len(again) != 1 || !again[0].Equal(e) {
		t.Fatalf("by CSV:\n%+v\n%+v", *e, again)
	}
	textual(e)
	line := string(Append(nil, e, widest()))
	again = readAll(t, line)
	if len(again) != 1 || !again[0].Equal(e) {
		t.Fatalf("by text %s:\n%+v\n%+v", line, *e, again)
	}
	if line2 := string(Append(nil, &again[0], widest())); line2 != line {
		t.Fatalf("two lines:\n%s\n%s", line, line2)
	}
}

// normalize takes from e what no form of text has: what does not belong to its
// protocol, numbers of states without a name, letters that could harm.
func normalize(e *conntrack.Entry) {
	e.Family = unix.AF_INET6
	if e.Orig.Src.Is4() {
		e.Family = unix.AF_INET
	}
	e.Reply.Proto = e.Orig.Proto
	for _, t := range []*conntrack.Tuple{&e.Orig, &e.Reply} {
		if !hasKeys(e) {
			t.SrcPort, t.DstPort = 0, 0
		}
		if !isICMP(t.Proto) {
			t.ICMPID, t.ICMPType, t.ICMPCode = 0, 0, 0
		}
	}
	normalizeState(e)
	if e.Fields.Has(conntrack.NoTimeout) {
		e.Timeout = 0
	}
	if e.Fields.Has(conntrack.NoMark) {
		e.Mark = 0
	}
	if !e.Fields.Has(conntrack.HasDeltaTime) {
		e.DeltaTime = 0
	}
	if !e.Fields.Has(conntrack.HasCounters) {
		e.Sent, e.Received = conntrack.Counters{}, conntrack.Counters{}
	}
	e.Helper, e.SecCtx = harmless(e.Helper), harmless(e.SecCtx)
	if !hasLabels(e) {
		e.Labels = nil
	}
}

func normalizeState(e *conntrack.Entry) {
	name := e.StateName()
	if name == "" && e.Orig.Proto != unix.IPPROTO_TCP && e.Orig.Proto != unix.IPPROTO_SCTP && e.Orig.Proto != unix.IPPROTO_DCCP {
		e.Fields &^= conntrack.NoState
	}
	tcp, sctp, dccp := e.TCPState, e.SCTPState, e.DCCPState
	e.TCPState, e.SCTPState, e.DCCPState = 0, 0, 0
	if name == "" {
		return
	}
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		e.TCPState = known8(tcp, name)
	case unix.IPPROTO_SCTP:
		e.SCTPState = known8(sctp, name)
	case unix.IPPROTO_DCCP:
		e.DCCPState = known8(dccp, name)
	}
}

func known8[S ~uint8](s S, name string) S {
	if name == "UNKNOWN" {
		return 255
	}
	return s
}

func harmless(name []byte) []byte {
	return bytes.ReplaceAll(appendName(nil, name), []byte(" "), []byte("_"))
}

// textual takes from e what the tool's text does not have.
func textual(e *conntrack.Entry) {
	const billion = 1_000_000_000
	const latest = 4e9 // in seconds; later the tool's own arithmetic ends
	e.Start, e.Stop = e.Start/billion%latest*billion, e.Stop/billion%latest*billion
	if e.Start != 0 {
		e.Fields |= conntrack.HasDeltaTime
		e.DeltaTime = uint64(deltaTime(e, now))
	}
	e.Labels = nil
	status := conntrack.Confirmed | e.Status&conntrack.SeenReply
	switch {
	case e.Status.Has(conntrack.HWOffload):
		status |= conntrack.Offload | conntrack.HWOffload
	case e.Status.Has(conntrack.Offload):
		status |= conntrack.Offload
	default:
		status |= e.Status & conntrack.Assured
	}
	if e.IsSNAT() {
		status |= conntrack.SrcNAT
	}
	if e.IsDNAT() {
		status |= conntrack.DstNAT
	}
	e.Status = status
}

func TestGeneratedEntriesComeBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20000 {
		e := generate(rng)
		checkForms(t, &e)
	}
}

func generate(rng *rand.Rand) conntrack.Entry {
	protos := []uint8{6, 6, 17, 1, 58, 47, 132, 33, 136, uint8(rng.Uint32())}
	e := conntrack.Entry{
		Status: conntrack.Status(rng.Uint32()), Fields: conntrack.Fields(rng.UintN(32)), Timeout: rng.Uint32(),
		TCPState: conntrack.TCPState(rng.UintN(12)), SCTPState: uint8(rng.UintN(12)), DCCPState: uint8(rng.UintN(12)),
		Zone: uint16(rng.UintN(3)), ReplyZone: uint16(rng.UintN(3)), Mark: rng.Uint32(), Use: rng.Uint32N(3), ID: rng.Uint32() * rng.Uint32N(2),
		Start: rng.Uint64() >> 1 * rng.Uint64N(2), Stop: rng.Uint64() >> 1 * rng.Uint64N(2), DeltaTime: rng.Uint64() >> rng.UintN(64),
		Sent:     conntrack.Counters{Packets: rng.Uint64() >> rng.UintN(64), Bytes: rng.Uint64()},
		Received: conntrack.Counters{Packets: rng.Uint64() >> rng.UintN(64), Bytes: rng.Uint64()},
	}
	v6, proto := rng.IntN(2) == 0, protos[rng.IntN(len(protos))]
	e.Orig, e.Reply = generateTuple(rng, v6, proto), generateTuple(rng, v6, proto)
	for _, to := range []*[]byte{&e.Helper, &e.SecCtx} {
		if rng.IntN(3) == 0 {
			*to = []byte(strings.Repeat("a,b\n \"\x1b", 1+rng.IntN(9)))
		}
	}
	if rng.IntN(3) == 0 {
		e.Labels = make([]byte, 16)
		e.Labels[rng.IntN(16)] = byte(rng.Uint32())
	}
	return e
}

func generateTuple(rng *rand.Rand, v6 bool, proto uint8) conntrack.Tuple {
	addr := func() netip.Addr {
		var a [16]byte
		for range rng.IntN(17) {
			a[rng.IntN(16)] = byte(rng.Uint32())
		}
		if v6 {
			return netip.AddrFrom16(a)
		}
		return netip.AddrFrom4([4]byte(a[:]))
	}
	return conntrack.Tuple{
		Src: addr(), Dst: addr(), Proto: proto, SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32()),
		ICMPID: uint16(rng.Uint32()), ICMPType: uint8(rng.Uint32()), ICMPCode: uint8(rng.Uint32()),
	}
}

// FuzzReadLabels reads connlabel.conf.
func FuzzReadLabels(f *testing.F) {
	f.Add("0 zero # first\n127 last\n")
	f.Fuzz(func(t *testing.T, conf string) {
		defer testutil.Bounded(t, len(conf))()
		l, err := ReadLabels(strings.NewReader(conf))
		if (l == nil) == (err == nil) {
			t.Fatalf("%v, %v", l, err)
		}
	})
}
