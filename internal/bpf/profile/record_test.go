package profile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/profile"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// TestDNATHasItsShare profiles real DNAT, and finds its kinds of work.
func TestDNATHasItsShare(t *testing.T) {
	network := newDNATNetwork(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sender sync.WaitGroup
	var sent int64
	sender.Go(func() { sent = network.flood(t, ctx, 20_000) })
	var collector profile.Collector
	stacks := &profile.Stacks{Event: "cpu-clock"}
	missing := dnatClasses
	for end := time.Now().Add(testutil.Patience(2 * time.Minute)); len(missing) > 0 && time.Now().Before(end); {
		s, err := record(t.Context(), Options{Hz: 997}, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		checkSums(t, s.Summarize())
		join(&collector, stacks, s)
		missing = without(stacks.Summarize())
	}
	cancel()
	sender.Wait()
	if sent == 0 {
		t.Fatal("nothing was sent")
	}
	keep(t, stacks)
	checkSums(t, stacks.Summarize())
	if len(missing) > 0 {
		t.Errorf("no sample of %q in packet receive, of %d", missing, stacks.Summarize().Receive)
	}
}

// dnatClasses are what the gateway's packets pass through.
var dnatClasses = []string{"conntrack lookup", "conntrack insert", "NAT setup", "NAT rewrite", "rules", "routing"}

// without lists those of them without samples in packet receive.
func without(p *snapshot.Profile) []string {
	return slices.DeleteFunc(slices.Clone(dnatClasses), func(class string) bool { return inReceive(p, class) > 0 })
}

// join adds a recording to those before.
func join(c *profile.Collector, all, s *profile.Stacks) {
	idle := all.Idle + s.Idle
	for _, stack := range s.Stacks {
		c.Add(stack.Frames, stack.Count, false)
	}
	c.Into(all)
	all.Idle = idle
	all.Kernel, all.Hz, all.CPUs = s.Kernel, s.Hz, s.CPUs
	all.Seconds += s.Seconds
	all.Lost += s.Lost
}

// keep writes the stacks to the directory NATKIT_KEEP_PROFILE, for inspection.
func keep(t *testing.T, s *profile.Stacks) {
	dir := os.Getenv("NATKIT_KEEP_PROFILE")
	if dir == "" {
		return
	}
	for name, write := range map[string]func(io.Writer) error{"flame.html": s.WriteFlame, "folded.txt": s.WriteFolded} {
		var text bytes.Buffer
		if err := write(&text); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func inReceive(p *snapshot.Profile, class string) uint64 {
	for _, c := range p.Classes {
		if c.Name == class && c.Receive {
			return c.Samples
		}
	}
	return 0
}

func checkSums(t *testing.T, p *snapshot.Profile) {
	t.Helper()
	var all, receive, self uint64
	for _, c := range p.Classes {
		all += c.Samples
		if c.Receive {
			receive += c.Samples
		}
	}
	for _, f := range p.Functions {
		self += f.Self
	}
	if all != p.Samples || receive != p.Receive || self != p.Samples {
		t.Errorf("classes sum up to %d, receive's to %d, functions to %d; samples %d, receive %d", all, receive, self, p.Samples, p.Receive)
	}
	want := p.Seconds * float64(p.Hz*p.CPUs)
	if got := float64(p.Samples + p.Idle + p.Lost); got < want-1 || got > want*1.02+float64(p.CPUs)+1 {
		t.Errorf("%.0f samples of %.0f", got, want)
	}
}

// TestBusyIsSampled: a CPU that is busy gives all its samples, with the command's
// name.
func TestBusyIsSampled(t *testing.T) {
	testutil.NeedRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	cpu := make(chan int, 1)
	var spinner sync.WaitGroup
	spinner.Go(func() { cpu <- 0; spin(ctx) })
	defer spinner.Wait()
	defer cancel()
	<-cpu
	s, err := record(t.Context(), Options{Hz: 499}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	checkSums(t, s.Summarize())
	var user uint64
	for _, stack := range s.Stacks {
		if f := stack.Frames[0]; f == (profile.Frame{Function: ownName(t), Module: profile.User}) {
			user += stack.Count
		}
	}
	if user == 0 {
		t.Errorf("no sample of this process, of %d", s.Samples())
	}
	if s.Lost > 0 {
		t.Errorf("%d samples were lost", s.Lost)
	}
}

func ownName(t *testing.T) string {
	t.Helper()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(comm))
}

func spin(ctx context.Context) {
	for n := 0; ; n++ {
		if n%1000 == 0 && ctx.Err() != nil {
			return
		}
	}
}

// TestStopsEarly: a context that ends is no error.
func TestStopsEarly(t *testing.T) {
	testutil.NeedRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	s, err := record(ctx, Options{}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if s.Seconds <= 0 || s.Seconds >= 3600 {
		t.Errorf("%v s", s.Seconds)
	}
	if s.Hz != DefaultHz || s.Kernel == "" {
		t.Errorf("%+v", s)
	}
}

func TestStartRefuses(t *testing.T) {
	testutil.NeedRoot(t)
	if _, err := Start(Options{CPUs: []int{0, maxCPU - 1}}); !errors.Is(err, ErrNoCPU) {
		t.Errorf("a processor that is not there: %v", err)
	}
	for _, hz := range []int{-1, MaxHz + 1} {
		if _, err := Start(Options{Hz: hz}); err == nil || !strings.Contains(err.Error(), "must be from 1 to") {
			t.Errorf("%d Hz: %v", hz, err)
		}
	}
}

// TestLeavesNothing: files and programs end with the recording.
func TestLeavesNothing(t *testing.T) {
	testutil.NeedRoot(t)
	record := func() {
		t.Helper()
		if _, err := record(t.Context(), Options{}, 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	record() // the library keeps some files open
	before := openFiles(t)
	record()
	if after := openFiles(t); after > before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestCommand(t *testing.T) {
	for _, tt := range []struct{ comm, want string }{
		{"nginx", "nginx"},
		{"kworker/0:1", "kworker/0:1"},
		{"a b;c\x1b[2J\n", "a_b_c_[2J_"},
		{"\xff\xfe", "__"},
		{"日本", "日本"},
	} {
		var text [16]byte
		copy(text[:15], tt.comm)
		words := []uint64{binary.NativeEndian.Uint64(text[:8]), binary.NativeEndian.Uint64(text[8:])}
		if got := command(words); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.comm, got, tt.want)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for _, tt := range []struct {
		list string
		want []int // nil for an error
	}{
		{"0", []int{0}}, {"0-3,8\n", []int{0, 1, 2, 3, 8}}, {"8,1-2,2", []int{1, 2, 8}},
		{"", nil}, {",", nil}, {"1-", nil}, {"-1", nil}, {"3-1", nil}, {"a", nil}, {"0-99999", nil},
		{"1--2", nil}, {"+1", nil}, {"0-8192", nil},
	} {
		got, err := ParseCPUs(tt.list)
		if (err != nil) != (tt.want == nil) || len(got) != len(tt.want) {
			t.Errorf("%q: %v, %v", tt.list, got, err)
		}
		for i := range got {
			if i < len(tt.want) && got[i] != tt.want[i] {
				t.Errorf("%q: %v", tt.list, got)
			}
		}
	}
}

func TestExplainOpen(t *testing.T) {
	for err, want := range map[error]string{
		unix.EACCES: "perf_event_paranoid", unix.EINVAL: "perf_event_max_sample_rate",
		unix.ENOSYS: "CONFIG_PERF_EVENTS", unix.EIO: "input/output",
	} {
		if got := explainOpen(err); !errors.Is(got, err) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// record samples for a time, or until ctx ends, which is no error.
func record(ctx context.Context, opt Options, window time.Duration) (*profile.Stacks, error) {
	p, err := Start(opt)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
	}
	return p.Stop()
}
