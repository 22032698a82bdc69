package cli

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/report"
)

// connectResult has every line that a report can have.
func connectResult() *packets.ConnectResult {
	ports := nat.Ports{First: 1024, Last: 65535}
	return &packets.ConnectResult{
		Config: packets.ConnectConfig{
			Flows: packets.Flows{
				Count: 2 * ports.Len(), Sources: []netip.Addr{netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.3")},
				SourcePorts: ports, Destinations: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:80")}, Seed: 7,
			},
			Connections: 1_000_000, Rate: 50_000, Window: 1000, Timeout: time.Second, Close: load.CloseServer,
		},
		From: "client/eth0", Seconds: 20,
		Connections: packets.Connections{
			Started: 1_000_000, Established: 999_000, Answered: 998_000, Complete: 997_000,
			Reset: packets.Steps{SYNACK: 10, Reply: 20, Close: 30}, Incomplete: packets.Steps{SYNACK: 990, Reply: 980, Close: 970},
		},
		Misdelivered: 3, MisdeliveredAs: []packets.Stray{{Flow: 9, Source: netip.MustParseAddrPort("198.19.0.2:80"), Destination: netip.MustParseAddrPort("198.18.0.2:1024")}},
		BadChecksum: 4, NoRoom: 5, Duplicated: 6, Late: 7, Unexpected: 8, CompletePerSecond: 49_850,
		Handshake:      load.Times{Median: 0.1, P99: 0.25, Max: 1.5},
		GeneratorLimit: "it was too slow", WindowFull: true, Notes: []string{"the first\x1b[31m"},
	}
}

func TestBenchConnectPacketGolden(t *testing.T) {
	exceeded, kept := report.ConnectResult{ConnectResult: connectResult()}, report.ConnectResult{ConnectResult: connectResult()}
	exceeded.Judge(0.5) // a misdelivered segment is too many all the same
	kept.Misdelivered, kept.MisdeliveredAs = 0, nil
	kept.Judge(0.5)
	plain := report.ConnectResult{ConnectResult: connectResult()}
	*plain.ConnectResult = packets.ConnectResult{Config: plain.Config, From: "eth0", Connections: packets.Connections{Started: 9, Established: 9, Answered: 9, Complete: 9}}
	plain.Config.Rate, plain.Config.Close = 0, packets.CloseNone
	for name, tt := range map[string]struct {
		result report.ConnectResult
		style  report.Style
	}{
		"bench-connect-packet":        {exceeded, report.Style{}},
		"bench-connect-packet-colour": {kept, report.Style{Colour: true}},
		"bench-connect-packet-plain":  {plain, report.Style{}},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := tt.result.Text(&got, tt.style); err != nil {
				t.Fatal(err)
			}
			compareGolden(t, name, got.Bytes())
		})
	}
	if !exceeded.MaxLossExceeded || kept.MaxLossExceeded {
		t.Error("a misdelivered segment exceeds every allowed loss, and nothing else did here")
	}
}

func TestBenchServePacketGolden(t *testing.T) {
	var got bytes.Buffer
	served := &packets.Responded{Opened: 1_000_000, Answered: 999_999, Closed: 999_990, Reset: 8, Passed: 7, BadChecksum: 6, NoRoom: 5, Interface: "server/eth0", Seconds: 12.34, Notes: []string{"the first"}}
	if err := report.Responded(&got, report.Style{}, served); err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "bench-serve-packet", got.Bytes())
}

func TestNoneComplete(t *testing.T) {
	r := connectResult()
	if err := noneComplete(r); err != nil {
		t.Error(err)
	}
	r.Complete = 0
	if err := noneComplete(r); err == nil || !strings.Contains(err.Error(), "198.18.0.1:80") {
		t.Error(err)
	}
	r.Started = 0
	if err := noneComplete(r); err == nil {
		t.Error("nothing was sent, and that is no error")
	}
}
