package udp

import (
	"bytes"
	"github.com/natkit/natkit/internal/testutil"
	"testing"

	"github.com/natkit/natkit/internal/packet"
)

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
		payload := make([]byte, packet.TokenLen)
		packet.Token{Run: run}.Put(payload)
		if !MakeReply(payload) {
			t.Fatalf("%#x is no run of requests", run)
		}
		if reply, _ := packet.ParseToken(payload); reply.Run != ReplyRun(run) || reply.Run == run {
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
