package report

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/snapshot"
)

// hostileName is what somebody called a process to write on the screen of root.
const hostileName = "x\x1b[31m\u202ey\nz"

func knownNames() *snapshot.Names {
	return &snapshot.Names{
		From: 4026531833,
		Addresses: map[netip.Addr]snapshot.Name{
			netip.MustParseAddr("198.51.100.1"): {Kind: snapshot.NameInterface, Text: "wan0", Source: names.SourceLinks},
			netip.MustParseAddr("10.244.1.7"):   {Kind: snapshot.NamePod, Text: "shop/web-7d9f", Source: names.SourceContainerd},
			netip.MustParseAddr("10.244.1.8"):   {Kind: snapshot.NameProcess, Text: hostileName, PID: 7, Source: names.SourceComm},
		},
		Sockets: map[string]snapshot.Name{"tcp 0.0.0.0:22": {Kind: snapshot.NameProcess, Text: "sshd", PID: 812, Unit: "ssh.service", Source: names.SourceComm}},
		Netns:   map[uint64]snapshot.Name{4026532327: {Kind: snapshot.NameContainer, Text: "web", Source: names.SourceDocker}},
	}
}

// documents are those of the verbs that print names, with what has to be in their texts.
func documents() map[string]struct {
	doc  Document
	want []string
} {
	service := snapshot.FollowedService{Protocol: "tcp", Service: netip.MustParseAddrPort("198.51.100.1:80"), Target: netip.MustParseAddrPort("10.244.1.7:8080"), In: "wan0", Steps: map[snapshot.Step]uint64{}}
	own := service
	own.Service, own.Target = netip.MustParseAddrPort("198.51.100.1:22"), netip.AddrPort{}
	known := knownNames()
	return map[string]struct {
		doc  Document
		want []string
	}{
		"ports": {Ports{Source: "this", Ports: &snapshot.Ports{Translated: 1, Pools: []snapshot.PortPool{{Address: "198.51.100.1", Protocol: "tcp", Destination: "203.0.113.9:443", Used: 1,
			Users: []snapshot.Talker{{Who: "10.244.1.7", Entries: 1}}}}}},
			[]string{"198.51.100.1 (wan0) > 203.0.113.9:443 tcp, 10.244.1.7 (pod shop/web-7d9f) 100 %"}},
		"conntrack": {Overview{Source: "this", Overview: &aggregate.Overview{Entries: 1,
			Sources:      aggregate.Frequent{Exact: true, Different: 1, Top: []aggregate.Part{{Name: "10.244.1.7", Entries: 1, Share: 1}}},
			Destinations: aggregate.Frequent{Exact: true, Different: 1, Top: []aggregate.Part{{Name: "198.51.100.1", Entries: 1, Share: 1}}},
			Services:     aggregate.Frequent{Exact: true, Different: 1, Top: []aggregate.Part{{Name: "tcp 198.51.100.1:22", Entries: 1, Share: 1}}}}},
			[]string{"10.244.1.7 (pod shop/web-7d9f) ", "198.51.100.1 (wan0) ", "tcp 198.51.100.1:22 (wan0) "}},
		"flows": {FlowsDocument{Followed: &snapshot.Followed{Seconds: 1, Services: []snapshot.FollowedService{service, own}}},
			[]string{"tcp 198.51.100.1:80 (wan0) ", "10.244.1.7:8080 (pod shop/web-7d9f) ", "tcp 198.51.100.1:22 (wan0, sshd pid 812 of ssh.service) "}},
		"drops": {DropsDocument{View: DropsView{Names: known}, Drops: &snapshot.Drops{Packets: 2, Seconds: 1, Flows: []snapshot.DropFlow{
			{Protocol: "tcp", Source: "10.244.1.7:555", Destination: "198.51.100.1:80", Netns: known.From, Packets: 1},
			{Protocol: "tcp", Source: "10.244.1.8:555", Destination: "198.51.100.1:81", Netns: 4026532327, Packets: 1}}}},
			[]string{"10.244.1.7:555 (pod shop/web-7d9f) ", "198.51.100.1:80 (wan0) ", "198.51.100.1:81  ", "10.244.1.8:555 (x␛[31m"}},
	}
}

// TestNamesInText: names stand behind addresses, and nothing in them acts on the terminal.
func TestNamesInText(t *testing.T) {
	for verb, d := range documents() {
		var out bytes.Buffer
		if err := (Named{d.doc, knownNames()}).Text(&out, Style{}); err != nil {
			t.Fatal(err)
		}
		for _, want := range d.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is not in\n%s", verb, want, &out)
			}
		}
		if strings.ContainsAny(out.String(), "\x1b\u202e") {
			t.Errorf("%s: a name acts on the terminal: %q", verb, out.String())
		}
	}
}

// TestNamesInJSON: names are a member of their own, and all others are as they are without it.
func TestNamesInJSON(t *testing.T) {
	for verb, d := range documents() {
		var without, with bytes.Buffer
		if err := JSON(&without, d.doc); err != nil {
			t.Fatal(err)
		}
		if err := JSON(&with, Named{d.doc, knownNames()}); err != nil {
			t.Fatal(err)
		}
		var a, b map[string]any
		if err := json.Unmarshal(without.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(with.Bytes(), &b); err != nil {
			t.Fatal(err)
		}
		said, _ := b["names"].(map[string]any)
		delete(b, "names")
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s: %s", verb, diff)
		}
		addresses, _ := said["addresses"].(map[string]any)
		wan, _ := addresses["198.51.100.1"].(map[string]any)
		if wan["kind"] != "interface" || wan["text"] != "wan0" || wan["source"] == nil {
			t.Errorf("%s: %v", verb, said)
		}
		if bytes.ContainsAny(with.Bytes(), "\x1b\u202e") {
			t.Errorf("%s: a name acts on the terminal", verb)
		}
		with.Reset()
		if err := JSON(&with, Named{d.doc, nil}); err != nil || with.String() != without.String() {
			t.Errorf("%s: without names the document is another one: %v", verb, err)
		}
	}
}

// TestNamesOfDoctor: the names of a finding's addresses are a line of their own, and its commands stay as they are.
func TestNamesOfDoctor(t *testing.T) {
	command := "accept it: iptables -I FORWARD -d 10.244.1.7 -j ACCEPT"
	at := &snapshot.Snapshot{Names: knownNames()}
	rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{{}, at}}
	r := diagnose.Run(rec, []diagnose.Rule{{ID: "dnat-filtered", Check: func(*snapshot.Recording) (*diagnose.Finding, diagnose.Check) {
		return &diagnose.Finding{Severity: diagnose.Critical, Title: "a filter drops 198.51.100.1:80", Confidence: "certain",
			Evidence: []diagnose.Evidence{{What: "clients", Value: "10.244.1.8, 203.0.113.9", Source: "netns 4026532327"}},
			Remedies: []diagnose.Remedy{{Title: command}}}, diagnose.Check{}
	}}})
	var out bytes.Buffer
	if err := Doctor(&out, Style{Columns: Unlimited}, &r, false, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  names        198.51.100.1 (wan0), 10.244.1.8 (x␛[31m", ", 10.244.1.7 (pod shop/web-7d9f)\n", "  advice       " + command + "\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if strings.ContainsAny(out.String(), "\x1b\u202e") {
		t.Errorf("a name acts on the terminal: %q", out.String())
	}
	if r.Names == nil || len(r.Names.Addresses) != 3 || r.Names.Netns[4026532327].Text != "web" {
		t.Errorf("%+v", r.Names)
	}
}
