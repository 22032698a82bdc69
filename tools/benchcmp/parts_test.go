package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// inNamespaces has the lab's client, gateway and server be of the test, and returns the gateway's address that frames of
// the client have.
func (g *packetRuns) inNamespaces(t *testing.T) net.HardwareAddr {
	t.Helper()
	g.client, g.gateway, g.server = testutil.Namespace(t), testutil.Namespace(t), testutil.Namespace(t)
	testutil.Veth(t, testutil.End{Netns: g.client, Name: "eth0", Addresses: []string{"198.18.0.2/24"}},
		testutil.End{Netns: g.gateway, Name: "eth0", Addresses: []string{"198.18.0.1/24"}})
	testutil.Veth(t, testutil.End{Netns: g.gateway, Name: "eth1", Addresses: []string{"198.19.0.1/24"}},
		testutil.End{Netns: g.server, Name: "eth0", Addresses: []string{"198.19.0.2/24"}})
	testutil.Sysctl(t, g.gateway, "net/ipv4/ip_forward", "1")
	testutil.Routes(t, g.client, gatewayPublic.Addr().String())
	testutil.Routes(t, g.server, gatewayInside.String())
	links := testutil.Links(t, g.gateway)
	if err := links.AddRoute(mappedInside[0], serverAddress.Addr()); err != nil {
		t.Fatal(err)
	}
	eth0, err := links.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return eth0.Attrs().HardwareAddr
}

// TestParts: each part does what the engine does so far, and the frame leaves in any case.
func TestParts(t *testing.T) {
	testutil.NeedRoot(t)
	p := &parts{}
	wan := p.inNamespaces(t)
	c := partsTraffic.config()
	tuple := frame.Tuple{Src: netip.AddrPortFrom(clientAddress, 1024), Dst: c.Flows.Destinations[0]}
	data := frame.Link{Destination: [6]byte(wan)}.Append(nil, 0, frame.EtherTypeIPv4)
	data = frame.IP{Source: tuple.Src.Addr(), Destination: tuple.Dst.Addr(), Protocol: unix.IPPROTO_UDP}.Append(data, frame.AppendUDP(nil, tuple, nil, false))
	inside := netip.AddrPortFrom(partsTraffic.addresses(mappedInside[0])[0], tuple.Dst.Port())
	for name, want := range map[string]struct {
		last   partsPart
		origin partsOrigin
		dst    netip.AddrPort
	}{
		"redirect":  {partsPartNONE, partsOriginMEMORY, tuple.Dst},
		"headers":   {partsPartHEADERS, partsOriginMEMORY, tuple.Dst},
		"memory":    {partsPartDECISION, partsOriginMEMORY, tuple.Dst},
		"rewritten": {partsPartREWRITE, partsOriginMEMORY, inside},
		"counted":   {partsPartCOUNTERS, partsOriginMEMORY, inside},
		"mappings":  {partsPartCOUNTERS, partsOriginMAPPINGS, inside},
		"routes":    {partsPartCOUNTERS, partsOriginROUTES, inside},
	} {
		program, in, err := p.loadPart(want.last, want.origin)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer program.Close()
		for range 2 { // as it is decided, and as it is remembered
			verdict, out := p.runOnce(t, program, in, data)
			got, err := frame.Parse(out)
			if err != nil || verdict != xdpRedirect || got.Tuple() != (frame.Tuple{Src: tuple.Src, Dst: want.dst}) {
				t.Errorf("%s: verdict %d, %+v, %v", name, verdict, got, err)
			}
		}
	}
}

// xdpRedirect is XDP_REDIRECT.
const xdpRedirect = 4

// runOnce runs a program with a frame that comes in by an interface of the gateway.
func (p *parts) runOnce(t *testing.T, program *ebpf.Program, in int, data []byte) (verdict uint32, out []byte) {
	t.Helper()
	ctx := make([]byte, 24) // struct xdp_md
	binary.NativeEndian.PutUint32(ctx[4:], uint32(len(data)))
	binary.NativeEndian.PutUint32(ctx[12:], uint32(in))
	o := &ebpf.RunOptions{Data: data, DataOut: make([]byte, len(data)), Context: ctx}
	testutil.Inside(t, p.gateway, func() (err error) {
		verdict, err = program.Run(o)
		return err
	})
	return verdict, o.DataOut
}
