package run

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestServeUDPAnswersFromWhereItWasAsked: net's connected sockets see nothing else.
func TestServeUDPAnswersFromWhereItWasAsked(t *testing.T) {
	for _, tt := range []struct{ listen, ask, network string }{
		{"0.0.0.0:0", "127.0.0.9", "udp4"},
		{"[::]:0", "::1", "udp6"},
		{"[::]:0", "127.0.0.9", "udp4"},
		{"127.0.0.1:0", "127.0.0.1", "udp4"},
	} {
		if strings.HasPrefix(tt.listen, "[") {
			testutil.NeedFeature(t, testutil.IPv6)
		}
		addr, stop := startServeUDP(t, ServeUDPConfig{Listen: netip.MustParseAddrPort(tt.listen)})
		c, err := net.Dial(tt.network, netip.AddrPortFrom(netip.MustParseAddr(tt.ask), addr.Port()).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(deadline))
		for _, text := range []string{"....flowsequ", "....flowsequ" + strings.Repeat("x", 60_000)} {
			if _, err := c.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			got, want := make([]byte, maxDatagram), ".../"+text[4:]
			if n, err := c.Read(got); err != nil || string(got[:n]) != want {
				t.Errorf("%s on %s: %d bytes, %v; want %d", tt.ask, tt.listen, n, err, len(want))
			}
		}
		if s := stop(); s.Received != 2 || s.Answered != 2 || s.Series[0].Received != 2 || s.Expected != nil {
			t.Errorf("%s: %+v", tt.listen, s)
		}
	}
}

// TestServeUDPAnswersOwnOnly: senders at public addresses, here a reserved one, are not
// answered, wherever they come among others; unless they are the host's own.
func TestServeUDPAnswersOwnOnly(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t, "public")
	testutil.Run(t, ns, "link set lo up\naddr add 240.0.0.1/32 dev lo\n", "ip", "-batch", "-")
	for own, answered := range map[bool]int64{false: 200, true: 300} {
		addr, stop := startServeUDP(t, ServeUDPConfig{Netns: ns, Workers: 1, OwnNetwork: own})
		cfg := udpConfig(addr, 300)
		cfg.Flows, cfg.Concurrency, cfg.Timeout = 3, 300, 100*time.Millisecond
		for _, source := range []string{"127.0.0.1", "240.0.0.1", "127.0.0.2"} {
			cfg.Sources = append(cfg.Sources, netip.MustParseAddr(source))
		}
		r := sendUDP(t, cfg, Options{Netns: ns})
		if r.Sent != 300 || r.Received != answered || r.Lost != 300-answered {
			t.Errorf("own network %v: %+v", own, r.Delivery)
		}
		if s := stop(); s.Received != 300 || s.Answered != answered || s.Public != 300-answered {
			t.Errorf("own network %v: %+v", own, s)
		}
	}
}

// TestServeUDPAnswersRequestsAlone: no replies, and nothing without a token. The datagrams of one sender
// are taken in turn, so that the first answer is to the last of them.
func TestServeUDPAnswersRequestsAlone(t *testing.T) {
	expected, err := packets.ParseEnd("198.18.0.0/15")
	if err != nil {
		t.Fatal(err)
	}
	addr, stop := startServeUDP(t, ServeUDPConfig{Expected: &expected})
	c, err := net.Dial("udp4", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(deadline))
	for _, text := range []string{"", "hello", "....flowseq", ".../flowsequ", "....last one"} {
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, maxDatagram)
	if n, err := c.Read(got); err != nil || string(got[:n]) != ".../last one" {
		t.Errorf("%q, %v", got[:n], err)
	}
	if s := stop(); s.Received != 5 || s.Answered != 1 || s.Foreign != 4 || s.Misdelivered != 1 || s.Sources != 1 {
		t.Errorf("%+v", s)
	}
}

// TestServeUDPNoLoop: one server is asked in the name of another, which does not
// answer the reply. Each has one socket, whose datagrams are taken in turn: once what
// is asked after the forged datagram is answered, that is done with.
func TestServeUDPNoLoop(t *testing.T) {
	testutil.NeedRoot(t)
	for forged, answered := range map[string]int64{"....flowsequ": 1, ".../flowsequ": 0, "hello": 0} {
		a, stopA := startServeUDP(t, ServeUDPConfig{Workers: 1})
		b, stopB := startServeUDP(t, ServeUDPConfig{Workers: 1})
		forgeUDP(t, a, b, forged)
		for _, addr := range []netip.AddrPort{b, a, b, a} {
			wholeUDP(t, sendUDP(t, udpConfig(addr, 1), Options{}), 1)
		}
		if s := stopA(); s.Received != 2+answered || s.Answered != 2 || s.Foreign != answered {
			t.Errorf("%q: the server in whose name the other was asked saw %+v", forged, s)
		}
		if s := stopB(); s.Received != 3 || s.Answered != 2+answered || s.Foreign != 1-answered {
			t.Errorf("%q: the server that was asked saw %+v", forged, s)
		}
	}
}

// forgeUDP sends a datagram over loopback as if from another socket; without a
// checksum, which IPv4 allows (RFC 768).
func forgeUDP(t *testing.T, from, to netip.AddrPort, payload string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	header := binary.BigEndian.AppendUint16(nil, from.Port())
	header = binary.BigEndian.AppendUint16(header, to.Port())
	header = binary.BigEndian.AppendUint16(header, uint16(8+len(payload)))
	header = append(header, 0, 0)
	if err := unix.Sendto(fd, append(header, payload...), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
}

func TestServeUDPErrors(t *testing.T) {
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	same, err := packets.ParseEnd("same")
	if err != nil {
		t.Fatal(err)
	}
	before := openFileCount(t)
	for _, tt := range []struct {
		cfg  ServeUDPConfig
		want string
		is   error
	}{
		{ServeUDPConfig{Listen: addr}, "serve UDP on " + addr.String() + ": another server listens there", unix.EADDRINUSE},
		{ServeUDPConfig{Listen: netip.MustParseAddrPort("203.0.113.1:9000")}, "not an address of this machine", unix.EADDRNOTAVAIL},
		{ServeUDPConfig{}, "no address", nil},
		{ServeUDPConfig{Listen: netip.MustParseAddrPort("127.0.0.1:0"), Expected: &same}, "does not know what was sent", nil},
	} {
		_, err := ServeUDP(t.Context(), tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("error %v, want one with %q", err, tt.want)
		}
	}
	noMoreFiles(t, before)
}
