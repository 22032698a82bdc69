//go:build !linux

package collect

import (
	"context"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// live is no kernel. What a bundle has is read without it.
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
func (live) namer() func(context.Context) *snapshot.Names        { return nil }
func (live) judged() ([]*ruleset.Table, error)                   { return nil, netns.ErrNotLinux }
func (live) world() (world, error)                               { return nil, netns.ErrNotLinux }
func (live) machine() (machine, error)                           { return machine{}, netns.ErrNotLinux }
func (live) traced(now *snapshot.Trace) (*snapshot.Trace, error) { return now, nil }
func (live) clock(string) instant                                { return instant{Wall: time.Now().UTC()} }
func (live) table(context.Context, func([]byte) error) (dump.Result, error) {
	return dump.Result{}, netns.ErrNotLinux
}

func none[T any]() (*T, error) { return nil, netns.ErrNotLinux }

func askNATRules() (*snapshot.NATRules, error)           { return none[snapshot.NATRules]() }
func askPrograms() (*snapshot.Programs, error)           { return none[snapshot.Programs]() }
func askLinks() (*snapshot.Links, error)                 { return none[snapshot.Links]() }
func askIPsecPolicies() (*[]snapshot.IPsecPolicy, error) { return none[[]snapshot.IPsecPolicy]() }
func askIPVSTimeouts() (*snapshot.IPVSTimeouts, error)   { return none[snapshot.IPVSTimeouts]() }
func (localPorts) ask() (*snapshot.OwnPorts, error)      { return none[snapshot.OwnPorts]() }

// SurveyOptions would specify how the other network namespaces are read.
type SurveyOptions struct{}

type survey struct{}

func (RecordOptions) startSurvey(context.Context) *survey   { return nil }
func (*survey) finish(context.Context, *snapshot.Recording) {}
