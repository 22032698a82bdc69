package drops

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// TestHeaders: the headers of packets that rules and the stack drop are those that were sent, of a flood no more than
// of other drops.
func TestHeaders(t *testing.T) {
	testutil.NeedRoot(t)
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook forward priority 0; udp dport 9 drop; }; }")
	const each, all = 5, 50
	o := Options{Netns: n.gateway, PlacesOnly: true, Headers: HeaderOptions{All: all, Each: each, Room: 1000}}
	tr := start(t, o)
	link, err := testutil.Links(t, n.gateway).LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	index := link.Attrs().Index
	const flood = 2000
	raw(t, n.client, udp(clientIP, serverIP, 64, 0), flood)
	run(t, n.gateway, "ip route add unreachable 198.51.100.0/24")
	raw(t, n.client, udp(clientIP, "198.51.100.1", 64, 0), 1)
	d := until(t, tr, flood+1)

	got := map[string]int{}
	collect := func(h *Header) {
		if len(h.Data) < 28 || h.Data[0] != 0x45 || h.Data[9] != unix.IPPROTO_UDP || h.Interface != index || h.Site.Protocol != "udp" {
			t.Fatalf("%+v of interface %d", h, index)
		}
		sent := udp(clientIP, serverIP, 64, 0)
		if h.Data[16] == 198 && h.Data[17] == 51 {
			sent = udp(clientIP, "198.51.100.1", 64, 0)
		}
		// The time to live and the checksum of the header change on the way.
		if !bytes.Equal(h.Data[12:28], sent[12:28]) || binary.BigEndian.Uint16(h.Data[2:]) != uint16(len(sent)) {
			t.Errorf("dropped: % x, sent % x", h.Data[:28], sent[:28])
		}
		got[h.Site.Function]++
	}
	lost, err := tr.Headers(collect)
	if err != nil || lost > 0 {
		t.Fatalf("lost %d: %v", lost, err)
	}
	sites, total := 0, 0
	for _, s := range d.Sites {
		if s.Protocol == "udp" {
			sites++
			if got[s.Function] == 0 {
				t.Errorf("no header of %+v: %v", s, got)
			}
		}
	}
	for _, kept := range got {
		total += kept
	}
	// On a slow machine the flood lasts for several windows.
	if sites < 2 || total < each || total >= flood {
		t.Errorf("%d headers of %d places: %v", total, sites, got)
	}
}

// TestHeadersLost: what finds no room is counted, once.
func TestHeadersLost(t *testing.T) {
	testutil.NeedRoot(t)
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook forward priority 0; udp dport 9 drop; }; }")
	tr := start(t, Options{Netns: n.gateway, PlacesOnly: true, Headers: HeaderOptions{All: 1 << 20, Each: 1 << 20, Room: 1}})
	const flood = 500
	raw(t, n.client, udp(clientIP, serverIP, 64, 0), flood)
	until(t, tr, flood)
	kept := uint64(0)
	lost, err := tr.Headers(func(*Header) { kept++ })
	if err != nil || kept == 0 || lost == 0 || kept+lost != flood {
		t.Errorf("%d kept and %d lost of %d: %v", kept, lost, flood, err)
	}
	if lost, err := tr.Headers(func(*Header) { t.Error("a header twice") }); err != nil || lost > 0 {
		t.Errorf("lost again: %d, %v", lost, err)
	}
}

// TestRouteQueries: a question about a route that there is none of is no packet of a network.
func TestRouteQueries(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "ip")
	n := newNetwork(t)
	run(t, n.client, "ip route add unreachable 198.51.100.0/24")
	tr := start(t, Options{Netns: n.client})
	const questions = 3
	testutil.Inside(t, n.client, func() error {
		for range questions {
			if exec.Command("ip", "route", "get", "198.51.100.1").Run() == nil {
				return errors.New("there is a route")
			}
		}
		return nil
	})
	if d := read(t, tr); d.Packets > 0 {
		t.Errorf("%d packets dropped: %+v", d.Packets, d.Sites)
	} else if d.Harmless < questions {
		t.Errorf("%d frees of %d answers were seen", d.Harmless, questions)
	}
}
