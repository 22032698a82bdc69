package run

import (
	"testing"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/capture"
)

// TestCaptureNames: no two captures of a run have the same file.
func TestCaptureNames(t *testing.T) {
	c := &conductor{report: &lab.Report{}}
	seen := map[string]bool{}
	for _, stage := range []string{"fault", "fault-2", "fault", "fixed", "fault"} {
		round := c.round(stage)
		for _, v := range []lab.Vantage{{Node: "gateway", Side: lab.Inside}, {Node: "gateway", Side: lab.Outside}, {Node: "server"}} {
			one := lab.Capture{Stage: stage, Round: round, Node: v.Node, Side: v.Side}
			if name := captureName(one); seen[name] {
				t.Errorf("%s is there twice", name)
			} else {
				seen[name] = true
			}
			c.report.Captures = append(c.report.Captures, one)
		}
	}
	for _, name := range []string{"fault-gateway-inside.pcapng", "fault.3-gateway-outside.pcapng", "fault-2-server.pcapng"} {
		if !seen[name] {
			t.Errorf("no %s in %v", name, seen)
		}
	}
}

// TestRingBytes keeps rings that are in use at the same time within their bound.
func TestRingBytes(t *testing.T) {
	sc := &lab.Scenario{Stages: make([]lab.Stage, 20)}
	if got := ringBytes(sc, &sc.Stages[0], 4); got != capture.DefaultRingBytes {
		t.Errorf("4 rings of %d bytes", got)
	}
	for i := range sc.Stages {
		sc.Stages[i].Apart = true
	}
	if got := ringBytes(sc, &sc.Stages[0], 4); got > mostRings/80 || got < 2<<20 {
		t.Errorf("80 rings of %d bytes", got)
	}
}
