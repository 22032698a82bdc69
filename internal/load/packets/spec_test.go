package packets

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestParseFlagCycle(t *testing.T) {
	for text, want := range map[string][]frame.TCPFlags{
		"syn":               {frame.SYN},
		"SYN":               {frame.SYN},
		"syn+ack":           {frame.SYN | frame.ACK},
		"ack+syn":           {frame.SYN | frame.ACK},
		"syn+syn":           {frame.SYN},
		"syn,ack:3,fin+ack": {frame.SYN, frame.ACK, frame.ACK, frame.ACK, frame.FIN | frame.ACK},
		" syn , ack ":       {frame.SYN, frame.ACK},
		"syn+ece+cwr":       {frame.SYN | frame.ECE | frame.CWR},
		"rst:64":            slices.Repeat([]frame.TCPFlags{frame.RST}, 64),
		"psh+urg:1":         {frame.PSH | frame.URG},
	} {
		got, err := ParseFlagCycle(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", text, d)
		}
	}
}

func TestParseTCPFlagsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                         `"" is none of fin, syn`,
		"syn,":                     `"" is none of`,
		"syn+":                     `"" is none of`,
		"syn-ack":                  `"syn-ack" is none of`,
		"xmas":                     `"xmas" is none of`,
		":3":                       `"" is none of`,
		"syn:0":                    `"0" must be a number from 1 to 64`,
		"syn:-1":                   `"-1" must be`,
		"syn:65":                   `"65" must be`,
		"syn:x":                    `"x" must be`,
		"syn:":                     `"" must be`,
		"syn:2:2":                  `"2:2" must be`,
		"syn:99999999999999999999": "must be a number",
		"syn:64,ack":               "more than 64 segments",
	} {
		if got, err := ParseFlagCycle(text); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: %v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// FuzzParseTCPFlags: what is read can be written and read again.
func FuzzParseFlagCycle(f *testing.F) {
	for _, seed := range []string{"syn", "syn,ack:10,fin+ack", "syn+ece+cwr", ":", "syn:64"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		cycle, err := ParseFlagCycle(text)
		if (err == nil) != (len(cycle) > 0) || len(cycle) > MaxCycle {
			t.Fatalf("%q: %v, %v", text, cycle, err)
		}
		var again []string
		for _, flags := range cycle {
			again = append(again, flags.String())
		}
		if err == nil {
			if got, err := ParseFlagCycle(strings.Join(again, ",")); err != nil || !slices.Equal(got, cycle) {
				t.Fatalf("%q is %v, and read again %v, %v", text, cycle, got, err)
			}
		}
	})
}

// TestSpecAsJSON: a report is for people and programs, and can be read back.
func TestSpecAsJSON(t *testing.T) {
	want := Spec{Protocol: unix.IPPROTO_TCP, TCPFlags: []frame.TCPFlags{frame.SYN, frame.FIN | frame.ACK, 0}, Sizes: []int{64}, HopLimit: 64}
	text, err := json.Marshal(want)
	if err != nil || !strings.Contains(string(text), `"tcp_flags":["syn","fin+ack",""]`) {
		t.Errorf("%s, %v", text, err)
	}
	var got Spec
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := json.Unmarshal([]byte(`{"tcp_flags":["sin"]}`), &got); err == nil {
		t.Error("a flag that does not exist is read")
	}
}

func TestHeaderLen(t *testing.T) {
	for _, tt := range []struct {
		spec         Spec
		headers, min int
	}{
		{Spec{Protocol: unix.IPPROTO_UDP}, 54, 64},
		{Spec{Protocol: unix.IPPROTO_UDP, VLAN: 1}, 58, 64},
		{Spec{Protocol: unix.IPPROTO_TCP}, 66, 70},
		{Spec{Protocol: unix.IPPROTO_UDP, IPv6: true}, 74, 78},
		{Spec{Protocol: unix.IPPROTO_TCP, IPv6: true, VLAN: 1}, 90, 94},
	} {
		if got, least := tt.spec.HeaderLen(), tt.spec.MinSize(); got != tt.headers || least != tt.min {
			t.Errorf("%s: %d and %d, want %d and %d", tt.spec.stack(), got, least, tt.headers, tt.min)
		}
	}
}

func TestSpecCheck(t *testing.T) {
	good := Spec{Protocol: unix.IPPROTO_TCP, TCPFlags: []frame.TCPFlags{frame.SYN}, Sizes: []int{74, 1518, maxFrame}, VLAN: 4094, DSCP: 63, HopLimit: 1}
	for _, tt := range []struct {
		name   string
		change func(*Spec)
		want   string // empty: no error
	}{
		{"good", func(*Spec) {}, ""},
		{"UDP needs no flags", func(s *Spec) { s.Protocol, s.TCPFlags = unix.IPPROTO_UDP, nil }, ""},
		{"64 is enough for UDP", func(s *Spec) { s.Protocol, s.VLAN, s.Sizes = unix.IPPROTO_UDP, 0, []int{64} }, ""},
		{"as many flags as are taken", func(s *Spec) { s.TCPFlags = make([]frame.TCPFlags, 64) }, ""},
		{"as many sizes as are taken", func(s *Spec) { s.Sizes = slices.Repeat([]int{128}, 64) }, ""},
		{"protocol", func(s *Spec) { s.Protocol = unix.IPPROTO_ICMP }, "protocol 1: only UDP and TCP"},
		{"no flags", func(s *Spec) { s.TCPFlags = nil }, "TCP without flags"},
		{"many flags", func(s *Spec) { s.TCPFlags = make([]frame.TCPFlags, 65) }, "65 flag sets and 3 sizes: at most 64"},
		{"many sizes", func(s *Spec) { s.Sizes = slices.Repeat([]int{128}, 65) }, "1 flag sets and 65 sizes"},
		{"no size", func(s *Spec) { s.Sizes = nil }, "no frame size"},
		{"VLAN", func(s *Spec) { s.VLAN = 4095 }, "VLAN 4095: must be 1 to 4094"},
		{"DSCP", func(s *Spec) { s.DSCP = 64 }, "DSCP 64: must be 0 to 63"},
		{"hop limit", func(s *Spec) { s.HopLimit = 0 }, "hop limit 0"},
		{"small", func(s *Spec) { s.Sizes = []int{128, 73} }, "frame size 73: TCP over IPv4 in a VLAN with a token needs 74 to"},
		{"small for IPv6", func(s *Spec) { s.IPv6 = true }, "frame size 74: TCP over IPv6 in a VLAN with a token needs 94 to"},
		{"small for Ethernet", func(s *Spec) { s.Protocol, s.VLAN, s.Sizes = unix.IPPROTO_UDP, 0, []int{63} }, "frame size 63: UDP over IPv4 with a token needs 64 to"},
		{"great", func(s *Spec) { s.Sizes = []int{maxFrame + 1} }, "frame size"},
		{"negative", func(s *Spec) { s.Sizes = []int{-64} }, "frame size -64"},
	} {
		spec := good
		tt.change(&spec)
		err := spec.Check()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if good.MaxSize() != maxFrame {
		t.Errorf("the greatest size is %d", good.MaxSize())
	}
}

func TestToken(t *testing.T) {
	token := Token{Run: 0x01020304, Flow: 0x05060708, Sequence: 0x090a0b0c}
	b := make([]byte, TokenLen+1)
	token.Put(b)
	if want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0}; !bytes.Equal(b, want) {
		t.Errorf("%x, want %x", b, want)
	}
	if got, ok := ParseToken(b); got != token || !ok {
		t.Errorf("%+v, %v", got, ok)
	}
	for n := range TokenLen {
		if got, ok := ParseToken(b[:n]); got != (Token{}) || ok {
			t.Errorf("of %d bytes: %+v, %v", n, got, ok)
		}
	}
}
