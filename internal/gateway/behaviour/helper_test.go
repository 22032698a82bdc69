package behaviour

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

// TestFTPHelper: what FTP announces is translated in its data, of another length, and the connection that it
// announces comes in; what is said later has other sequence numbers outside than inside.
func TestFTPHelper(t *testing.T) {
	testutil.NeedFeature(t, testutil.NATHelpers)
	w := explainedWorld(t)
	f, err := gateway.Parse("ftp.yaml", []byte(`gateway:
  interfaces: {wan: wan, lan: [lan, dmz]}
  helpers: ftp
  nat: [snat: {from: 192.168.0.0/24, to: 203.0.113.40}]
`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, Facts())
	if err == nil {
		err = w.Apply(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	client, server := netip.MustParseAddrPort("192.168.0.2:4000"), netip.MustParseAddrPort("198.18.0.10:21")
	outside := netip.MustParseAddrPort("203.0.113.40:4000")
	say := func(from, to Host, src, dst netip.AddrPort, flags frame.TCPFlags, seq, ack uint32, text string) *frame.Frame {
		t.Helper()
		got, err := w.Send(from, tcp(src, dst, frame.TCP{Flags: flags, SequenceNumber: seq, AcknowledgmentNumber: ack}, []byte(text)).bytes())
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].At != to || got[0].Frame.Protocol != unix.IPPROTO_TCP || got[0].Frame.TransportChecksum() == frame.ChecksumBad {
			t.Fatalf("%v from %v arrived as %v", flags, src, got)
		}
		return &got[0].Frame
	}
	say(A, X, client, server, frame.SYN, 1000, 0, "")
	say(X, A, server, outside, frame.SYN|frame.ACK, 5000, 1001, "")
	say(A, X, client, server, frame.ACK, 1001, 5001, "")
	const user = "USER anonymous\r\n" // the kernel looks for commands behind the end of a line
	say(A, X, client, server, frame.ACK|frame.PSH, 1001, 5001, user)
	const first = 1001 + uint32(len(user))
	const inside, announced = "PORT 192,168,0,2,19,137\r\n", "PORT 203,0,113,40,19,137\r\n"
	if got := say(A, X, client, server, frame.ACK|frame.PSH, first, 5001, inside); string(got.Payload) != announced {
		t.Fatalf("the server reads %q", got.Payload)
	}
	if got := say(X, A, server, outside, frame.ACK|frame.PSH, 5001, first+uint32(len(announced)), "200 ok\r\n"); got.TCP.AcknowledgmentNumber != first+uint32(len(inside)) {
		t.Errorf("the server acknowledges %d", got.TCP.AcknowledgmentNumber)
	}
	if got := say(A, X, client, server, frame.ACK|frame.PSH, first+uint32(len(inside)), 5009, "LIST\r\n"); got.TCP.SequenceNumber != first+uint32(len(announced)) {
		t.Errorf("what comes later has the sequence number %d", got.TCP.SequenceNumber)
	}
	data := say(X, A, netip.MustParseAddrPort("198.18.0.10:20"), netip.MustParseAddrPort("203.0.113.40:5001"), frame.SYN, 9000, 0, "")
	if got := data.Tuple().Dst.String(); got != "192.168.0.2:5001" {
		t.Errorf("the connection for data comes to %s", got)
	}
}
