package report

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/pcap/pair"
)

func ends(from, to string) frame.Tuple {
	return frame.Tuple{Src: netip.MustParseAddrPort(from), Dst: netip.MustParseAddrPort(to)}
}

// madeUpPair has every part of a comparison. Its figures are made up.
func madeUpPair() *pair.Report {
	lowest, highest := 0.0123, 0.0125
	file := func(n int64) pcap.Stats {
		return pcap.Stats{Format: "pcapng", Packets: n, First: captureBegan, Last: captureBegan.Add(time.Minute),
			Damage: []pcap.Damage{{Offset: 99, After: 3, What: "block of length 7\x1b[2J", Skipped: 12}}}
	}
	in, out := ends("198.18.0.2:40000", "203.0.113.1:443"), ends("198.19.0.1:20000", "203.0.113.1:443")
	in6, out6 := ends("[2001:db8:ffff:ffff:ffff:ffff:ffff:fff1]:40000", "[2001:db8:ffff:ffff:ffff:ffff:ffff:fff2]:443"), ends("[2001:db8:eeee:ffff:ffff:ffff:ffff:fff1]:20000", "[2001:db8:ffff:ffff:ffff:ffff:ffff:fff2]:443")
	echo := ends("198.18.0.2:0", "203.0.113.1:0")
	return &pair.Report{Schema: pair.Schema, Swapped: true, SidesBy: pair.ByTranslation,
		Inside:  pair.Side{File: file(120000), Compared: 119000, Local: 3, Unreadable: 7, Unforwardable: 40, Uncovered: pair.Uncovered{Before: 900, After: 50}},
		Outside: pair.Side{File: file(118000), Compared: 118000},
		Clock:   pair.Clock{By: pair.BothWays, Offset: 0.0124, Lowest: &lowest, Highest: &highest, Drift: -0.0021, Corrections: 2},
		Out: pair.Direction{Matched: 60000, Lost: 512, LostBy: []pair.KindCount{{Kind: pair.SYN, Packets: 500}, {Kind: pair.RST, Packets: 12}}, Twice: 3, Appeared: 1,
			Delay: load.Times{Min: 0.011, Mean: 0.05, Median: 0.031, P90: 0.06, P99: 1.2, P999: 3.4, Max: 120.5}},
		In:          pair.Direction{Matched: 58000, Delay: load.Times{Min: 0.010, Mean: 0.04, Median: 0.03, P90: 0.05, P99: 0.2, P999: 0.4, Max: 1}},
		Ambiguous:   4,
		Translation: pair.Translation{None: 4, SourceAddress: 60000, SourcePort: 59000, DestinationAddress: 58000, DestinationPort: 57000, TCPTimestamps: 1, IPID: 2, Hops: 1},
		Flows:       pair.Flows{Through: 10000, Incomplete: 12, NeverOut: 250, NeverIn: 1, Translated: 9999, PortKept: 500, PortChanged: 9499},
		Incomplete: []pair.FlowReport{
			{Protocol: 6, Inside: &in, LostOut: 3, FirstLost: pair.LostPacket{Frame: 1200, Time: captureBegan, Kind: pair.SYN}},
			{Protocol: 6, Inside: &in6, Outside: &out6, LostOut: 1, LostIn: 2, Matched: 100, FirstLost: pair.LostPacket{Outside: true, Frame: 99, Kind: pair.Data}},
			{Protocol: 1, Outside: &echo, LostIn: 1, FirstLost: pair.LostPacket{Outside: true, Frame: 3, Kind: pair.Echo}},
			{Protocol: 47, FirstLost: pair.LostPacket{Kind: pair.Other}},
		},
		Mappings: []pair.Mapping{{Protocol: 6, Inside: in, Outside: out, InsideFrame: 1, OutsideFrame: 2}, {Protocol: 17, Inside: in6, Outside: out6, InsideFrame: 12345, OutsideFrame: 12300}},
		Limits:   pair.Limits{Memory: 256 << 20, Early: 5, ForgottenFlows: 6},
		Notes:    []string{"a note\x07"},
	}
}

func TestApart(t *testing.T) {
	for seconds, want := range map[float64]string{0: "0.000 ms", 0.0124: "12.40 ms", 0.0000007: "0.700 µs", -0.00025: "-250.0 µs", 2: "2,000 ms"} {
		if got := apart(seconds); got != want {
			t.Errorf("%g: %s, want %s", seconds, got, want)
		}
	}
}

func TestPcapPair(t *testing.T) {
	for name, tt := range map[string]struct {
		v     PcapView
		style Style
		r     func(*pair.Report)
	}{
		"pcap-pair.txt": {PcapView{Max: 10}, Style{}, func(*pair.Report) {}},
		"pcap-pair-narrow.txt": {PcapView{Max: 1, Interrupted: true}, Style{Columns: 120}, func(r *pair.Report) {
			r.Clock = pair.Clock{By: pair.OneWay, Offset: -0.5}
			r.Out.Delay = load.Times{Min: 0.0004, Mean: 0.0016, Median: 0.0012, P90: 0.002, P99: 0.0061, P999: 0.032, Max: 12.5}
		}},
		"pcap-pair-none.txt": {PcapView{}, Style{}, func(r *pair.Report) {
			*r = pair.Report{SidesBy: pair.AsGiven, Clock: pair.Clock{By: pair.NoMatch}, Inside: pair.Side{File: pcap.Stats{Format: "pcap"}}, Outside: pair.Side{File: pcap.Stats{Format: "pcap"}}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := madeUpPair()
			tt.r(r)
			tt.v.Source, tt.v.Outside = "inside.pcapng", "outside\x1b.pcapng"
			if err := PcapPair(&out, tt.style, tt.v, r); err != nil {
				t.Fatal(err)
			}
			golden(t, name, out.Bytes())
			checkLines(t, out.String(), tt.style.columns())
		})
	}
}
