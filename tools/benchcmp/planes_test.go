package main

import (
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// TestNetmapPairs: prefixes of two lengths are compared by as many flows from the same ports.
func TestNetmapPairs(t *testing.T) {
	for _, flows := range []int{packetFlows, 1_000_000} {
		for _, bits := range []int{18, 12} {
			in := traffic{netmap: bits, flows: flows}
			c, tables := in.config(), in.tables()
			if err := c.Flows.Check(); err != nil || c.Flows.Count != flows || c.Flows.SourcePorts != (nat.Ports{First: 1024, Last: 1087}) {
				t.Errorf("/%d: %d flows from %v: %v", bits, c.Flows.Count, c.Flows.SourcePorts, err)
			}
			if n := len(c.Flows.Destinations); n != 1<<(32-bits)-1 {
				t.Errorf("/%d: %d destinations", bits, n)
			}
			if len(tables.Destinations) != 1 || tables.Destinations[0].Match.Bits() != bits || c.Expect.Destination.Prefix != tables.Destinations[0].To {
				t.Errorf("/%d: %+v, expected in %v", bits, tables.Destinations, c.Expect.Destination.Prefix)
			}
		}
	}
}
