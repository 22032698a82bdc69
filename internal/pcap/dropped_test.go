package pcap

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// onInterfaces is a capture of packets that came and of such that the kernel dropped, as 'natkit record export --packets' writes it, with the comment that
// the interfaces have.
func onInterfaces(t *testing.T, comment string, came, dropped []line1) []byte {
	t.Helper()
	var b bytes.Buffer
	about := pcapgo.NgInterface{Name: "eth0", LinkType: layers.LinkTypeEthernet, Comment: comment}
	w, err := pcapgo.NewNgWriterInterface(&b, about, pcapgo.NgWriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	about.Name += DroppedOn
	if _, err := w.AddInterface(about); err != nil {
		t.Fatal(err)
	}
	for on, lines := range [][]line1{came, dropped} {
		for i := range lines {
			data := lines[i].frame(t)
			at := start.Add(time.Duration(lines[i].ms * float64(time.Millisecond)))
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(data), Length: len(data), InterfaceIndex: on}, data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDropped: a SYN that came and was dropped counts once, whatever DNAT made of its destination, and how long it waited; one that
// is only among the dropped ones counts; of others only what came counts.
func TestDropped(t *testing.T) {
	behind := netip.MustParseAddrPort("198.19.0.2:8080") // DNAT
	for _, tt := range []struct {
		name, came, dropped     string
		begun, duplicates, icmp int64
	}{
		{"twice", "0 > S 100 0 0 id=7", "0.2 > S 100 0 0 id=7", 1, 1, 0},
		{"without identification, from a queue", "0 > S 100 0 0", "700 > S 100 0 0", 1, 1, 0},
		{"sent again, each dropped", "0 > S 100 0 0 id=7\n1000 > S 100 0 0 id=8", "0.2 > S 100 0 0 id=7\n1000.2 > S 100 0 0 id=8", 1, 2, 0},
		{"of its own", "", "0 > S 100 0 0 id=7", 1, 0, 0},
		{"another one", "0 > S 100 0 0 id=7", "0.2 > S 999 0 0 id=7", 2, 0, 0},
		{"data and errors", "0 > S 100 0 0\n1 < icmp 3 13 100", "0.1 > S 100 0 0\n1.1 < icmp 3 13 100\n2 > A 101 1 5\n3 > FA 106 1 0", 1, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := reportOf(t, onInterfaces(t, "", parseScript(t, clientA, serverA, tt.came), parseScript(t, clientA, behind, tt.dropped)), Options{})
			c, icmp := r.Connections, int64(0)
			for _, e := range r.ICMPErrors {
				icmp += e.Count
			}
			if c.Total != tt.begun || c.Begun != tt.begun || c.Duplicates != tt.duplicates || icmp != tt.icmp {
				t.Errorf("%+v, %d ICMP errors", c, icmp)
			}
		})
	}
}

// TestHeadersAlone: of a file that leaves out ACKs and data nothing is said that only these could show; the same packets of a whole
// capture say it.
func TestHeadersAlone(t *testing.T) {
	const connected = "0 > S 100 0 0\n1 < SA 900 101 0\n"
	for _, tt := range []struct {
		name, script string
		whole, alone []Kind
		notAccepted  int64
	}{
		{"an ACK answered, or nothing", "0 > S 100 0 0\n1000 > S 100 0 0 id=1\n3000 > S 100 0 0 id=2\n9000 > S 7 0 0",
			[]Kind{SYNUnanswered}, []Kind{SYNNotAccepted}, 1},
		{"refused", "0 > S 100 0 0\n1 < RA 0 101 0", []Kind{SYNRefused}, []Kind{SYNRefused}, 0},
		{"in TIME_WAIT", connected + "3 < FA 901 101 0\n4 > FA 101 902 0\n30000 > S 50 0 0\n32000 > S 9000 0 0\n32001 < SA 77 9001 0",
			[]Kind{SYNRejectedSeq}, []Kind{SYNRejectedSeq}, 0},
		{"an RST behind data", connected + "3 > FA 101 901 0\n900 < R 99999 0 0", []Kind{RSTOutOfWindow}, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			script := parseScript(t, clientA, serverA, tt.script)
			for comment, want := range map[string][]Kind{"all of it": tt.whole, HeadersAlone + ": SYNs": tt.alone} {
				r := reportOf(t, onInterfaces(t, comment, script, nil), Options{})
				var kinds []Kind
				for _, k := range r.Kinds {
					kinds = append(kinds, k.Kind)
				}
				alone := comment != "all of it"
				if !slices.Equal(kinds, want) || r.Interfaces[0].HeadersAlone != alone || alone && (r.Connections.NotAccepted != tt.notAccepted || r.Connections.Unanswered != 0 || len(r.Notes) == 0) {
					t.Errorf("%s: %v, want %v: %+v, %q", comment, kinds, want, r.Connections, r.Notes)
				}
			}
		})
	}
}
