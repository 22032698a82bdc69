// Package simulate computes, event by event, what happens to the connections of many
// clients that share the addresses of a NAT: which ports it gives them, what a load
// balancer's sessions make of it, and how servers in TIME_WAIT answer.
package simulate

import (
	"embed"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/document"
)

// Config is what is simulated. Zero values of fields with a default mean the default.
// Check (or Parse) validates it.
type Config struct {
	// Name and Title are for people.
	Name  string `yaml:"name,omitempty" json:"name,omitempty"`
	Title string `yaml:"title,omitempty" json:"title,omitempty"`
	About string `yaml:"about,omitempty" json:"about,omitempty"`

	// Seed makes all random numbers; the same seed gives the same result.
	Seed uint64 `yaml:"seed,omitempty" json:"seed"`
	// Start is the time of day at which the simulation begins, for curves by the
	// hour.
	Start Duration `yaml:"start,omitempty" json:"start" check:"0s..24h"`
	// Duration is the simulated time during which connections arrive.
	Duration Duration `yaml:"duration,omitempty" json:"duration" check:"0s..9600h"`
	// Interval is the time between two points of the curves; 0 takes one that gives
	// about 240 points.
	Interval Duration `yaml:"interval,omitempty" json:"interval" check:"1ms..9600h"`

	Clients []Clients `yaml:"clients,omitempty" json:"clients" check:"len=1..1000"`
	// Arrivals are new connections of all clients together; Batches, instead, are a
	// course of loads as a test sends them.
	Arrivals *Arrivals `yaml:"arrivals,omitempty" json:"arrivals,omitempty"`
	Batches  []Batch   `yaml:"batches,omitempty" json:"batches,omitempty" check:"len=0..10000"`

	Connection Connection `yaml:"connection,omitempty" json:"connection"`
	NAT        NAT        `yaml:"nat,omitempty" json:"nat"`
	// Balancer may be absent: the servers then get the connections in turn, by
	// address where they have addresses of their own.
	Balancer *Balancer `yaml:"balancer,omitempty" json:"balancer,omitempty"`
	Servers  []Servers `yaml:"servers,omitempty" json:"servers" check:"len=1.."`
}

// Clients is a group of hosts behind the NAT.
type Clients struct {
	Name string `yaml:"name,omitempty" json:"name"`
	// Hosts is how many; 0 is one.
	Hosts int `yaml:"hosts,omitempty" json:"hosts" check:"1..1048576" default:"1"`
	// Weight is each host's part of the arrivals, relative to others; 0 is 1.
	Weight float64 `yaml:"weight,omitempty" json:"weight" check:"1e-9..1e9" default:"1"`
	// Timestamps: false sends no TCP timestamps (net.ipv4.tcp_timestamps=0).
	Timestamps *bool `yaml:"timestamps,omitempty" json:"timestamps,omitempty" default:"true"`
	Clock      Clock `yaml:"clock,omitempty" json:"clock"`
	ISN        ISN   `yaml:"isn,omitempty" json:"isn"`
	// SourcePorts is net.ipv4.ip_local_port_range: [first, last]; zeros are
	// 32768-60999. A host goes through its even ports in steps of 2 to 16, as Linux
	// 5.18 and later (__inet_hash_connect), whether they are in use or not.
	SourcePorts [2]uint16 `yaml:"source_ports,omitempty" json:"source_ports" default:"[32768, 60999]"`
	// SYN is how these hosts repeat a SYN.
	SYN SYN `yaml:"syn,omitempty" json:"syn"`
}

// Clock is that of a host's TCP timestamps.
type Clock struct {
	// Hz is how often it ticks per second; 0 is 1000.
	Hz int `yaml:"hz,omitempty" json:"hz" check:"1..1000000" default:"1000"`
	// Offset is where it stands at the beginning; see the Offset constants.
	Offset string `yaml:"offset,omitempty" json:"offset" check:"offset" default:"pair"`
	// Uptime is the longest time that a host has run, for OffsetUptime.
	Uptime Duration `yaml:"uptime,omitempty" json:"uptime" check:"0s..876000h" default:"720h"`
	// Values are the clocks of the hosts at the beginning, in ticks, one for each,
	// for OffsetValues.
	Values []uint32 `yaml:"values,omitempty" json:"values,omitempty"`
}

// What Clock.Offset may be.
const (
	// OffsetPair, the default: a random one for each pair of addresses, as Linux
	// 4.11 to 6.19 give (secure_tcp_ts_off).
	OffsetPair = "pair"
	// OffsetUptime: the time since a host was started, as Linux before 4.10.
	OffsetUptime = "uptime"
	// OffsetConnection: a random one for each pair of addresses and ports, as Linux
	// 4.10, 7.0 and stable kernels that have its change.
	OffsetConnection = "connection"
	// OffsetValues: those given.
	OffsetValues = "values"
)

// ISN is how a host chooses the initial sequence number of a connection.
type ISN struct {
	// Kind is one of the ISN constants.
	Kind string `yaml:"kind,omitempty" json:"kind" check:"isn" default:"clock"`
	// Tick is the time in which the clock below the number advances by one, for
	// ISNClock; 0 is 64ns, Linux's; RFC 6528 has 4µs.
	Tick Duration `yaml:"tick,omitempty" json:"tick" check:"0s..1s" default:"64ns"`
}

// What ISN.Kind may be.
const (
	// ISNClock, the default: RFC 6528, a clock plus a hash of the connection's
	// addresses and ports.
	ISNClock = "clock"
	// ISNRandom: a random number for each connection.
	ISNRandom = "random"
)

// SYN is how a host repeats a SYN and when it gives up. The zero value is Linux 6.5
// and later.
type SYN struct {
	// Retries is net.ipv4.tcp_syn_retries; nil is 6.
	Retries *int `yaml:"retries,omitempty" json:"retries,omitempty" check:"0..60" default:"6"`
	// First is the time to the first repetition; 0 is 1s (3s before Linux 3.1).
	First Duration `yaml:"first,omitempty" json:"first" check:"1ms..120s" default:"1s"`
	// Linear is how many more follow at the same distance before it doubles each
	// time (net.ipv4.tcp_syn_linear_timeouts); nil is 4, and 0 before Linux 6.5.
	Linear *int `yaml:"linear,omitempty" json:"linear,omitempty" check:"0..60" default:"4"`
	// AfterACK is the time to the first repetition where the first SYN was answered
	// with an ACK of another connection; nil is 8ms (2 jiffies at 250 Hz). Linux before
	// 5.6 does not hurry then: 0s.
	AfterACK *Duration `yaml:"after_ack,omitempty" json:"after_ack,omitempty" check:"0s..120s" default:"8ms"`
	// Timeout is the application's: it gives up then. 0 leaves it to Retries.
	Timeout Duration `yaml:"timeout,omitempty" json:"timeout" check:"0s..24h"`
}

// Arrivals is a curve of new connections per second. Exactly one of Rate, Hours,
// Daily and Points is set.
type Arrivals struct {
	// Rate is constant.
	Rate float64 `yaml:"rate,omitempty" json:"rate,omitempty" check:"0..50000"`
	// Hours are 24 rates, of each hour's middle; between them they change linearly.
	Hours []float64 `yaml:"hours,omitempty" json:"hours,omitempty" check:"0..50000"`
	Daily *Daily    `yaml:"daily,omitempty" json:"daily,omitempty"`
	// Points are rates at times since the beginning, linear between them.
	Points []RatePoint `yaml:"points,omitempty" json:"points,omitempty"`
	// CSV is a file with such points, a line "seconds,rate" for each; the caller
	// reads it (ParseCSV) into Points.
	CSV string `yaml:"csv,omitempty" json:"csv,omitempty"`
	// Spacing is SpacingEven or SpacingPoisson.
	Spacing string `yaml:"spacing,omitempty" json:"spacing" check:"spacing" default:"poisson"`
}

// What Arrivals.Spacing may be.
const (
	// SpacingPoisson, the default: random distances, as independent clients give.
	SpacingPoisson = "poisson"
	// SpacingEven: equal distances.
	SpacingEven = "even"
)

// Daily is a sine with its highest value at the time of day Peak.
type Daily struct {
	Low  float64  `yaml:"low,omitempty" json:"low" check:"0..50000"`
	High float64  `yaml:"high,omitempty" json:"high" check:"0..50000"`
	Peak Duration `yaml:"peak,omitempty" json:"peak" check:"0s..24h"`
}

// RatePoint is a rate, per second, at a time since the beginning.
type RatePoint struct {
	At   Duration `yaml:"at,omitempty" json:"at" check:"0s..9600h"`
	Rate float64  `yaml:"rate,omitempty" json:"rate" check:"0..50000"`
}

// Batch is a number of connections of one group of clients. It begins when all those
// of the batch before it are over and Pause has passed.
type Batch struct {
	Name string `yaml:"name,omitempty" json:"name,omitempty"`
	// Clients is the name of a group; empty is all, in turn.
	Clients     string   `yaml:"clients,omitempty" json:"clients,omitempty" check:"group"`
	Pause       Duration `yaml:"pause,omitempty" json:"pause" check:"0s..9600h"`
	Connections int64    `yaml:"connections,omitempty" json:"connections" check:"required 1..10000000000"`
	// Concurrency is how many are under way at once, each begun when one is over; 0
	// is one. Rate, instead, begins that many per second whatever becomes of them.
	Concurrency int     `yaml:"concurrency,omitempty" json:"concurrency" check:"1..1048576"`
	Rate        float64 `yaml:"rate,omitempty" json:"rate,omitempty" check:"0..50000"`
}

// Connection is what each of them does once it is established.
type Connection struct {
	// Duration is from the SYN that is accepted until it is closed; 0 is 1ms.
	Duration Duration `yaml:"duration,omitempty" json:"duration" check:"0s..24h" default:"1ms"`
	// RTT is between client and server; 0 is 100µs.
	RTT Duration `yaml:"rtt,omitempty" json:"rtt" check:"0s..1m" default:"100µs"`
	// RequestBytes is what the client sends in all; 0 is 200.
	RequestBytes int `yaml:"request_bytes,omitempty" json:"request_bytes" check:"1..1073741824" default:"200"`
	// ClosesFirst is who gets TIME_WAIT: CloseServer (the default) or CloseClient.
	ClosesFirst string `yaml:"closes_first,omitempty" json:"closes_first" check:"closer" default:"server"`
	// Requests per connection (keep-alive): arrivals are requests then; 0 is 1.
	Requests int `yaml:"requests,omitempty" json:"requests" check:"1..1000000" default:"1"`
}

// What Connection.ClosesFirst may be.
const (
	CloseServer = "server"
	CloseClient = "client"
)

// NAT is the translator that all connections pass.
type NAT struct {
	// Addresses is how many it has; clients keep to one each (by a hash). 0 is one.
	Addresses int `yaml:"addresses,omitempty" json:"addresses" check:"1..1024" default:"1"`
	// Ports is the range: [first, last]; zeros are 1024-65535, or 2048-65535 where
	// Strategy is StrategyRoundRobin.
	Ports [2]uint16 `yaml:"ports,omitempty" json:"ports"`
	// Strategy chooses a port; see the Strategy constants.
	Strategy string `yaml:"strategy,omitempty" json:"strategy" check:"strategy" default:"round-robin"`
	// HoldDown is how long a port stays taken toward one destination after its
	// connection has ended (nf_conntrack_tcp_timeout_time_wait; RFC 6888: 120 s); nil
	// is 120s with StrategyKernel, otherwise none.
	HoldDown *Duration `yaml:"hold_down,omitempty" json:"hold_down,omitempty" check:"0s..24h"`
	// SYNHold is how long a port stays taken by a connection that was never
	// established (nf_conntrack_tcp_timeout_syn_sent); 0 is 120s.
	SYNHold Duration `yaml:"syn_hold,omitempty" json:"syn_hold" check:"0s..24h" default:"120s"`
	// Evicts: StrategyKernel takes ports of ended connections whose sequence number
	// the new one is past (Linux 6.6+); nil is true.
	Evicts *bool `yaml:"evicts,omitempty" json:"evicts,omitempty" default:"true"`
	// Reset specifies what happens to the client's RST that answers the ACK of a former
	// connection; see the Reset constants. Empty is ResetReopens with StrategyKernel,
	// otherwise ResetPasses.
	Reset string `yaml:"reset,omitempty" json:"reset" check:"reset"`
}

// What NAT.Strategy may be.
const (
	// StrategyRoundRobin, the default: the next port after the last one given.
	StrategyRoundRobin = "round-robin"
	// StrategyRandom: a random one, or the next one to it that is free.
	StrategyRandom = "random"
	// StrategyHash: by the client's address and port, or the next one that is free.
	StrategyHash = "hash"
	// StrategyKernel is Linux: the client's own port where it is in the range and
	// free, otherwise the first free one of 128 ports at a random place, of 64 at
	// another, of 32, 16 and 8 (nf_nat_l4proto_unique_tuple).
	StrategyKernel = "kernel"
)

// What NAT.Reset may be.
const (
	// ResetPasses: it reaches the server, and the NAT keeps the port for the
	// connection.
	ResetPasses = "passes"
	// ResetReopens: it reaches the server and closes the NAT's entry, so that the
	// repeated SYN gets a port anew. So does Linux: conntrack takes the ACK as one that
	// challenges (nf_conntrack_tcp_packet, 6.2 and stable kernels), and an entry in CLOSE
	// makes place for a SYN.
	ResetReopens = "reopens"
	// ResetDropped: it does not reach the server.
	ResetDropped = "dropped"
)

// Balancer keeps sessions in a table, as IPVS does; its timeouts are IPVS's.
type Balancer struct {
	// Addresses is how many it has for clients to call, in turn; 0 is one.
	Addresses int `yaml:"addresses,omitempty" json:"addresses" check:"1..1024" default:"1"`
	// Timeout is how long a session stays after a connection that ended (FIN); 0 is
	// 120s.
	Timeout Duration `yaml:"timeout,omitempty" json:"timeout" check:"0s..24h" default:"120s"`
	// SYNTimeout is how long one stays of which only a SYN is known; 0 is 60s.
	SYNTimeout Duration `yaml:"syn_timeout,omitempty" json:"syn_timeout" check:"0s..24h" default:"60s"`
	// ResetTimeout is how long one stays after the RST that answers a refused SYN; 0 is
	// 10s (CLOSE). A balancer that sees one direction only leaves it in SYN_RECV: 60s.
	ResetTimeout Duration `yaml:"reset_timeout,omitempty" json:"reset_timeout" check:"0s..24h" default:"10s"`
	// NewSession: a SYN that finds the session of an ended connection, or of one that was
	// refused (TIME_WAIT, CLOSE), gets a new one (net.ipv4.vs.conn_reuse_mode=1, Linux
	// 4.1+, where the balancer sees both directions).
	NewSession bool `yaml:"new_session,omitempty" json:"new_session"`
}

// Servers is a group that all have the same kernel and settings.
type Servers struct {
	Name string `yaml:"name,omitempty" json:"name"`
	// Count is how many; 0 is one.
	Count int `yaml:"count,omitempty" json:"count" check:"1..256" default:"1"`
	// Weight is each server's, of the round robin; 0 is 1.
	Weight int `yaml:"weight,omitempty" json:"weight" check:"1..1000" default:"1"`
	// Kernel is the generation of TIME_WAIT's timer; see the Kernel constants.
	Kernel string `yaml:"kernel,omitempty" json:"kernel" check:"kernel" default:"timer"`
	// From is when they begin to get connections, since the beginning.
	From Duration `yaml:"from,omitempty" json:"from" check:"0s..9600h"`
	// Addresses is how many addresses each has for clients to call, in turn; only
	// without a balancer. 0 is one.
	Addresses int `yaml:"addresses,omitempty" json:"addresses" check:"1..1024" default:"1"`
	// MaxTimeWait is net.ipv4.tcp_max_tw_buckets; nil is no limit.
	MaxTimeWait *int `yaml:"max_tw_buckets,omitempty" json:"max_tw_buckets,omitempty" check:"0..2147483647"`
	// Timestamps: false is net.ipv4.tcp_timestamps=0.
	Timestamps *bool `yaml:"timestamps,omitempty" json:"timestamps,omitempty" default:"true"`
	// RFC1337: true is net.ipv4.tcp_rfc1337=1: a RST does not end TIME_WAIT.
	RFC1337 bool `yaml:"rfc1337,omitempty" json:"rfc1337"`
}

// What Servers.Kernel may be.
const (
	KernelWheel      = capacity.TimeWaitWheel
	KernelWheelRearm = capacity.TimeWaitWheelRearm
	// KernelTimer is the default.
	KernelTimer = capacity.TimeWaitTimer
)

const (
	// defaultPoints is the approximate number of points of a curve if Interval is not set.
	defaultPoints = 240
	// defaultHold is how long Linux keeps the port of a closed connection.
	defaultHold     = 120 * time.Second
	roundRobinFirst = 2048
	natFirst        = 1024
	lastPort        = 65535
)

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// fill gives what is zero in v, and below it, the default of its field's tag.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
			if text := v.Type().Field(i).Tag.Get("default"); text != "" && v.Field(i).IsZero() {
				if err := yaml.Load([]byte(text), v.Field(i).Addr().Interface()); err != nil {
					panic(err) // the tags are part of the program
				}
			}
		}
	}
}

// filled is c with its defaults written out, sharing nothing with c that changes.
func (c Config) filled() Config {
	c.Clients, c.Servers, c.Batches = slices.Clone(c.Clients), slices.Clone(c.Servers), slices.Clone(c.Batches)
	for i := range c.Batches {
		if c.Batches[i].Rate == 0 {
			orDefault(&c.Batches[i].Concurrency, 1)
		}
	}
	if c.Arrivals != nil {
		a := *c.Arrivals
		c.Arrivals = &a
	}
	if c.Balancer != nil {
		b := *c.Balancer
		c.Balancer = &b
	}
	fill(reflect.ValueOf(&c))
	c.NAT.fill()
	c.fillInterval()
	return c
}

// fillInterval rounds to whole seconds where that makes no difference to speak of.
func (c *Config) fillInterval() {
	if c.Interval.Duration != 0 {
		return
	}
	interval := c.Duration.Duration / defaultPoints
	switch {
	case interval >= 10*time.Second:
		interval = interval.Round(time.Second)
	case interval <= 0:
		interval = time.Second
	}
	c.Interval.Duration = interval
}

// fill gives what depends on the strategy its defaults.
func (n *NAT) fill() {
	first, hold, reset := uint16(natFirst), time.Duration(0), ResetPasses
	switch n.Strategy {
	case StrategyRoundRobin:
		first = roundRobinFirst
	case StrategyKernel:
		hold, reset = defaultHold, ResetReopens
	}
	orDefault(&n.Ports, [2]uint16{first, lastPort})
	if n.HoldDown == nil {
		n.HoldDown = &Duration{hold}
	}
	orDefault(&n.Reset, reset)
}

//go:embed presets/*.yaml
var presetFiles embed.FS

// DefaultPreset is what is simulated where nothing else is named.
const DefaultPreset = "default"

// Preset is a configuration that natkit brings along.
type Preset struct {
	Config
	// Text is its YAML, with comments.
	Text string
}

// presetOrder is that of the case: what happened, what was tried, what helps.
var presetOrder = []string{DefaultPreset, "old-kernel", "day", "doubled", "mixed", "new-kernel", "modern-kernel",
	"addresses", "max-tw-buckets", "no-timestamps", "lab"}

// Presets are all, in the order in which they are listed.
var Presets = sync.OnceValue(func() []*Preset {
	all := make([]*Preset, len(presetOrder))
	for i, name := range presetOrder {
		text, err := presetFiles.ReadFile("presets/" + name + ".yaml")
		if err != nil {
			panic(err) // the files are part of the program
		}
		c, err := Parse(name+".yaml", text)
		if err != nil {
			panic(err) // a test reads them all
		}
		all[i] = &Preset{*c, string(text)}
	}
	return all
})

// FindPreset is the one of that name.
func FindPreset(name string) (*Preset, error) {
	for _, p := range Presets() {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("unknown preset %q%s; there are: %s", name, document.Hint(name, presetOrder), strings.Join(presetOrder, ", "))
}

// checkSizes bounds memory and time, once each single value makes sense.
func (c *Config) checkSizes(k *checker) {
	f := c.filled()
	destinations := 0
	if f.Balancer != nil {
		destinations = f.Balancer.Addresses
	} else {
		for _, s := range f.Servers {
			destinations += s.Count * s.Addresses
		}
	}
	slots := f.NAT.Addresses * destinations * (int(f.NAT.Ports[1]) - int(f.NAT.Ports[0]) + 1)
	k.need(slots > 0 && slots <= mostSlots, fmt.Sprintf("at most %d ports of all addresses toward all destinations, not %d", mostSlots, slots), "nat")
	points := f.Duration.Duration / f.Interval.Duration
	k.need(points <= mostPoints, fmt.Sprintf("an interval that makes at most %d points, not %d", mostPoints, points), "interval")
	k.need(c.total() <= mostConns, fmt.Sprintf("at most %.0g connections in all", float64(mostConns)), "duration")
	if waiting := f.waiting(); waiting > mostWaiting {
		k.need(false, fmt.Sprintf("clients of which at most %d can wait for an answer at once (the highest rate by how long they repeat a SYN), not %.0f; with syn: {timeout: 5s} they give up sooner",
			mostWaiting, waiting), "clients")
	}
}

// waiting returns how many connections may be under way without an answer: where the NAT has
// no port for them they are as many as begin while a client repeats its SYN.
func (c *Config) waiting() float64 {
	longest := int64(0)
	for i := range c.Clients {
		sum := int64(0)
		for _, wait := range c.Clients[i].SYN.waits(c.Clients[i].SYN.First.Duration) {
			sum += wait
		}
		longest = max(longest, sum)
	}
	if c.Arrivals != nil {
		return c.Arrivals.peak() / float64(c.Connection.Requests) * seconds(longest)
	}
	most := 0.0
	for _, b := range c.Batches {
		most = max(most, min(b.Rate*seconds(longest), float64(b.Connections)))
	}
	return most
}

// peak is not less than the highest rate of the curve.
func (a *Arrivals) peak() float64 {
	most := a.Rate
	for _, r := range a.Hours {
		most = max(most, r)
	}
	if a.Daily != nil {
		most = max(most, a.Daily.Low, a.Daily.High)
	}
	for _, p := range a.Points {
		most = max(most, p.Rate)
	}
	return most
}

// total is about how many connections there will be.
func (c *Config) total() float64 {
	total := 0.0
	for _, b := range c.Batches {
		total += float64(b.Connections)
	}
	if a := c.Arrivals; a != nil {
		const parts = 100
		for n := range parts {
			part := c.Duration.Duration / parts
			total += a.At(c.Start.Duration, time.Duration(n)*part+part/2) * part.Seconds()
		}
	}
	return total
}
