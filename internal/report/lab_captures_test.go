package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/lab"
)

// TestLabCaptures lists files, what is not in them and why, and how to go on.
func TestLabCaptures(t *testing.T) {
	one := func(stage, node, side string, c lab.Capture) lab.Capture {
		c.Stage, c.Round, c.Node, c.Side, c.Interfaces = stage, 1, node, side, []string{"eth0"}
		c.File = "caps/" + stage + "-" + node + side + ".pcapng"
		return c
	}
	r := &lab.Report{Captures: []lab.Capture{
		one("nat", "gw", lab.Inside, lab.Capture{Packets: 12000, Bytes: 3 << 20}),
		one("nat", "gw", lab.Outside, lab.Capture{Packets: 12000, Bytes: 3 << 20, Dropped: 7}),
		one("fault", "gw", lab.Inside, lab.Capture{Packets: 9, Bytes: 1000, Cut: 1}),
		one("fault", "gw", lab.Outside, lab.Capture{Error: "write capture: no space left on device"}),
		one("fault", "server", "", lab.Capture{}),
	}}
	var b strings.Builder
	p := &printer{w: &b}
	p.labCaptures(r)
	const want = `
Captures in caps
  file                    packets     size  dropped  interfaces
  nat-gwinside.pcapng      12,000    3 MiB        0  eth0
  nat-gwoutside.pcapng     12,000    3 MiB        7  eth0
  fault-gwinside.pcapng         9  1,000 B        0  eth0
                                                     full: 1 later packet is not in it; --pcap-size
                                                     lets it grow
  fault-gwoutside.pcapng        0      0 B        0  eth0
                                                     write capture: no space left on device
  fault-server.pcapng           0      0 B        0  eth0

  Capturing took time of the CPUs: rates and times are not those without it.
  try: natkit pcap caps/fault-gwinside.pcapng caps/fault-gwoutside.pcapng
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	p.labCaptures(&lab.Report{})
	if b.Len() != 0 {
		t.Errorf("without captures: %q", b.String())
	}
}
