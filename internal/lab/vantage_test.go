package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestVantages checks the sides of each node's NAT.
func TestVantages(t *testing.T) {
	for name, want := range map[string][]Vantage{
		"table-full": { // DNAT to the server, which is inside
			{"client", "", []string{"eth0"}}, {"gateway", Outside, []string{"eth0"}},
			{"gateway", Inside, []string{"eth1"}}, {"server", "", []string{"eth0"}},
		},
		"healthy-dns": { // masquerade decides, where there is DNAT, too
			{"client", "", []string{"eth0"}}, {"gateway", Inside, []string{"eth0"}},
			{"gateway", Outside, []string{"eth1"}}, {"server", "", []string{"eth0"}},
		},
		"healthy-router": { // no NAT: all of the router in one file
			{"client", "", []string{"eth0"}}, {"gateway", "", []string{"eth0", "eth1"}}, {"server", "", []string{"eth0"}},
		},
	} {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, s.Vantages()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	s, err := Find("table-full")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.With(Overrides{Bridge: true}); err != nil {
		t.Fatal(err)
	}
	var bridged []string
	for _, v := range s.Vantages() {
		if v.Node == "gateway" {
			bridged = append(bridged, v.Interfaces...)
		}
	}
	if diff := cmp.Diff([]string{"eth0", "br0"}, bridged); diff != "" {
		t.Errorf("with a bridge the gateway is captured at %s", diff)
	}
}

// TestVantagesAreInterfaces compares them with what is built, for all scenarios.
func TestVantagesAreInterfaces(t *testing.T) {
	for _, s := range Scenarios() {
		made := map[[2]string]bool{}
		for _, step := range s.Plan() {
			if step.Kind == AddAddress {
				made[[2]string{step.Node, step.Name}] = true
			}
		}
		captured := map[[2]string]bool{}
		for _, v := range s.Vantages() {
			for _, name := range v.Interfaces {
				captured[[2]string{v.Node, name}] = true
			}
		}
		if diff := cmp.Diff(made, captured); diff != "" {
			t.Errorf("%s: %s", s.Name, diff)
		}
	}
}
