package run

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/packet"
	"github.com/natkit/natkit/internal/testutil"
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
		for _, text := range []string{"hello", "", strings.Repeat("x", 60_000)} {
			if _, err := c.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, maxDatagram)
			if n, err := c.Read(got); err != nil || string(got[:n]) != text {
				t.Errorf("%s on %s: %d bytes, %v; want %d", tt.ask, tt.listen, n, err, len(text))
			}
		}
		if s := stop(); s.Received != 3 || s.Answered != 3 || s.Series[0].Received != 3 || s.Expected != nil {
			t.Errorf("%s: %+v", tt.listen, s)
		}
	}
}

// TestServeUDPAnswersNobodyElse: senders at public addresses, here one that nobody may
// have, are not answered, wherever among others they come; unless they are one's own.
func TestServeUDPAnswersNobodyElse(t *testing.T) {
	testutil.NeedRoot(t)
	ns := newTestNetns(t, "public")
	inNetns(t, ns, "link set lo up\naddr add 240.0.0.1/32 dev lo\n", testutil.NeedProgram(t, "ip"), "-batch", "-")
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

func TestServeUDPErrors(t *testing.T) {
	addr, _ := startServeUDP(t, ServeUDPConfig{})
	same, err := packet.ParseEnd("same")
	if err != nil {
		t.Fatal(err)
	}
	before := openFileCount(t)
	for _, tt := range []struct {
		cfg  ServeUDPConfig
		want string
		is   error
	}{
		{ServeUDPConfig{Listen: addr}, "serve UDP on " + addr.String() + ": address in use", unix.EADDRINUSE},
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
