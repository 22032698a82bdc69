package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestMain lets the test binary stand in for natkit where a lab starts it again.
func TestMain(m *testing.M) {
	if build.IsInit() {
		os.Exit(build.InitMain())
	}
	os.Exit(m.Run())
}

// patient never calls a trial invalid: a busy machine makes the sender late.
var patient = rfc9693.Tolerance{Overrun: time.Hour, Late: time.Hour}

// frames go to ports of one address.
func frames(to netip.Addr) packets.Config {
	cfg := packets.Config{
		Spec: packets.Spec{Protocol: unix.IPPROTO_UDP, Sizes: []int{64}, HopLimit: 64}, Workers: 1,
		Flows: packets.Flows{Sources: []netip.Addr{LabInitiator}, SourcePorts: nat.Ports{First: 1024, Last: 65535}, Seed: 1},
	}
	for port := uint16(1024); port < 1032; port++ {
		cfg.Flows.Destinations = append(cfg.Flows.Destinations, netip.AddrPortFrom(to, port))
	}
	return cfg
}

func openLab(t *testing.T, o LabOptions) (*Lab, *Gateway) {
	t.Helper()
	testutil.NeedRoot(t)
	o.Dir = t.TempDir()
	l, err := OpenLab(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := l.Gateway(frames(LabDestination(o.NAT)))
	if err != nil {
		t.Fatal(err)
	}
	g.Tolerance = patient
	return l, g
}

// few connections have place in every queue on the way, so that none is lost however slow the machine is.
const few = 200

var aFew = rfc9693.Trial{Connections: few, PerSecond: 20_000}

func TestEstablish(t *testing.T) {
	masquerade := `
    - masquerade: {from: 198.18.0.0/24, out: eth1}
`
	file, err := gateway.Parse("test.yaml", []byte("gateway:\n  nat:"+masquerade))
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]LabOptions{
		"masquerade": {NAT: Masquerade}, "dnat": {NAT: DNAT}, "a file": {NAT: Masquerade, Config: &file.Config},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.ShareHost(t)
			l, g := openLab(t, o)
			if err := g.Probe(t.Context(), few); err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{few, few / 2} { // the second begins with an empty table, too
				all, try := int64(n), rfc9693.Trial{Connections: n, PerSecond: aFew.PerSecond}
				o, err := g.Establish(t.Context(), try)
				want := rfc9693.Outcome{Trial: try, Verdict: rfc9693.Passed, Sent: all, Arrived: all, Replied: all, Returned: all, LateSeconds: o.LateSeconds, OverrunSeconds: o.OverrunSeconds}
				if err != nil || o != want {
					t.Fatalf("%+v, %v", o, err)
				}
				if u, err := dump.Count(l.Netns()); err != nil || u.Entries != all {
					t.Errorf("%d entries, want %d: %v", u.Entries, all, err)
				}
			}
			if took, err := g.Empty(t.Context()); err != nil || took <= 0 {
				t.Errorf("%v, %v", took, err)
			}
			if u, err := dump.Count(l.Netns()); err != nil || u.Entries != 0 {
				t.Errorf("%d entries are left, %v", u.Entries, err)
			}
		})
	}
}

// TestInvalid: a sender that is late makes a trial invalid, whatever arrived.
func TestInvalid(t *testing.T) {
	testutil.ShareHost(t)
	_, g := openLab(t, LabOptions{NAT: Masquerade})
	g.Tolerance = rfc9693.Tolerance{Overrun: -time.Hour} // no sender is that early
	cfg := rfc9693.Config{Measure: []rfc9693.Measurement{rfc9693.Rate}, Connections: 40, MaxRate: 20_000, MaxConnections: 40, Precision: 0.5, Repeat: 1}
	r, err := rfc9693.Measure(t.Context(), cfg, g, nil)
	if err == nil || !strings.Contains(err.Error(), "the sender did not keep to any rate") {
		t.Fatal(err)
	}
	for _, o := range r.Rates[0].Trials {
		if o.Verdict != rfc9693.Invalid {
			t.Errorf("%+v", o)
		}
	}
	if f := r.Rates[0]; f.Limit != rfc9693.ByGenerator || f.Value != 0 || r.Rate != nil {
		t.Errorf("%+v, %+v", f, r.Rate)
	}
}

// TestNothingArrives: a gateway that drops everything fails a trial, and Probe says so.
func TestNothingArrives(t *testing.T) {
	l, g := openLab(t, LabOptions{NAT: Masquerade})
	testutil.Nft(t, l.Netns(), "table ip filter { chain forward { type filter hook forward priority 0; policy drop; }; }")
	if o, err := g.Establish(t.Context(), aFew); err != nil || o.Verdict != rfc9693.Failed || o.Arrived != 0 {
		t.Errorf("%+v, %v", o, err)
	}
	if err := g.Probe(t.Context(), few); err == nil || !strings.Contains(err.Error(), "none of the first") {
		t.Error(err)
	}
}

// TestRepliesAreLost: connections whose frames all arrived, and whose replies do not.
func TestRepliesAreLost(t *testing.T) {
	for name, tt := range map[string]struct {
		drops       string
		least, most int64
	}{
		"some": {"udp dport < 30000", 1, few - 1},
		"all":  {"ip protocol udp", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, g := openLab(t, LabOptions{NAT: Masquerade})
			testutil.Nft(t, l.Netns(), `table ip filter { chain forward { type filter hook forward priority 0; iifname "eth1" `+tt.drops+` drop; }; }`)
			o, err := g.Establish(t.Context(), aFew)
			if err != nil || o.Verdict != rfc9693.Failed || o.Arrived != few || o.Returned < tt.least || o.Returned > tt.most {
				t.Errorf("%+v, %v", o, err)
			}
			if err := g.Probe(t.Context(), few); err == nil {
				t.Error("Probe is content")
			}
		})
	}
}

// partly is a table of which only what the trials made is deleted.
type partly struct{ Namespace }

func (p partly) Empty(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, err := dump.Delete(ctx, p.Netns, &conntrack.Filter{Mark: 0, MarkMask: ^uint32(0)})
	return time.Since(start), err
}

// TestCapacity finds how many connections have room in a table that others nearly fill, with entries that
// the kernel does not evict. No trial has more than a few.
func TestCapacity(t *testing.T) {
	testutil.ShareHost(t)
	l, g := openLab(t, LabOptions{NAT: Masquerade})
	g.Table = partly{Namespace{l.Netns()}}
	u, err := dump.Count(l.Netns())
	if err != nil {
		t.Fatal(err)
	}
	const room = few / 3
	mix, err := lab.FindMix("established")
	if err == nil {
		_, err = build.InsertFill(t.Context(), l.Netns(), mix.Filler(0, lab.FillMark), 0, u.Max-room, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg := rfc9693.Config{Measure: []rfc9693.Measurement{rfc9693.Capacity}, Connections: few / 10, MaxRate: 20_000, MaxConnections: few, Precision: rfc9693.MinPrecision, Repeat: 1}
	r, err := rfc9693.Measure(t.Context(), cfg, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := r.Capacities[0]
	if f.Value != room || f.Above != room+1 || f.Limit != rfc9693.ByGateway {
		t.Errorf("from %v to %v by %s, and there is room for %d: %+v", f.Value, f.Above, f.Limit, room, f.Trials)
	}
}

// ends is a table with which the context of a run ends, when it was emptied so often.
type ends struct {
	Table
	after  int
	cancel context.CancelFunc
}

func (e *ends) Empty(ctx context.Context) (time.Duration, error) {
	if e.after--; e.after == 0 {
		e.cancel()
	}
	return e.Table.Empty(context.WithoutCancel(ctx))
}

// TestInterrupted: the lab can be left in the middle of a trial.
func TestInterrupted(t *testing.T) {
	_, g := openLab(t, LabOptions{NAT: Masquerade})
	ctx, cancel := context.WithCancel(t.Context())
	cfg := rfc9693.Config{Measure: rfc9693.Measurements, Connections: few, MaxRate: 20_000, MaxConnections: few, Precision: 0.1, Repeat: 2}
	g.Table = &ends{g.Table, 2, cancel}
	r, err := rfc9693.Measure(ctx, cfg, g, nil)
	if err != nil || !r.Interrupted {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCommand(t *testing.T) {
	at := filepath.Join(t.TempDir(), "ran")
	if took, err := Command("echo once >>" + at).Empty(t.Context()); err != nil || took <= 0 {
		t.Errorf("%v, %v", took, err)
	}
	if text, err := os.ReadFile(at); err != nil || string(text) != "once\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Command("echo no such table >&2; exit 3").Empty(t.Context()); err == nil || !strings.Contains(err.Error(), "no such table") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Command("exec sleep 60").Empty(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Timeout(time.Minute).Empty(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestCommandIsKilled with what its shell has started: the pipe ends when nobody writes to it any more.
func TestCommandIsKilled(t *testing.T) {
	at := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(at, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Command("(echo began; sleep 20; echo survived) >" + at + " & wait").Empty(ctx)
		ended <- err
	}()
	pipe, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if _, err := io.ReadFull(pipe, make([]byte, len("began\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if rest, err := io.ReadAll(pipe); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestNotSteered(t *testing.T) {
	for err, want := range map[error]bool{nil: false, unix.ENOENT: true, unix.EINVAL: true, unix.EPERM: false} {
		if err != nil {
			err = fmt.Errorf("choose the CPUs of eth0: %w", err)
		}
		if why := notSteered(err); (why != "") != want {
			t.Errorf("%v: %q", err, why)
		}
	}
}
