package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// lvsSchema names the JSON form of --lvs.
const lvsSchema = "natkit.lvs/1"

// lvsDocument is the JSON form.
type lvsDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Source  string `json:"source"`
	Kernel  string `json:"kernel"`
	// CountedPerSecond are new connections by the counter of IPVS; nil for one reading.
	CountedPerSecond *float64         `json:"counted_per_second,omitempty"`
	Sysctls          snapshot.Sysctls `json:"sysctls,omitempty"`
	Notes            []string         `json:"notes,omitempty"`
	IPVS             *snapshot.IPVS   `json:"ipvs"`
}

// runLVS tells of the kernel's load balancer instead of NAT's ports.
func (p *portsVerb) runLVS(cmd *cobra.Command) error {
	if err := p.checkLVS(cmd); err != nil {
		return err
	}
	doc := lvsDocument{Schema: lvsSchema, Version: p.env.Version, Source: p.entries.name()}
	rec, err := p.recordLVS(cmd, &doc)
	if err != nil {
		return err
	}
	last := rec.Last()
	if last.IPVS == nil {
		return noIPVS(doc.Source, last)
	}
	doc.Kernel, doc.IPVS, doc.Sysctls = last.Kernel.Release, last.IPVS, snapshot.Sysctls{}
	for name, value := range last.Sysctls {
		if strings.HasPrefix(name, snapshot.IPVSPrefix) {
			doc.Sysctls[name] = value
		}
	}
	for _, part := range []string{"ipvs", "ipvs_connections"} {
		if why := last.PartError(part); why != "" {
			doc.Notes = append(doc.Notes, why)
		}
	}
	doc.CountedPerSecond = countedByIPVS(rec)
	return p.showLVS(&doc)
}

func (p *portsVerb) checkLVS(cmd *cobra.Command) error {
	if p.entries.fromText(cmd) {
		return p.entries.check(cmd)
	}
	if p.window == 0 {
		return nil
	}
	return checkWindow(p.window, minWindow)
}

// noIPVS says why there is nothing to show.
func noIPVS(source string, s *snapshot.Snapshot) error {
	if why := s.PartError("ipvs"); why != "" {
		return errors.New(why)
	}
	return fmt.Errorf("read IPVS of %s: /proc/net/ip_vs is not there: the module ip_vs is not loaded ('ipvsadm -A …' loads it), or this kernel has none (CONFIG_IP_VS)", source)
}

// recordLVS reads the kernel, or a bundle.
func (p *portsVerb) recordLVS(cmd *cobra.Command, doc *lvsDocument) (*snapshot.Recording, error) {
	if p.entries.fromText(cmd) {
		doc.Source = "bundle " + p.entries.from
		return readBundleFile(p.env, p.entries.from, snapshot.DefaultBudget)
	}
	ns, err := p.entries.open(cmd)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	progress := p.env.progress()
	defer progress.Clear()
	return collect.RecordIPVS(cmd.Context(), collect.RecordOptions{
		Options: collect.Options{Netns: ns}, For: p.window, Progress: progress.Show,
	})
}

// countedByIPVS is nil where there are not two readings of the counter.
func countedByIPVS(rec *snapshot.Recording) *float64 {
	first, last := rec.First().IPVS, rec.Last().IPVS
	seconds := rec.Seconds()
	if first == nil || first.Stats == nil || last.Stats == nil || seconds <= 0 || last.Stats.Connections < first.Stats.Connections {
		return nil
	}
	rate := float64(last.Stats.Connections-first.Stats.Connections) / seconds
	return &rate
}

func (p *portsVerb) showLVS(doc *lvsDocument) error {
	if p.asJSON {
		return report.JSON(p.env.Stdout, doc)
	}
	v := report.LVSView{Source: doc.Source, Sysctls: doc.Sysctls, Notes: doc.Notes, CountedKnown: doc.CountedPerSecond != nil}
	if v.CountedKnown {
		v.Counted = *doc.CountedPerSecond
	}
	return report.LVS(p.env.Stdout, p.env.style(), v, doc.IPVS)
}
