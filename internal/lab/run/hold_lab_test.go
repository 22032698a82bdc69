package run

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/apply"
	"golang.org/x/sys/unix"
)

// serveHeld is `natkit bench serve --tcp AT --limit N`.
func serveHeld(at, limit string) int {
	colon := strings.LastIndexByte(at, ':')
	addr, err1 := netip.ParseAddr(at[:colon])
	ports, err2 := nat.ParsePorts(at[colon+1:])
	n, err3 := strconv.Atoi(limit)
	if errors.Join(err1, err2, err3) != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if _, err := loadrun.ServeTCP(ctx, loadrun.ServeTCPConfig{Listen: addr, Ports: ports, Limit: n}); err != nil {
		return 1
	}
	return 0
}

// million is the scenario with a few connections, of which those that cannot be opened are given up soon.
func million(t *testing.T, connections int) *lab.Scenario {
	t.Helper()
	sc, err := lab.Find("million")
	if err != nil {
		t.Fatal(err)
	}
	if sc, err = sc.With(lab.Overrides{Connections: connections}); err != nil {
		t.Fatal(err)
	}
	for i := range sc.Stages {
		st := &sc.Stages[i]
		if slices.Contains(sc.Expect.Hold, st.Name) { // its limit is for machines that hang
			continue
		}
		st.Doctor.For = testutil.Patience(3 * time.Second) // a second after the first SYNs they are sent again, and dropped again
		st.Limit = testutil.Patience(8 * time.Second)
	}
	return sc
}

// held are the connections of each stage that stood and were alive.
func held(r *lab.Report) map[string][2]int64 {
	all := map[string][2]int64{}
	for i := range r.Stages {
		h := r.Stages[i].Held()
		all[r.Stages[i].Name] = [2]int64{h.Established, h.Alive}
	}
	return all
}

// TestMillion: nothing of the host changes, so the stages that need that are left out.
func TestMillion(t *testing.T) {
	hostUnchanged(t)
	const n = 3000
	o := options(t)
	o.Server = build.Builtin
	r, err := Run(t.Context(), million(t, n), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.ExpectationMet {
		t.Errorf("expectation not met: %+v", r.Verdict)
	}
	if diff := cmp.Diff([]string{"raised", "sized"}, r.LeftOut); diff != "" {
		t.Errorf("stages left out: %s", diff)
	}
	got := held(r)
	if want := [2]int64{n, 1000}; got["bare"] != want || got["notrack"] != want {
		t.Errorf("stood and alive: %v, want %v in bare and notrack", got, want)
	}
	// 65,536 places of a million; entries of a fill may expire, and one place each stays free.
	if free := int64(n * 65536 / 1_000_000); got["default"][0] < free-1 || got["default"][0] > free+20 {
		t.Errorf("%d connections stood with %d free places", got["default"][0], free)
	}
	for name, tracked := range map[string]bool{"bare": false, "default": true, "notrack": false} {
		if s := r.Stage(name); (s.TableEntries > 0) != tracked {
			t.Errorf("stage %s: %d entries in the table, want some: %t", name, s.TableEntries, tracked)
		}
	}
	h := r.Stage("bare").Held()
	if h.Of("TCP") < 1000 || h.MemoryPerConnection < h.Of("TCP") || len(h.Series) == 0 {
		t.Errorf("%.0f bytes of cache TCP, %.0f in all for each connection, %d points in the course", h.Of("TCP"), h.MemoryPerConnection, len(h.Series))
	}
	if text, err := json.Marshal(r); err != nil || !strings.Contains(string(text), `"established_per_second"`) {
		t.Errorf("the report in JSON has no rate, error %v", err)
	}
}

// TestMillionSized: with few buckets the kernel refuses connections, and with doctor's remedy all stand.
func TestMillionSized(t *testing.T) {
	hostUnchanged(t)
	before, err := apply.ReadSysctlInt("/proc", lab.HostSysctls[1])
	if err != nil {
		t.Fatal(err)
	}
	const n = 30_000 // with 512 buckets, the fewest
	o := options(t)
	o.Server, o.AllowHost, o.Force = build.Builtin, true, true
	sc := million(t, n)
	for _, name := range []string{"default", "notrack"} { // as without consent
		sc.Stages = slices.DeleteFunc(sc.Stages, func(st lab.Stage) bool { return st.Name == name })
	}
	sc.Expect = lab.Expect{Finding: "ct-chain-cap", Hold: []string{"bare", "sized"}}
	r, err := Run(t.Context(), sc, o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.ExpectationMet {
		t.Errorf("expectation not met: %+v", r.Verdict)
	}
	raised := r.Stage("raised")
	if h := raised.Held(); h.Established == n || raised.Counters["chaintoolong"] == 0 {
		t.Errorf("stage raised: %d connections stood, chaintoolong %d", h.Established, raised.Counters["chaintoolong"])
	}
	if sized := r.Stage("sized"); sized.TableEntries == 0 { // those that are closed live ten seconds
		t.Errorf("stage sized: %d entries", sized.TableEntries)
	}
	if after, err := apply.ReadSysctlInt("/proc", lab.HostSysctls[1]); err != nil || after != before {
		t.Errorf("%s was %d and is %d (%v)", lab.HostSysctls[1], before, after, err)
	}
}

// TestMillionInterrupted: the report has what was reached.
func TestMillionInterrupted(t *testing.T) {
	hostUnchanged(t)
	o := options(t)
	o.Server = build.Builtin
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = func(text string) { // the second stage cannot open all of its connections
		if strings.HasPrefix(text, "default: ") {
			cancel()
		}
	}
	sc := million(t, 3000)
	sc.Expect = lab.Expect{Hold: []string{"bare"}} // which is met
	r, err := Run(ctx, sc, o)
	if !errors.Is(err, context.Canceled) || r == nil {
		t.Fatalf("an interrupted run ends with %v, report %v", err, r)
	}
	if !r.Interrupted || r.ExpectationMet || len(r.Stages) != 2 || r.Stages[0].Held().Established != 3000 {
		t.Errorf("interrupted %t, as expected %t, stages %v", r.Interrupted, r.ExpectationMet, held(r))
	}
}

// TestMillionServerStops: connections that a server has ended are lost, and those that it does not take fail.
func TestMillionServerStops(t *testing.T) {
	hostUnchanged(t)
	o := options(t)
	o.Server = build.Builtin
	sc := million(t, 3000)
	sc.Stages, sc.Expect = sc.Stages[:1], lab.Expect{Hold: []string{"bare"}}
	sc.Load.Keep = testutil.Patience(time.Minute) // ends as soon as none is left
	var once sync.Once
	o.Progress = func(text string) {
		if strings.Contains(text, "3,000 of 3,000") {
			once.Do(func() { killServer(t) })
		}
	}
	r, err := Run(t.Context(), sc, o)
	if err != nil {
		t.Fatal(err)
	}
	if h := r.Stages[0].Held(); r.ExpectationMet || h.Established != 3000 || h.Lost != 3000 || h.Alive != 0 {
		t.Errorf("as expected %t, %d stood, %d were lost, %d alive, failures %v", r.ExpectationMet, h.Established, h.Lost, h.Alive, h.Failures)
	}
}

// killServer kills the server that holds connections, a process that this one has started.
func killServer(t *testing.T) {
	for _, dir := range globProc(t) {
		text, err := os.ReadFile(dir + "/cmdline")
		if err == nil && strings.Contains(string(text), "\x00--tcp\x00198.19.0.2:8100-8119\x00") {
			pid, _ := strconv.Atoi(strings.TrimPrefix(dir, "/proc/"))
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("no server that holds connections")
}
