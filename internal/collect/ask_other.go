//go:build !linux

package collect

import (
	"context"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// live is no kernel: each question to it is answered by an error.
type live struct{}

func newLive(Options) live { return live{} }

func (live) inside(func() error) error { return netns.ErrNotLinux }
func (live) readStart(string, int, time.Duration) ([]byte, bool, error) {
	return nil, false, netns.ErrNotLinux
}
func (live) list(string, string) ([]string, error)               { return nil, netns.ErrNotLinux }
func (live) counters(context.Context, func([]byte) error) error  { return netns.ErrNotLinux }
func (live) kernelLog(func([]byte) bool) (uint64, error)         { return 0, netns.ErrNotLinux }
func (live) answer(question, any, func() error) error            { return netns.ErrNotLinux }
func (live) structSize(string) (int, error)                      { return 0, netns.ErrNotLinux }
func (live) machine() (machine, error)                           { return machine{}, netns.ErrNotLinux }
func (live) judged() ([]*ruleset.Table, error)                   { return nil, netns.ErrNotLinux }
func (live) world() (world, error)                               { return nil, netns.ErrNotLinux }
func (live) traced(now *snapshot.Trace) (*snapshot.Trace, error) { return now, nil }
func (live) clock(string) instant                                { return instant{Wall: time.Now().UTC()} }
func (live) table(context.Context, func([]byte) error) (dump.Result, error) {
	return dump.Result{}, netns.ErrNotLinux
}

// What the kernel would be asked.
func askNATRules() (*snapshot.NATRules, error)           { return nil, netns.ErrNotLinux }
func askPrograms() (*snapshot.Programs, error)           { return nil, netns.ErrNotLinux }
func askLinks() (*snapshot.Links, error)                 { return nil, netns.ErrNotLinux }
func askIPsecPolicies() (*[]snapshot.IPsecPolicy, error) { return nil, netns.ErrNotLinux }
func askIPVSTimeouts() (*snapshot.IPVSTimeouts, error)   { return nil, netns.ErrNotLinux }
func (localPorts) ask() (*snapshot.OwnPorts, error)      { return nil, netns.ErrNotLinux }

// mappings are none: programs are attached on Linux alone.
type mappings struct{}

// mapped is a mapping of a destination.
type mapped struct {
	Protocol uint8
	On, To   netip.AddrPort
}

func openMappings() (*mappings, error) { return nil, netns.ErrNotLinux }

func (*mappings) Close() error                       { return nil }
func (*mappings) Destinations(int) ([]mapped, error) { return nil, nil }
func (*mappings) Destination(int, uint8, netip.AddrPort) (netip.AddrPort, bool) {
	return netip.AddrPort{}, false
}
func (*mappings) Source(int, uint8, netip.AddrPort) (netip.AddrPort, bool) {
	return netip.AddrPort{}, false
}

// SurveyOptions specify nothing: there are no other network namespaces.
type SurveyOptions struct{}

type survey struct{}

func (RecordOptions) startSurvey(context.Context) *survey   { return nil }
func (*survey) finish(context.Context, *snapshot.Recording) {}
