package netlink

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/unix"
)

// answer is an NLMSG_ERROR message about message 7, whose body has 8 bytes.
func answer(errno unix.Errno, flags uint16, attrs []byte) []byte {
	b := Begin(nil, unix.NLMSG_ERROR, flags, 7)
	b = binary.NativeEndian.AppendUint32(b, uint32(-int32(errno)))
	refused := End(append(Begin(nil, unix.NFT_MSG_NEWRULE, 0, 7), 1, 2, 3, 4, 5, 6, 7, 8), 0)
	if flags&unix.NLM_F_CAPPED != 0 {
		refused = refused[:unix.SizeofNlMsghdr]
	}
	return End(append(append(b, refused...), attrs...), 0)
}

func TestAnswer(t *testing.T) {
	extended := AppendText(nil, unix.NLMSGERR_ATTR_MSG, "no such chain")
	extended = binary.NativeEndian.AppendUint32(AppendAttrHeader(extended, unix.NLMSGERR_ATTR_OFFS, 4), 44)
	for _, tt := range []struct {
		name string
		b    []byte
		want Refusal
	}{
		{"acknowledgement", answer(0, unix.NLM_F_CAPPED, nil), Refusal{Seq: 7}},
		{"refusal", answer(unix.EPERM, 0, nil), Refusal{Seq: 7, Errno: unix.EPERM}},
		{"text", answer(unix.ENOENT, unix.NLM_F_CAPPED|unix.NLM_F_ACK_TLVS, extended), Refusal{7, unix.ENOENT, "no such chain", 44}},
		{"text behind the message", answer(unix.ENOENT, unix.NLM_F_ACK_TLVS, extended), Refusal{7, unix.ENOENT, "no such chain", 44}},
		{"flag without text", answer(unix.ENOENT, unix.NLM_F_CAPPED|unix.NLM_F_ACK_TLVS, nil), Refusal{Seq: 7, Errno: unix.ENOENT}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, rest, err := Next(tt.b)
			if err != nil || len(rest) != 0 {
				t.Fatalf("%d bytes left, %v", len(rest), err)
			}
			got, err := m.Answer()
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
			if tt.want.Errno != 0 && !errors.Is(got, tt.want.Errno) {
				t.Errorf("%v is not %v", got, tt.want.Errno)
			}
		})
	}
}

// TestAttrs: what is written is read again, nested, padded or not.
func TestAttrs(t *testing.T) {
	b := AppendText(nil, 1, "eth0.1")
	b = AppendU8(b, 2, 6)
	b = AppendU16(b, 3, 443)
	b, nest := BeginNest(b, 4)
	b = AppendU32(b, 5, 1<<31)
	b = AppendU64(b, 6, 1<<40)
	b = EndNest(b, nest)
	b = AppendAttr(b, 7, []byte("abc"))
	for _, padding := range []int{0, 1} {
		a, err := ParseAttrs(b[:len(b)-padding])
		if err != nil || len(a) != 5 {
			t.Fatalf("%d attributes, %v", len(a), err)
		}
		inner := a.Nested(4)
		if a.Text(1) != "eth0.1" || !a.Has(2) || a.Has(5) || inner.U32(5) != 1<<31 || inner.U64(6) != 1<<40 || inner.U32(6) != 256 || a.U64(5) != 0 {
			t.Errorf("%v", a)
		}
		var raw []byte
		for _, x := range a {
			raw = append(raw, x.Raw...)
		}
		if diff := cmp.Diff(b, raw); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := ParseAttrs(b[:len(b)-2]); !errors.Is(err, ErrTruncated) {
		t.Errorf("cut off: %v", err)
	}
}

func FuzzNext(f *testing.F) {
	f.Add(answer(unix.EPERM, unix.NLM_F_ACK_TLVS, AppendText(nil, 1, "x")))
	f.Add(append(answer(0, unix.NLM_F_CAPPED, nil), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			m, rest, err := Next(b)
			if err != nil {
				return
			}
			if len(rest) >= len(b) {
				t.Fatal("no progress")
			}
			b = rest
			_, _ = m.Answer()
			_, _ = ParseAttrs(m.Body)
		}
	})
}
