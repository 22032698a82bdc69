package table

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
)

// HeadOf is that of what a snapshot has.
func HeadOf(node string, s *snapshot.Snapshot) Head {
	return Head{Node: node, Kernel: s.Kernel.Release, Netns: NetnsOf(s.Netns), Time: TimeOf(s.TakenAt)}
}

// NetnsOf is how a network namespace is called in rows: by its name, else by its inode; empty where neither is known.
func NetnsOf(n snapshot.Netns) string {
	if n.Name == "" && n.Inode != 0 {
		return strconv.FormatUint(n.Inode, 10)
	}
	return n.Name
}

// FindingRows are those of a report.
func FindingRows(node string, r *diagnose.Report) (rows []Finding) {
	head := Head{Node: node, Kernel: r.Kernel, Netns: NetnsOf(snapshot.Netns{Name: r.Netns, Inode: r.NetnsInode}), Time: TimeOf(r.TakenAt)}
	for i := range r.Findings {
		f := &r.Findings[i]
		row := Finding{Head: head, ID: f.ID, Severity: f.Severity.String(), Certainty: f.Confidence, Title: f.Title, Place: f.Place, Cause: f.Cause,
			FirstSeen: head.Time - Time(f.SinceSeconds*1e6), IntervalS: r.Seconds}
		var about []string
		for _, a := range f.About {
			about = append(about, endOf(a))
		}
		row.Subject = strings.Join(about, " ")
		if len(f.Remedies) > 0 {
			row.Remedy = f.Remedies[0].Title
		}
		rows = append(rows, row)
	}
	return rows
}

// endOf is an address with its port, where it has one.
func endOf(a netip.AddrPort) string {
	switch {
	case !a.Addr().IsValid():
		return "port " + strconv.Itoa(int(a.Port()))
	case a.Port() == 0:
		return a.Addr().String()
	}
	return a.String()
}

// FlowRows are those of the services that were followed until then.
func FlowRows(head Head, f *snapshot.Followed) (rows []Flow) {
	for i := range f.Services {
		s := &f.Services[i]
		row := Flow{Head: head, Protocol: s.Protocol, Service: addressOf(s.Service.Addr()), ServicePort: int32(s.Service.Port()),
			Target: addressOf(s.Target.Addr()), TargetPort: int32(s.Target.Port()), NATAddress: addressOf(s.Given), In: s.In, Out: s.Out,
			IntervalS: f.Seconds, Sample: int32(max(1, f.Sample)), Connections: signed(s.Count()), Failed: signed(s.Failing()), Repeated: signed(s.Repeated)}
		if s.Clients > 0 {
			row.Clients = new(int64(s.Clients))
		}
		for step, n := range s.Steps {
			if to := row.step(step); to != nil {
				*to = signed(n)
			}
		}
		if s.Steps[snapshot.StepAnswered] > 0 {
			row.HereUS, row.ServerUS, row.BackUS = microseconds(s.HereSeconds), microseconds(s.BeyondSeconds), microseconds(s.BackSeconds)
		}
		rows = append(rows, row)
	}
	return rows
}

// step is the column of a step.
func (f *Flow) step(s snapshot.Step) *int64 {
	return map[snapshot.Step]*int64{
		snapshot.StepAnswered: &f.Answered, snapshot.StepWaiting: &f.Waiting, snapshot.StepOneWay: &f.OneWay,
		snapshot.StepLostHere: &f.LostHere, snapshot.StepRefusedHere: &f.RefusedHere, snapshot.StepUnreachableHere: &f.UnreachableHere,
		snapshot.StepNoAnswer: &f.NoAnswer, snapshot.StepRefused: &f.Refused, snapshot.StepUnreachable: &f.Unreachable,
		snapshot.StepOtherSource: &f.AnsweredByAnother, snapshot.StepAnswerLost: &f.AnswerLostHere, snapshot.StepAnswerUntranslated: &f.AnswerUntranslated,
		snapshot.StepClientSilent: &f.ClientAsksAgain, snapshot.StepDataLost: &f.DataLostHere, snapshot.StepDataUnanswered: &f.DataUnanswered,
		snapshot.StepDataMissing: &f.DataMissing, snapshot.StepResetHere: &f.ResetHere, snapshot.StepReset: &f.Reset,
		snapshot.StepPartLost: &f.DatagramsLostHere,
	}[s]
}

// microseconds is nil of a time that is not known.
func microseconds(seconds float64) *int64 {
	if seconds <= 0 || math.IsNaN(seconds) || seconds > (365*24*time.Hour).Seconds() {
		return nil
	}
	return new(int64(seconds * 1e6))
}

// SampleRows makes rows of snapshots in the order of time.
type SampleRows struct {
	Node string

	before  *snapshot.Snapshot
	counted map[string]uint64
}

// Row is that of the last snapshot of a recording. drops are those since the snapshot before; nil where they were not
// recorded.
func (r *SampleRows) Row(rec *snapshot.Recording, drops *snapshot.Drops) Sample {
	s := rec.Last()
	row := Sample{Head: HeadOf(r.Node, s), BootID: s.Kernel.BootID}
	if r.before != nil && r.before.Kernel.BootID != s.Kernel.BootID {
		r.before, r.counted = nil, nil
	}
	r.count(s, &row)
	if r.before != nil {
		row.IntervalS = new(s.UptimeSeconds - r.before.UptimeSeconds)
		if rec.Flows != nil {
			row.NewPerS = new(rec.Flows.TotalPerSecond)
		}
	}
	if s.Memory != nil {
		row.MemTotal, row.MemAvailable = new(signed(s.Memory.TotalBytes)), new(signed(s.Memory.AvailableBytes))
	}
	if rec.SYNs != nil {
		row.SYNs = new(signed(rec.SYNs.SYNs))
		if rec.SYNs.LateKnown {
			row.SYNsUnanswered = new(signed(rec.SYNs.Late))
		}
	}
	if drops != nil {
		row.DroppedPackets = new(signed(drops.Packets))
	}
	r.before = s
	return row
}

// count fills in the counters of the connection table.
func (r *SampleRows) count(s *snapshot.Snapshot, row *Sample) {
	if entries, limit, ok := s.Entries(); ok {
		row.Entries = &entries
		if limit > 0 {
			row.EntriesMax = &limit
		}
	}
	if buckets, ok := s.Sysctls.Int(snapshot.ConntrackBuckets); ok {
		row.Buckets = &buckets
	}
	c := state.CountersOf(s, r.before, r.counted)
	if c == nil {
		return
	}
	r.counted = c.Conntrack
	for name, to := range map[string]**int64{"found": &row.Found, "invalid": &row.Invalid, "insert": &row.Insert, "insert_failed": &row.InsertFailed,
		"drop": &row.Drop, "early_drop": &row.EarlyDrop, "error": &row.Error, "search_restart": &row.SearchRestart,
		"clash_resolve": &row.ClashResolve, "chaintoolong": &row.ChainTooLong, "ignore": &row.Ignore} {
		if n, ok := c.Conntrack[name]; ok {
			*to = new(signed(n))
		}
	}
}

// ServiceRows are those of the services of a recording, by what the connection table shows; refusals and times are of
// connections that were followed meanwhile.
func ServiceRows(node string, rec *snapshot.Recording) (rows []Service) {
	if rec.Flows == nil || rec.Flows.Services == nil {
		return nil
	}
	all := rec.Flows.Services
	head := HeadOf(node, rec.Last())
	for i := range all.All {
		s := &all.All[i]
		row := Service{Head: head, Kind: s.Kind, Protocol: s.Protocol, Address: addressOf(s.Service.Addr()), Port: int32(s.Service.Port()),
			Target: addressOf(s.Target.Addr()), TargetPort: int32(s.Target.Port()), NATAddress: addressOf(s.Given),
			Attempts: s.Answered + s.Failed(), Answered: s.Answered, Unanswered: s.Failed(), Reset: s.Reset, Stalled: s.Stalled, Open: s.Open,
			Complete: all.Complete, IntervalS: all.Seconds}
		if all.NewKnown && s.Kind == snapshot.ServiceDNAT {
			row.New = new(s.New)
		}
		if rec.Followed != nil && s.Kind == snapshot.ServiceDNAT {
			row.followed(rec.Followed, s)
		}
		rows = append(rows, row)
	}
	return rows
}

// followed adds what was seen of the packets of a service.
func (r *Service) followed(f *snapshot.Followed, s *snapshot.Service) {
	var answered, refused uint64
	var seconds float64
	seen := false
	for i := range f.Services {
		o := &f.Services[i]
		if o.Protocol != s.Protocol || o.Service != s.Service || o.Target.IsValid() && o.Target != s.Target {
			continue
		}
		seen = true
		refused += o.Steps[snapshot.StepRefused] + o.Steps[snapshot.StepRefusedHere]
		n := o.Steps[snapshot.StepAnswered]
		answered += n
		seconds += float64(n) * (o.HereSeconds + o.BeyondSeconds + o.BackSeconds)
	}
	if seen {
		r.Refused = new(signed(refused))
	}
	if answered > 0 {
		r.HandshakeUS = microseconds(seconds / float64(answered))
	}
}
