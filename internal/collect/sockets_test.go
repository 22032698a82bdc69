package collect

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/testutil"
)

// Sockets of a namespace are found there, and not elsewhere.
func TestSockets(t *testing.T) {
	ns := testutil.Namespace(t)
	var listener net.Listener
	var packets net.PacketConn
	if err := ns.Do(func() (err error) {
		if listener, err = net.Listen("tcp", "[::]:0"); err != nil {
			return err
		}
		packets, err = net.ListenPacket("udp4", "0.0.0.0:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	defer packets.Close()
	tcp := ports.Socket{Proto: unix.IPPROTO_TCP, Local: netip.MustParseAddrPort(listener.Addr().String()), Remote: netip.MustParseAddrPort("[::]:0")}
	udp := ports.Socket{Proto: unix.IPPROTO_UDP, Local: netip.MustParseAddrPort(packets.LocalAddr().String()), Remote: netip.MustParseAddrPort("0.0.0.0:0")}
	there, err := Sockets(ns)
	if err != nil {
		t.Fatal(err)
	}
	if len(there) != 2 || !slices.Contains(there, tcp) || !slices.Contains(there, udp) {
		t.Errorf("found %v, want %v and %v", there, tcp, udp)
	}
	if _, err := Sockets(nil); err != nil {
		t.Error(err)
	}
}
