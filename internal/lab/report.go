// Package lab describes topologies and scenarios as data, and what a run of one
// found. It builds nothing: internal/lab/build does, internal/lab/run conducts.
package lab

import (
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
)

// ReportSchema names the JSON form of a Report.
const ReportSchema = "natkit.lab/1"

// Report is what a run of a scenario found.
type Report struct {
	Schema   string    `json:"schema"`
	Scenario string    `json:"scenario"`
	Title    string    `json:"title"`
	Version  string    `json:"natkit_version"`
	Started  time.Time `json:"started_at"`
	Seconds  float64   `json:"seconds"`
	Kernel   string    `json:"kernel"`
	CPUs     int       `json:"cpus"`
	// Server is the web server that answered, "nginx/1.22.1" or "natkit builtin".
	Server string `json:"server"`
	// Topology is one line per link, for people.
	Topology []string      `json:"topology"`
	Stages   []StageReport `json:"stages"`
	// LeftOut are the optional stages that did not run, as the consent to change the host was missing.
	LeftOut []string `json:"left_out_stages,omitempty"`
	// Interrupted runs have the stages until then, the last one in part.
	Interrupted bool               `json:"interrupted,omitempty"`
	Findings    []diagnose.Finding `json:"findings"`
	// Captures are the files of packets, where they were asked for.
	Captures []Capture `json:"captures,omitempty"`
	Fix      *Fix      `json:"fix,omitempty"`
	// Compared is there where stages were compared.
	Compared *Compare `json:"compared,omitempty"`
	// RateRatios has the ratio of the two rates that the scenario compares.
	RateRatios []float64 `json:"rate_ratios,omitempty"`
	// ExpectationMet is the verdict; Verdict gives a sentence for each part of it.
	ExpectationMet bool      `json:"expectation_met"`
	Verdict        []Verdict `json:"verdict"`
}

// Stage is the report of the stage of that name, nil where it did not run.
func (r *Report) Stage(name string) *StageReport {
	for i := range r.Stages {
		if r.Stages[i].Name == name {
			return &r.Stages[i]
		}
	}
	return nil
}

// StageReport is the load of one stage and what the gateway's tracker did meanwhile.
type StageReport struct {
	Name string `json:"name"`
	// About describes briefly what is special in this stage.
	About string `json:"about"`
	// Result is that of the load of kind http, or, where there is none, of the first:
	// Completed are then datagrams that were answered, packets that were sent, or
	// connections that stand.
	load.Result
	// OtherCPU is the share of the machine's CPUs that processes outside of the lab used
	// while the load ran, of those that natkit can see.
	OtherCPU float64 `json:"other_cpu_share"`
	// Loads are all loads of the stage.
	Loads []LoadReport `json:"loads,omitempty"`
	// Found are the IDs of what doctor found in this stage; nil where it did not run.
	Found []string `json:"found,omitempty"`
	// Unchecked are the rules that lacked their data.
	Unchecked []string `json:"unchecked,omitempty"`
	// TableEntries and TableMax are nf_conntrack_count and _max of the gateway at
	// the end of the stage.
	TableEntries int64 `json:"table_entries"`
	TableMax     int64 `json:"table_max"`
	// Counters are the growth of the gateway's conntrack counters in the stage.
	Counters map[string]uint64 `json:"conntrack_counters"`
	// TCP are the counters of each node's own TCP that grew in the stage, by how much,
	// under the names that nstat prints.
	TCP map[string]snapshot.Counters `json:"tcp_counters,omitempty"`
	// Handshakes are the outcome of new connections, where the load makes some.
	Handshakes *Handshakes `json:"handshakes,omitempty"`
	// Batches are the pieces of the load, where it was cut.
	Batches *Batches `json:"batches,omitempty"`
	// Comparison is there where the stage is compared with another one.
	Comparison *Comparison `json:"comparison,omitempty"`
	// Carriers are the engines that carry out the rules of its gateway file, where there are several.
	Carriers []gateway.Carrier `json:"carriers,omitempty"`
	// Remedy is what the stage tries against another one, and what came of it.
	Remedy *RemedyReport `json:"remedy,omitempty"`
	// Drops are those in the gateway while the load ran, where the stage traces
	// them. Their flows are summed up over the ports that they come from, and have
	// addresses only as sources.
	Drops *snapshot.Drops `json:"drops,omitempty"`
	// Profile is where the machine's CPUs spent their time while the load ran.
	Profile *snapshot.Profile `json:"profile,omitempty"`
	// Untraced lists what the stage should have traced and could not, with the reasons.
	Untraced []diagnose.Unread `json:"untraced,omitempty"`
}

// Batches are the pieces of a load that does not begin the next one before a node has
// forgotten the connections of the last one.
type Batches struct {
	Count int `json:"count"`
	// Requests of each.
	Requests int64 `json:"requests"`
	// OutOfPatience began though the node had entries left.
	OutOfPatience int `json:"out_of_patience"`
	// WaitedSeconds is the time between batches, in all.
	WaitedSeconds float64 `json:"waited_seconds"`
}

// RemedyReport is what a stage tries against the fault of another.
type RemedyReport struct {
	// Against is the stage with the fault; Cost and Risk are those of the remedy, in the
	// words of the scenario.
	Against string `json:"against"`
	Cost    string `json:"cost"`
	Risk    string `json:"risk"`
	// Effect is one of Effects, by what was measured; Words say what that was.
	Effect Effect `json:"effect"`
	Words  string `json:"words"`
}

// LoadReport is what became of one load.
type LoadReport struct {
	Kind string `json:"kind"`
	From string `json:"from,omitempty"`
	// Asked describes briefly what was to be sent.
	Asked   string  `json:"asked"`
	Seconds float64 `json:"seconds"`
	// Sent requests, datagrams, packets or connections; Answered of them got what they
	// wanted, Failed did not. Packets are not answered: they are only Sent.
	Sent     int64 `json:"sent"`
	Answered int64 `json:"answered"`
	Failed   int64 `json:"failed"`
	// Notes are further remarks for the reader.
	Notes []string `json:"notes,omitempty"`
	// Delivery is there where packets were counted where they arrived.
	Delivery *Delivery `json:"delivery,omitempty"`
	// Exchange is what the far end saw, of kind exchange.
	Exchange *ExchangeReport `json:"exchange,omitempty"`
	// Held is there where connections were held until all of them stood.
	Held *HeldReport `json:"held,omitempty"`
}

// Fix is the applied remedy, with what was predicted and what was seen.
type Fix struct {
	Finding string        `json:"finding"`
	Remedy  string        `json:"remedy"`
	Changes []tune.Change `json:"changes"`
	// Rounds of applying and measuring again.
	Rounds int `json:"rounds"`
	// PredictedBytesPerEntry and SeenBytesPerEntry are memory per tracked
	// connection; the seen one is the growth of the kernel's slabs by the growth
	// of the table while it was filled, 0 where it is not known.
	PredictedBytesPerEntry float64 `json:"predicted_bytes_per_entry"`
	SeenBytesPerEntry      float64 `json:"seen_bytes_per_entry"`
	// PredictedMaxBytes is what a table full to the new maximum takes.
	PredictedMaxBytes int64 `json:"predicted_bytes_at_new_max"`
	// SeenBytes is what SeenEntries took at the end of the last stage.
	SeenBytes   int64 `json:"seen_bytes"`
	SeenEntries int64 `json:"seen_entries"`
	// Restored reports whether every host value is restored.
	Restored bool `json:"restored"`
}

// Verdict is one part of the expectation.
type Verdict struct {
	Expected string `json:"expected"`
	Seen     string `json:"seen"`
	Met      bool   `json:"met"`
}

const (
	// muchOther is the share of the CPUs from which on the work of others moves figures.
	muchOther = 0.10
	// tooFast is how much faster than the same without a fault a stage cannot be.
	tooFast = 1.25
)

// Caution returns why the figures of a stage are not to be compared with those of others;
// empty where nothing speaks against it.
func (r *Report) Caution(s *StageReport) string {
	if s.OtherCPU > muchOther {
		return fmt.Sprintf("other work on this machine took %.0f %% of its CPUs", 100*s.OtherCPU)
	}
	nat := r.Stage("nat")
	if nat == nil || s.Name != "fixed" || nat.RequestsPerSecond <= 0 || s.RequestsPerSecond < tooFast*nat.RequestsPerSecond {
		return ""
	}
	return fmt.Sprintf("%.0f %% of stage nat, which does the same work: the machine was slower then", 100*s.RequestsPerSecond/nat.RequestsPerSecond)
}

// Cautious reports whether a stage's figures, or those of nat beside it, need caution.
func (r *Report) Cautious(s *StageReport) bool {
	nat := r.Stage("nat")
	return r.Caution(s) != "" || nat != nil && r.Caution(nat) != ""
}
