package packets

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

func TestFlight(t *testing.T) {
	f := NewFlight(4)
	f.Sent(0, 10)
	f.Sent(2, 11) // 1 is sent later
	if before, sent := f.Answer(2); before != Flying || sent != 11 {
		t.Errorf("%v, %d", before, sent)
	}
	if before, _ := f.Answer(2); before != Answered {
		t.Errorf("answered twice: %v", before)
	}
	for _, k := range []int64{-1, 1, 3, 1 << 40} {
		if before, _ := f.Answer(k); before != Unknown {
			t.Errorf("datagram %d was not sent: %v", k, before)
		}
	}
	if lost := f.Expire(9); lost != 0 || f.Flying != 1 {
		t.Errorf("%d lost, %d flying", lost, f.Flying)
	}
	if lost := f.Expire(10); lost != 1 || f.Flying != 0 {
		t.Errorf("%d lost, %d flying", lost, f.Flying)
	}
	if before, sent := f.Answer(0); before != Settled || sent != 10 {
		t.Errorf("a late reply: %v, %d", before, sent)
	}
	if _, ok := f.Oldest(); ok {
		t.Error("one is still to be sent, yet there is an oldest")
	}
	f.Sent(1, 12)
	if sent, ok := f.Oldest(); !ok || sent != 12 {
		t.Errorf("%d, %v", sent, ok)
	}
	f.Skip(3)
	f.Settle(1)
	if lost := f.Expire(100); lost != 0 || f.Flying != 0 {
		t.Errorf("%d lost, %d flying", lost, f.Flying)
	}
}

// TestFlightWithoutRoom: the oldest ones give way, and count once.
func TestFlightWithoutRoom(t *testing.T) {
	f := NewFlight(4)
	lost := 0
	for k := range int64(10) {
		lost += f.Sent(k, k)
	}
	if lost != 6 || f.Flying != 4 {
		t.Errorf("%d lost, %d flying", lost, f.Flying)
	}
	if before, _ := f.Answer(5); before != Unknown {
		t.Errorf("datagram 5 is still known: %v", before)
	}
	if before, sent := f.Answer(6); before != Flying || sent != 6 {
		t.Errorf("%v, %d", before, sent)
	}
	if lost := f.Expire(100); lost != 3 || f.Flying != 0 {
		t.Errorf("%d lost, %d flying", lost, f.Flying)
	}
}

// TestFlightAgainstMap compares with a map that forgets nothing.
func TestFlightAgainstMap(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	f := NewFlight(1024)
	states := map[int64]State{}
	next, now, flying := int64(0), int64(0), 0
	lose := func(until int64) (lost int) {
		for k, s := range states {
			if s == Flying && k <= until { // sent at its number
				states[k] = Settled
				lost++
			}
		}
		flying -= lost
		return lost
	}
	for range 20_000 {
		now = next
		switch random.IntN(4) {
		case 0, 1:
			f.Sent(next, now)
			states[next] = Flying
			next++
			flying++
		case 2:
			k := next - 1 - int64(random.IntN(500))
			before, _ := f.Answer(k)
			if want := states[k]; before != want {
				t.Fatalf("datagram %d of %d: %v, want %v", k, next, before, want)
			}
			if before == Flying {
				flying--
			}
			if before != Unknown {
				states[k] = Answered
			}
		default:
			until := now - 400
			if got, want := f.Expire(until), lose(until); got != want {
				t.Fatalf("%d expired, want %d", got, want)
			}
		}
		if f.Flying != flying {
			t.Fatalf("%d flying, want %d", f.Flying, flying)
		}
	}
}

func BenchmarkFlight(b *testing.B) {
	b.ReportAllocs()
	f := NewFlight(1 << 16)
	for k := range int64(b.N) {
		f.Sent(k, k)
		f.Answer(k - 50)
		f.Expire(k - 100)
	}
}

func TestMakeReply(t *testing.T) {
	for _, tt := range []struct {
		name, payload, want string
	}{
		{"request", "\x01\x02\x03\x04flowsequrest", "\x01\x02\x03\x05flowsequrest"},
		{"token alone", "\x01\x02\x03\xfeflowsequ", "\x01\x02\x03\xffflowsequ"},
		{"reply", "\x01\x02\x03\x05flowsequrest", ""},
		{"too short", "\x01\x02\x03\x04flowseq", ""},
		{"empty", "", ""},
	} {
		got := []byte(tt.payload)
		ok := MakeReply(got)
		want := tt.want
		if want == "" { // left as it was
			want = tt.payload
		}
		if ok != (tt.want != "") || !bytes.Equal(got, []byte(want)) {
			t.Errorf("%s: %q, %v", tt.name, got, ok)
		}
		if MakeReply(got) {
			t.Errorf("%s: its reply would be answered", tt.name)
		}
	}
}

func TestRuns(t *testing.T) {
	for _, n := range []uint32{0, 1, 0xfffffffe, 0xffffffff} {
		run := RequestRun(n)
		payload := make([]byte, TokenLen)
		Token{Run: run}.Put(payload)
		if !MakeReply(payload) {
			t.Fatalf("%#x is no run of requests", run)
		}
		if reply, _ := ParseToken(payload); reply.Run != ReplyRun(run) || reply.Run == run {
			t.Errorf("the reply to run %#x has %#x, want %#x", run, reply.Run, ReplyRun(run))
		}
	}
}

// FuzzMakeReply is what a datagram becomes that comes to 'bench serve --udp': a reply
// is never answered, so that two servers do not send to each other without end.
func FuzzMakeReply(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, payload []byte) {
		defer testutil.Bounded(t, len(payload))()
		if answered := MakeReply(payload); answered && MakeReply(payload) {
			t.Error("a reply was answered")
		}
	})
}
