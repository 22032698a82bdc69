package cli

import (
	"bufio"
	"io"
	"math"
	"math/rand/v2"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune/apply"
)

// newBuffered writes many small pieces at a time.
func newBuffered(w io.Writer) *bufio.Writer { return bufio.NewWriterSize(w, 64<<10) }

// overviewDocument is the JSON form of the overview.
type overviewDocument struct {
	Schema  string       `json:"schema"`
	Version string       `json:"version"`
	Read    entriesAbout `json:"read"`
	Filter  string       `json:"filter,omitempty"`
	// Count and Max are nf_conntrack_count and _max, of a table that was read now.
	Count int64 `json:"nf_conntrack_count,omitempty"`
	Max   int64 `json:"nf_conntrack_max,omitempty"`
	*aggregate.Overview
}

func (c *conntrackVerb) overview(cmd *cobra.Command) error {
	counted, about, err := c.count(cmd, func() counter {
		return aggregate.NewSummary(c.memory.forGroups(rand.Uint64()))
	})
	if err != nil {
		return err
	}
	doc := overviewDocument{Schema: conntrackSchema, Version: c.env.Version, Read: about, Filter: c.filter.String()}
	timeouts := aggregate.Timeouts{}
	if about.Live {
		if timeouts, err = c.look(cmd, &doc); err != nil {
			return err
		}
	}
	doc.Overview = counted.(*aggregate.Summary).Overview(c.top, timeouts)
	if c.asJSON {
		return report.JSON(c.env.Stdout, doc)
	}
	o := report.Overview{Overview: doc.Overview, Source: about.Source, Filter: doc.Filter, Count: doc.Count, Max: doc.Max}
	return o.Text(c.env.Stdout, c.env.style())
}

// look reads what is known of a table besides its entries.
func (c *conntrackVerb) look(cmd *cobra.Command, doc *overviewDocument) (aggregate.Timeouts, error) {
	ns, err := c.entries.open(cmd)
	if err != nil {
		return aggregate.Timeouts{}, err
	}
	defer ns.Close()
	usage, err := dump.Count(ns)
	if err != nil {
		return aggregate.Timeouts{}, err
	}
	doc.Count, doc.Max = usage.Entries, usage.Max
	return readTimeouts(ns), nil
}

// readTimeouts has zeros for what cannot be read, as in a container without these files.
func readTimeouts(ns *netns.Handle) (t aggregate.Timeouts) {
	read := func() error {
		t.Established = timeout("established")
		t.Short = max(timeout("unacknowledged"), timeout("max_retrans"))
		return nil
	}
	if ns == nil {
		read()
		return t
	}
	if ns.Do(read) != nil {
		return aggregate.Timeouts{}
	}
	return t
}

func timeout(of string) uint32 {
	n, err := apply.ReadSysctlInt("/proc", "net.netfilter.nf_conntrack_tcp_timeout_"+of)
	if err != nil || n < 0 {
		return 0
	}
	return uint32(min(n, math.MaxUint32))
}
