package main

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// TestParts: each part does what the engine does so far, and the frame leaves in any case.
func TestParts(t *testing.T) {
	testutil.NeedRoot(t)
	p := &parts{}
	p.client, p.gateway, p.server = testutil.Namespace(t), testutil.Namespace(t), testutil.Namespace(t)
	testutil.Veth(t, testutil.End{Netns: p.client, Name: "out", Addresses: []string{"198.18.0.2/24"}},
		testutil.End{Netns: p.gateway, Name: "wan", Addresses: []string{"198.18.0.1/24"}})
	testutil.Veth(t, testutil.End{Netns: p.gateway, Name: "lan", Addresses: []string{"198.19.0.1/24"}},
		testutil.End{Netns: p.server, Name: "in", Addresses: []string{"198.19.0.2/24"}})
	testutil.Sysctl(t, p.gateway, "net/ipv4/ip_forward", "1")
	links := testutil.Links(t, p.gateway)
	if err := links.AddRoute(mappedInside[0], serverAddress.Addr()); err != nil {
		t.Fatal(err)
	}
	wan, err := links.LinkByName("wan")
	if err != nil {
		t.Fatal(err)
	}
	c := partsTraffic.config()
	tuple := frame.Tuple{Src: netip.AddrPortFrom(clientAddress, 1024), Dst: c.Flows.Destinations[0]}
	data := frame.Link{Destination: [6]byte(wan.Attrs().HardwareAddr)}.Append(nil, 0, frame.EtherTypeIPv4)
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
