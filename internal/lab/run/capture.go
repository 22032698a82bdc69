package run

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/capture"
)

// CaptureOptions say where packets are captured while stages run.
type CaptureOptions struct {
	// Dir gets the files; nothing is captured where it is empty.
	Dir string
	capture.Options
}

// recording is a file that is being written.
type recording struct {
	*capture.Capture
	about lab.Capture
}

// captured runs the load of a stage while the packets of every node are captured. A
// capture that cannot begin is an error; what becomes of one later stands in the report,
// and the stage is not the worse for it.
func (c *conductor) captured(st *lab.Stage, load func() error) error {
	if c.Capture.Dir == "" {
		return load()
	}
	recordings, err := c.startCaptures(st)
	err = errors.Join(err, load()) // doctor waits for the load's end
	for _, r := range recordings {
		got, failed := r.Stop()
		r.about.Packets, r.about.Bytes, r.about.Dropped, r.about.Cut = got.Packets, got.Bytes, got.Dropped, got.Cut
		if failed != nil {
			r.about.Error = failed.Error()
		}
		c.report.Captures = append(c.report.Captures, r.about)
	}
	return err
}

func (c *conductor) startCaptures(st *lab.Stage) ([]recording, error) {
	var all []recording
	var errs []error
	round := c.round(st.Name)
	vantages := c.sc.Vantages()
	o := c.Capture.Options
	o.RingBytes = ringBytes(c.sc, st, len(vantages))
	for _, v := range vantages {
		about := lab.Capture{Stage: st.Name, Round: round, Node: v.Node, Side: v.Side, Interfaces: v.Interfaces}
		about.File = filepath.Join(c.Capture.Dir, captureName(about))
		one, err := capture.Start(c.node(v.Node), v.Interfaces, about.File, o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, recording{one, about})
	}
	return all, errors.Join(errs...)
}

// mostRings is the memory of all rings that are in use at the same time.
const mostRings = 192 << 20

// ringBytes shares it between the stages that run at the same time.
func ringBytes(sc *lab.Scenario, st *lab.Stage, vantages int) int {
	rings := vantages
	if st.Apart {
		rings = 0
		for i := range sc.Stages {
			if sc.Stages[i].Apart {
				rings += vantages
			}
		}
	}
	return min(capture.DefaultRingBytes, mostRings/max(rings, 1))
}

// round is how often a stage has been captured, this time included.
func (c *conductor) round(stage string) int {
	most := 0
	for _, done := range c.report.Captures {
		if done.Stage == stage {
			most = max(most, done.Round)
		}
	}
	return most + 1
}

// captureName is fault-gateway-inside.pcapng, and fault.2-… where the stage runs again:
// names of stages have no dots.
func captureName(c lab.Capture) string {
	stage := c.Stage
	if c.Round > 1 {
		stage = fmt.Sprintf("%s.%d", stage, c.Round)
	}
	side := ""
	if c.Side != "" {
		side = "-" + c.Side
	}
	return stage + "-" + c.Node + side + ".pcapng"
}
