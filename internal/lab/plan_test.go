package lab

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
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
	kinds, err := Find("nat-kinds")
	if err != nil {
		t.Fatal(err)
	}
	for file, s := range map[string]*Scenario{"table-full": full, "stateless": stateless(t), "nat-kinds": kinds, "table-full-bridge": bridged, "chain": routers, "whole": whole(t)} {
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
			switch step.Kind {
			case AddNode:
				made[step.Node] = true
			case SetSysctl:
				quiet[step.Node] = quiet[step.Node] || step.Key == "net.ipv6.conf.default.disable_ipv6"
			case AddVeth:
				for _, end := range []Interface{step.Interface, step.Peer} {
					if !made[end.Node] || !quiet[end.Node] {
						t.Errorf("%s: %s comes before its node is made and quiet", s.Name, step)
					}
				}
			}
			if !made[step.Node] {
				t.Errorf("%s: %s comes before its node", s.Name, step)
			}
		}
	}
}

var sameAddresses = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func TestWithIsACopy(t *testing.T) {
	s, err := Find("table-full")
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.With(Overrides{Concurrency: 7, Requests: 8, Timeout: time.Minute, Bridge: true})
	if err != nil {
		t.Fatal(err)
	}
	want := Load{From: "client", Concurrency: 7, Requests: 8, Timeout: time.Minute}
	if diff := cmp.Diff(want, c.Load, sameAddresses); diff != "" || !c.UseBridge {
		t.Errorf("load (-want +got):\n%s", diff)
	}
	want = Load{From: "client", Concurrency: 1000, Requests: 50000, Timeout: 2 * time.Second}
	if diff := cmp.Diff(want, s.Load, sameAddresses); diff != "" || s.UseBridge {
		t.Errorf("the original changed (-want +got):\n%s", diff)
	}
	bare := *s
	bare.Topology.Bridge = nil
	for _, tc := range []struct {
		s    *Scenario
		o    Overrides
		want string
	}{
		{s, Overrides{Concurrency: -1}, "load.concurrency -1: expected 1 or more"},
		{s, Overrides{Requests: -1}, "load.requests -1: expected 1 or more"},
		{s, Overrides{Timeout: -1}, "load.timeout -1ns: expected 0s to 10m"},
		{s, Overrides{Requests: 5}, "5 requests are fewer than the 1000 in flight at once: give more of them (-n) or fewer at once (-c)"},
		{&bare, Overrides{Bridge: true}, "scenario table-full has no bridge in its topology"},
		{s, Overrides{Engine: gateway.EngineEBPF}, "scenario table-full has no gateway file"},
	} {
		if _, err := tc.s.With(tc.o); err == nil || err.Error() != tc.want {
			t.Errorf("%+v: error %v, want %s", tc.o, err, tc.want)
		}
	}
}
