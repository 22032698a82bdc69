package lab

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/conntrack"
)

// chain is two routers in a row and a node with two links.
const chain = `
name: chain
title: two routers
topology:
  nodes:
    - name: client
    - {name: inner, forward: true}
    - {name: outer, forward: true}
    - name: server
    - name: watcher
  links:
    - [{node: client, address: 198.18.0.2/24}, {node: inner, address: 198.18.0.1/24}]
    - [{node: inner, address: 198.18.1.1/30}, {node: outer, address: 198.18.1.2/30}]
    - [{node: outer, address: 198.19.0.1/24}, {node: server, address: 198.19.0.2/24}]
    - [{node: outer, address: 198.19.1.1/24}, {node: watcher, address: 198.19.1.2/24}]
    - [{node: inner, address: 198.19.2.1/24}, {node: watcher, address: 198.19.2.2/24}]
  server: {node: server, port: 80}
load: {from: client, concurrency: 1, requests: 1, timeout: 1s}
stages:
  - {name: only, url: http://198.19.0.2/}
`

func TestPlan(t *testing.T) {
	full, err := Find("table-full")
	if err != nil {
		t.Fatal(err)
	}
	bridged, err := full.With(Overrides{Bridge: true})
	if err != nil {
		t.Fatal(err)
	}
	routers, err := Parse("chain.yaml", []byte(chain))
	if err != nil {
		t.Fatal(err)
	}
	for file, s := range map[string]*Scenario{"table-full": full, "table-full-bridge": bridged, "chain": routers} {
		t.Run(file, func(t *testing.T) {
			var b strings.Builder
			for _, line := range s.Lines() {
				b.WriteString("# " + line + "\n")
			}
			for _, step := range s.Plan() {
				b.WriteString(step.String() + "\n")
			}
			path := "testdata/plan/" + file + ".txt"
			if *update {
				if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPlanOrder holds what a plan must keep to: everything in a node after it,
// IPv6 off before its first link.
func TestPlanOrder(t *testing.T) {
	for _, s := range Scenarios() {
		made, quiet := map[string]bool{}, map[string]bool{}
		for _, step := range s.Plan() {
			switch step := step.(type) {
			case AddNode:
				made[step.Node] = true
			case SetSysctl:
				quiet[step.Node] = quiet[step.Node] || step.Name == "net.ipv6.conf.default.disable_ipv6"
			case AddVeth:
				for _, end := range step {
					if !made[end.Node] || !quiet[end.Node] {
						t.Errorf("%s: %s comes before its node is made and quiet", s.Name, step)
					}
				}
			}
			if !made[step.In()] {
				t.Errorf("%s: %s comes before its node", s.Name, step)
			}
		}
	}
}

func TestWithIsACopy(t *testing.T) {
	s, err := Find("table-full")
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.With(Overrides{Concurrency: 7, Requests: 8, Timeout: time.Minute, Bridge: true})
	if err != nil {
		t.Fatal(err)
	}
	want := Load{From: "client", Concurrency: 7, Requests: 8, Timeout: Duration{time.Minute}}
	if diff := cmp.Diff(want, c.Load); diff != "" || !c.UseBridge {
		t.Errorf("load (-want +got):\n%s", diff)
	}
	want = Load{From: "client", Concurrency: 1000, Requests: 50000, Timeout: Duration{2 * time.Second}}
	if diff := cmp.Diff(want, s.Load); diff != "" || s.UseBridge {
		t.Errorf("the original changed (-want +got):\n%s", diff)
	}
	bare := *s
	bare.Topology.Bridge = nil
	for _, tc := range []struct {
		s    *Scenario
		o    Overrides
		want string
	}{
		{s, Overrides{Concurrency: -1}, "concurrency -1: must be 1 or more"},
		{s, Overrides{Requests: -1}, "requests -1: must be 1 or more"},
		{s, Overrides{Timeout: -1}, "timeout -1ns: must be more than 0"},
		{&bare, Overrides{Bridge: true}, "scenario table-full has no bridge in its topology"},
	} {
		if _, err := tc.s.With(tc.o); err == nil || err.Error() != tc.want {
			t.Errorf("%+v: error %v, want %s", tc.o, err, tc.want)
		}
	}
}

func TestFillEntries(t *testing.T) {
	const step = 997 // a sample of all, and the first of each source port
	seen := map[conntrack.Tuple]int{}
	check := func(i int) {
		var e conntrack.Entry
		FillEntry(i, &e)
		if other, twice := seen[e.Orig]; twice && other != i {
			t.Fatalf("entries %d and %d are the same: %+v", other, i, e.Orig)
		}
		seen[e.Orig] = i
		if !FillSources.Contains(e.Orig.Src) || e.Orig.Src == FillSources.Addr() || e.Orig.Src == lastAddr(FillSources) {
			t.Fatalf("entry %d comes from %s", i, e.Orig.Src)
		}
		if err := e.Check(); err != nil || !e.Status.Has(conntrack.Assured|conntrack.SeenReply) || e.Mark != FillMark || e.Reply != e.Orig.Mirror() {
			t.Fatalf("entry %d: %+v, error %v", i, e, err)
		}
	}
	for i := 0; i < MaxFill; i += step {
		check(i)
	}
	for i := 0; i < MaxFill; i += fillHosts {
		check(i)
	}
	check(MaxFill)
	if FillSources.Contains(FillService.Addr()) || !Network.Contains(FillService.Addr()) {
		t.Errorf("service %s", FillService)
	}
}

func TestFillTarget(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		limit, free, available int64
		want                   int64
		err                    string
	}{
		{limit: 262144, free: 1000, available: 24 * gib, want: 261144},
		{limit: 65536, free: 1, available: gib, want: 65535},
		{limit: 1000, free: 1000, available: gib, err: "leaves fewer than the 1000 free places"},
		{limit: 5 << 20, free: 1000, available: 1000 * gib, err: "use --lower-max"},
		{limit: 1 << 20, free: 1000, available: gib, err: "more than a quarter of the 1024 MiB available; use --lower-max"},
	} {
		got, err := FillTarget(tc.limit, tc.free, tc.available)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%+v: %d, error %v", tc, got, err)
		}
	}
}

func TestLastAddr(t *testing.T) {
	for prefix, want := range map[string]string{
		"198.18.0.2/24": "198.18.0.255", "198.18.1.1/30": "198.18.1.3", "198.18.128.0/17": "198.18.255.255", "198.18.0.1/15": "198.19.255.255",
	} {
		if got := lastAddr(netip.MustParsePrefix(prefix)); got.String() != want {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
}
