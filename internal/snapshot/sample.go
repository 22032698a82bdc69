package snapshot

import "time"

// Names of the parts of a Sample that no other Snapshot has, or that its readers ask for.
const (
	PartSysctls = "sysctls"
	PartStat    = "conntrack_stat"
	PartTable   = "conntrack_table"
	PartFlows   = "conntrack_flows"
	PartPorts   = "ports"
	PartCPU     = "cpu"
)

// Sample is one of a series of readings of a network namespace, with what happened since
// the one before. What could not be read is missing, and the Snapshot's Parts say why.
type Sample struct {
	*Snapshot
	// Before is the reading before this one in the same namespace; nil for the first.
	Before *Snapshot
	// Flows, Drops and CPU are of the time since Before.
	Flows *Flows
	Drops *Drops
	CPU   *CPU
	// EntriesRead is how many entries were read for Table, in the order of the hash; the
	// table's own Sampled are those of them that the filter matched. TableAt is when.
	EntriesRead int64
	TableAt     time.Time
	Cost        Cost
	// Lost is what a recording that is damaged does not have of it.
	Lost []string
}

// CPU is what all CPUs of the machine did, as shares of all their time.
type CPU struct {
	// Packets is the time in softirqs, mostly that of received packets.
	Packets float64
	Busy    float64
	CPUs    int
}

// Cost is what natkit itself used.
type Cost struct {
	// Own is the CPU time of the process since the sample before, as a share of one CPU.
	Own float64
	// Table is the CPU time of the last reading of the table.
	Table time.Duration
}

// Seconds is the time since the reading before; 0 for the first.
func (s *Sample) Seconds() float64 {
	if s.Before == nil {
		return 0
	}
	return s.UptimeSeconds - s.Before.UptimeSeconds
}

// Entries returns how many entries the table has, and how many it may have (0: not
// known).
func (s *Snapshot) Entries() (count, limit int64, ok bool) {
	count, ok = s.Sysctls.Int(ConntrackCount)
	limit, _ = s.Sysctls.Int(ConntrackMax)
	return count, limit, ok
}

// Recording returns the sample with the one before.
func (s *Sample) Recording() *Recording {
	return &Recording{Schema: RecordingSchema, Snapshots: []*Snapshot{s.Before, s.Snapshot}, Flows: s.Flows, Drops: s.Drops, Lost: s.Lost}
}
