package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/natkit/natkit/internal/pcap"
)

// TestCapture reads the capture of the benchmark, a smaller one of its kind.
func TestCapture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capture.pcap")
	c, err := writeCapture(path, 100<<20)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := pcap.Read(f, pcap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.rejected < 100 || r.RejectedByPAWS != c.rejected || r.Packets != c.packets || r.FileBytes != c.bytes {
		t.Errorf("%d SYNs rejected of %d, %d packets of %d", r.RejectedByPAWS, c.rejected, r.Packets, c.packets)
	}
	// A rejected SYN is of another machine than the connections of its port.
	if len(r.Kinds) != 1 || len(r.Clocks) == 0 || r.Clocks[0].Count != 2*captureMachines || len(r.Damage) != 0 {
		t.Errorf("kinds %+v, clocks %+v", r.Kinds, r.Clocks)
	}
}
