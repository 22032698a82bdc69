package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
)

// look is one reading of the table.
type look struct {
	collector *ports.Collector
	about     entriesAbout
	// middle is when entries were read, on average.
	middle time.Time
	rules  *snapshot.NATRules
	shared func([]snapshot.PortPool) ([]snapshot.SharedAddress, error)
}

// look reads rules and table.
func (p *portsVerb) look(cmd *cobra.Command) (*look, error) {
	l := &look{}
	p.notes = nil
	if p.entries.fromText(cmd) {
		p.notes = append(p.notes, "a list of entries tells neither kernel nor rules: taken to be Linux 5.0 or later, with the kernel's own ranges")
	} else if err := p.readHost(cmd, l); err != nil {
		return nil, err
	}
	began := time.Now()
	fresh := func() {
		began = time.Now()
		l.collector = ports.NewCollector(ports.Options{Now: began, Addresses: ports.Given(l.rules)})
	}
	fresh()
	p.entries.restart = fresh
	var err error
	l.about, err = p.entries.each(cmd, p.env, nil, func(e *conntrack.Entry) error {
		l.collector.Add(e)
		return nil
	})
	l.middle = began.Add(time.Since(began) / 2)
	return l, err
}

// readHost reads what is not in the table. Without it the ports are told all the same.
func (p *portsVerb) readHost(cmd *cobra.Command, l *look) error {
	ns, err := p.entries.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	if l.rules, err = natrules.Read(ns); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("the NAT rules are not known (%v): ranges are taken to be the kernel's own", err))
	}
	if p.query.Release, err = collect.Release(); err != nil {
		return err
	}
	sockets, err := collect.Sockets(ns)
	l.shared = func(pools []snapshot.PortPool) ([]snapshot.SharedAddress, error) {
		return ports.SharedWith(pools, sockets), err
	}
	return nil
}
