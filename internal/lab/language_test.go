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

func whole(t *testing.T) *Scenario {
	t.Helper()
	text, err := os.ReadFile("testdata/whole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse("whole.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhole(t *testing.T) {
	s := whole(t)
	if !s.UseBridge || !s.NeedsHost() || s.Healthy() || s.Client() != "client" || s.Topology.Server.UDP != 9000 {
		t.Errorf("scenario %+v", s)
	}
	st := &s.Stages[0]
	var rules, asked []string
	for _, node := range []string{"gateway", "server"} {
		plan, err := gateway.Compile(s.Translations(node, st.NAT), gateway.Facts{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range plan.Destinations {
			rules = append(rules, node+": "+d.String())
		}
		for _, o := range plan.Sources {
			rules = append(rules, node+": "+o.String())
		}
	}
	for _, l := range s.LoadsOf(st) {
		asked = append(asked, l.Asked())
	}
	wantRules := []string{
		"gateway: on 198.18.0.1 udp/53 becomes 198.19.0.2:9000",
		"gateway: on 198.19.0.1 udp/53 becomes 198.19.0.2:9000",
		"gateway: from 0.0.0.0/0 out br0 becomes the interface's address",
		"gateway: from 0.0.0.0/0 out br0 becomes 198.19.0.77 ports 1024-65535 random fully",
		"gateway: from 0.0.0.0/0 out br0 becomes 198.19.0.80-198.19.0.82 ports 20000-20199",
		"gateway: from ::/0 out eth2 becomes the interface's address random fully",
	}
	if diff := cmp.Diff(wantRules, rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	wantAsked := []string{
		"60,000 requests, 10 concurrent, timeout 2s",
		"datagrams to 198.18.0.1:53, 200 flows, 100.0/s, for 2s",
		"TCP packets (syn) to 198.18.0.1:81, 5,000 in all, 1,000/s",
		"7 connections held to 198.19.0.2:80, for 3s",
		"nothing for 1s",
	}
	if diff := cmp.Diff(wantAsked, asked); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
	}
	for i, want := range map[int]string{
		2: "100 requests, 10 concurrent, in batches of 20, from 1 address, timeout 2s",
		3: "100 requests, 10 concurrent, from 2 addresses, to 3 addresses, 5 requests for each connection, closed by client, timeout 2s",
	} {
		if got := s.Stages[i].Loads[0].Asked(); got != want {
			t.Errorf("load of stage %d: %q, want %q", i, got, want)
		}
	}
	if st.Sysctls["gateway"]["net.netfilter.nf_conntrack_udp_timeout"] != "7" || st.Host["net.netfilter.nf_conntrack_buckets"] != "4096" {
		t.Errorf("sysctls %v, host %v", st.Sysctls, st.Host)
	}
	want := []netip.Addr{netip.MustParseAddr("198.18.0.3"), netip.MustParseAddr("198.18.0.4")}
	if got := s.StageSources(0); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("the stage's HTTP comes from %v, want %v", got, want)
	}
	if got := s.StageSources(1); len(got) != 0 {
		t.Errorf("a stage without HTTP has sources: %v", got)
	}
}

// TestOverridesReachEveryStage, and nothing but requests.
func TestOverridesReachEveryStage(t *testing.T) {
	s := whole(t)
	changed, err := s.With(Overrides{Concurrency: 3, Requests: 77, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for i := range changed.Stages {
		for j, l := range changed.Stages[i].Loads {
			was := s.Stages[i].Loads[j]
			switch http := l.Is(LoadHTTP); {
			case http && (l.Concurrency != 3 || l.Requests != 77 || l.Timeout != time.Minute):
				t.Errorf("stage %d: %+v", i, l)
			case http && was.Requests == 77:
				t.Errorf("stage %d of the scenario itself was changed", i)
			case !http && (l.Requests != was.Requests || l.Timeout != was.Timeout):
				t.Errorf("stage %d: a load of kind %s was changed", i, l.Kind)
			}
		}
	}
}

// TestEngineReachesEveryGateway, and not those of the scenario itself.
func TestEngineReachesEveryGateway(t *testing.T) {
	s, err := Find("nat-kinds")
	if err != nil {
		t.Fatal(err)
	}
	changed, err := s.With(Overrides{Engine: gateway.EngineEBPF})
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range changed.Stages {
		if g := st.Gateway; g.Engine != gateway.EngineEBPF || !bool(g.AcknowledgeBypass) || s.Stages[i].Gateway.Engine == g.Engine {
			t.Errorf("stage %s: %+v", st.Name, g.Config)
		}
	}
}

// TestRateReachesEveryLoad that has one, for as long as before.
func TestRateReachesEveryLoad(t *testing.T) {
	s, err := Find("service-unanswered")
	if err != nil {
		t.Fatal(err)
	}
	changed, err := s.With(Overrides{Rate: 100})
	if err != nil {
		t.Fatal(err)
	}
	http, udp := changed.Stages[0].Loads[0], changed.Stages[0].Loads[1]
	was := s.Stages[0].Loads[0]
	if http.Rate != 100 || http.Requests != int64(100*float64(was.Requests)/was.Rate) || http.Concurrency < int(100*was.Timeout.Seconds()) {
		t.Errorf("requests: %+v", http)
	}
	if udp.Rate != 100 || udp.For != s.Stages[0].Loads[1].For {
		t.Errorf("datagrams: %+v", udp)
	}
	if was.Rate == 100 {
		t.Error("the scenario itself was changed")
	}
	for _, name := range []string{"tw-overflow", "healthy-idle"} { // the rate is its fault; it has no rate
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.With(Overrides{Rate: 2}); err == nil {
			t.Errorf("%s has another rate", name)
		}
	}
	at, err := AtRate(Scenarios(), 2)
	if err != nil || len(at) == 0 || len(at) >= len(Scenarios()) {
		t.Errorf("%d scenarios at another rate, error %v", len(at), err)
	}
}

func TestInterfaces(t *testing.T) {
	s := whole(t)
	for toward, want := range map[string]string{"client": "eth0", "server": bridgeName, "six": "eth2", "nobody": ""} {
		if got, _ := s.faceToward("gateway", toward); got.name != want {
			t.Errorf("toward %s: %q, want %q", toward, got.name, want)
		}
	}
}

func TestFillTargets(t *testing.T) {
	s := whole(t)
	for i, want := range []int64{100, 5000} {
		if got, err := s.Stages[i].Fill.Target(10000, 1<<40); err != nil || got != want {
			t.Errorf("stage %d: %d entries, error %v, want %d", i, got, err, want)
		}
	}
	filler, err := s.Stages[0].Fill.Filler()
	if err != nil || filler.Mark != FillMark || filler.Room() < 100 {
		t.Errorf("filler %+v, error %v", filler, err)
	}
}

// The scenario in the documentation can be run.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/scenarios.md has no example")
	}
	if _, err := Parse("docs/scenarios.md", []byte(example)); err != nil {
		t.Error(err)
	}
}
