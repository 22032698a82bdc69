package snapshot

// ConntrackStat holds the connection tracker's counters, one map per CPU, under
// the kernel's own names (drop, early_drop, insert_failed, chaintoolong,
// clash_resolve, …). A counter that this kernel does not have is absent.
type ConntrackStat struct {
	// Source is "ctnetlink" (IPCTNL_MSG_CT_GET_STATS_CPU) or
	// "/proc/net/stat/nf_conntrack".
	Source string              `json:"source"`
	PerCPU []map[string]uint64 `json:"per_cpu"`
}

// Total sums a counter over the CPUs; false where the kernel does not have it.
// The kernel keeps each as an unsigned 32-bit number that wraps.
func (c *ConntrackStat) Total(name string) (uint64, bool) {
	if c == nil {
		return 0, false
	}
	var sum uint64
	found := false
	for _, cpu := range c.PerCPU {
		if v, ok := cpu[name]; ok {
			sum += v
			found = true
		}
	}
	return sum, found
}

// Delta is how much a counter grew on all CPUs since before, wrap-around of a
// CPU's 32-bit counter included.
func (c *ConntrackStat) Delta(before *ConntrackStat, name string) (uint64, bool) {
	if c == nil || before == nil || len(c.PerCPU) != len(before.PerCPU) {
		return 0, false
	}
	var sum uint64
	found := false
	for i, cpu := range c.PerCPU {
		now, ok := cpu[name]
		then, okThen := before.PerCPU[i][name]
		if ok && okThen {
			sum += uint64(uint32(now) - uint32(then))
			found = true
		}
	}
	return sum, found
}

// ConntrackSize is what entries and hash buckets cost.
type ConntrackSize struct {
	// EntryBytes is one slab object of struct nf_conn, alignment included.
	EntryBytes uint64 `json:"entry_bytes"`
	// ExtensionBytes is the kmalloc object that holds NAT, accounting and other
	// extensions (NF_CT_EXT_PREALLOC, 128 bytes since 4.19).
	ExtensionBytes uint64 `json:"extension_bytes"`
	// BucketBytes is one hash bucket (struct hlist_nulls_head): a pointer.
	BucketBytes uint64 `json:"bucket_bytes"`
	// SlabBytes is what the nf_conntrack slab holds now, all namespaces together;
	// 0 where unknown.
	SlabBytes uint64 `json:"slab_bytes"`
	// ActiveEntries are the objects of that slab that are in use, about: SlabBytes has
	// those that were freed lately, too. 0 where unknown.
	ActiveEntries uint64 `json:"active_entries,omitempty"`
	// ExtensionSlabBytes is what the slab that extensions are taken from
	// (kmalloc-128) holds now, objects of others included; 0 where unknown.
	ExtensionSlabBytes uint64 `json:"extension_slab_bytes"`
	// Source is where EntryBytes was read: /proc/slabinfo, /sys/kernel/slab/…,
	// BTF, or "assumed".
	Source string `json:"source"`
	// ExtensionSource says where ExtensionBytes is from.
	ExtensionSource string `json:"extension_source,omitempty"`
}

// PerEntry is the memory that one tracked connection takes, in bytes.
func (s ConntrackSize) PerEntry() uint64 { return s.EntryBytes + s.ExtensionBytes }

// RemainingStep is the width in seconds of one element of ConntrackTable.Remaining.
const RemainingStep = 5

// ConntrackTable summarises the entries of the namespace's table. Numbers count
// the Sampled entries, not the table; Share turns one into a share.
type ConntrackTable struct {
	// Sampled entries were decoded. The dump walks the hash table in order of a
	// keyed hash, so its beginning is an unbiased sample.
	Sampled int64 `json:"sampled"`
	// Complete is true where the whole table was read.
	Complete bool `json:"complete"`

	ByProtocol map[string]int64 `json:"by_protocol"`
	ByTCPState map[string]int64 `json:"by_tcp_state"`
	Assured    int64            `json:"assured"`
	Unreplied  int64            `json:"unreplied"`
	SNAT       int64            `json:"snat"`
	DNAT       int64            `json:"dnat"`
	Offloaded  int64            `json:"offloaded"`

	// Remaining counts entries by class (as in Flows.PerSecond) and by the
	// seconds left until they expire: element i counts i*RemainingStep up to but
	// not including (i+1)*RemainingStep. Entries with more than 600 s left are
	// not in it. The age of an entry in its state is the state's timeout less this.
	Remaining map[string][]int64 `json:"remaining"`

	TopSources  []Talker `json:"top_sources"`
	TopServices []Talker `json:"top_services"`

	// Unanswered and Idle are nil in recordings of a natkit that did not count them;
	// Idle also where the timeout is not known.
	Unanswered *Unanswered      `json:"unanswered,omitempty"`
	Idle       *IdleEstablished `json:"idle_established,omitempty"`
}

// Talker is an address, or a service (protocol, address and port), with the
// number of its entries among the sampled ones: exact up to 65,536 different
// ones, with more too low by at most Sampled/65,537.
type Talker struct {
	Who     string `json:"who"`
	Entries int64  `json:"entries"`
}
