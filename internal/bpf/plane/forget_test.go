package plane

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/vishvananda/netlink"
)

// TestForget: what is known of a flow is used though its neighbour has another address, until it is to be forgotten.
func TestForget(t *testing.T) {
	testutil.NeedRoot(t)
	w := newWorld(t)
	w.keep = time.Hour
	programs, ports := w.load(tables(publicAddress, insideAddress), "", TC)
	w.attachTo(programs, ports)
	index := w.index("wan0")
	var own net.HardwareAddr
	neighbour := func(last byte) {
		testutil.Inside(t, w.gateway, func() error {
			wan, err := netlink.LinkByIndex(index)
			if err != nil {
				return err
			}
			own = wan.Attrs().HardwareAddr
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: w.index("lan0"), State: netlink.NUD_PERMANENT, IP: insideAddress.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, last}})
		})
	}
	goes := func(want byte) {
		t.Helper()
		tuple := frame.Tuple{Src: netip.AddrPortFrom(clientAddress, 4000), Dst: netip.AddrPortFrom(publicAddress, 53)}
		packet := frame.IP{Source: clientAddress, Destination: publicAddress, Protocol: 17}.Append(
			frame.Link{Destination: [6]byte(own)}.Append(nil, 0, frame.EtherTypeIPv4), frame.AppendUDP(nil, tuple, []byte("natkit"), false))
		testutil.Inside(t, w.gateway, func() error {
			as, err := programs.Try(index, TC, packet)
			if err == nil && (as.Verdict != Sent || as.Frame[5] != want) {
				t.Errorf("verdict %d, to %v, want it sent to %d", as.Verdict, net.HardwareAddr(as.Frame[:6]), want)
			}
			return err
		})
	}
	neighbour(1)
	goes(1)
	neighbour(2)
	goes(1)
	testutil.Inside(t, w.gateway, w.pins.Forget)
	goes(2)
}
