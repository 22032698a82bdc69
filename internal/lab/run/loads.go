package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/nat"
)

// loads are those of one stage, under way.
type loads struct {
	c  *conductor
	st *lab.Stage
	// done is how many requests, datagrams and packets of each load are over.
	done []atomic.Int64
	// over is closed when all have ended.
	over chan struct{}
	// saying keeps progress of several loads from mixing.
	saying sync.Mutex
	// answerers are the servers of exchanges, by node and port, made under serving.
	serving   sync.Mutex
	answerers map[string]*answerer
}

// outcome is what one load came to.
type outcome struct {
	result load.Result
	report lab.LoadReport
	// batches is nil where the load was one piece.
	batches *lab.Batches
	// exchanged are those of kind exchange that were answered.
	exchanged []lab.Exchanged
	err       error
}

func (c *conductor) newLoads(st *lab.Stage) *loads {
	return &loads{c: c, st: st, done: make([]atomic.Int64, len(c.sc.LoadsOf(st))), over: make(chan struct{})}
}

// requests returns the number of finished requests of all loads.
func (l *loads) requests() (n int64) {
	for i := range l.done {
		n += l.done[i].Load()
	}
	return n
}

// closeTime bounds the verification and the close of connections that were held.
const closeTime = 2 * time.Minute

// run lets all loads run at once until each has ended, and fills in the report.
func (l *loads) run(ctx context.Context, r *lab.StageReport) error {
	defer close(l.over)
	defer l.closeAnswerers()
	if limit := l.st.Limit; limit > 0 {
		// Loads end at the limit; this is for those that cannot.
		grace := time.Second
		if slices.ContainsFunc(l.c.sc.LoadsOf(l.st), lab.Load.UntilAllStand) {
			grace = closeTime
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit+grace)
		defer cancel()
	}
	all := l.c.sc.LoadsOf(l.st)
	outcomes := make([]outcome, len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() { outcomes[i] = l.one(ctx, i, one) })
	}
	wg.Wait()
	var errs []error
	if err := l.judgeExchanges(ctx, all, outcomes); err != nil {
		errs = append(errs, err)
	}
	main := 0
	for i, o := range outcomes {
		if o.err != nil {
			errs = append(errs, fmt.Errorf("load %s: %w", o.report.Kind, o.err))
		}
		if all[i].Is(lab.LoadHTTP) {
			main = i
		}
		r.Loads = append(r.Loads, o.report)
	}
	r.Result, r.Batches = outcomes[main].result, outcomes[main].batches
	return errors.Join(errs...)
}

func (l *loads) one(ctx context.Context, i int, one lab.Load) (o outcome) {
	switch {
	case one.Is(lab.LoadUDP):
		o = l.udp(ctx, i, one)
	case one.Is(lab.LoadPackets):
		o = l.packets(ctx, i, one)
	case one.Is(lab.LoadHold):
		o = l.hold(ctx, i, one)
	case one.Is(lab.LoadExchange):
		o = l.exchange(ctx, i, one)
	case one.Is(lab.LoadNone):
		o = l.none(ctx, one)
	default:
		o = l.http(ctx, i, one)
	}
	o.report.Kind, o.report.From, o.report.Asked = cmp.Or(one.Kind, lab.LoadHTTP), one.From, one.Asked()
	if !one.Is(lab.LoadPackets) { // which need no answer
		o.report.Answered, o.report.Failed = o.result.Completed, o.result.Failed
	}
	if o.report.Seconds == 0 {
		o.report.Seconds = o.result.Seconds
	}
	return o
}

// result is that of a load in which connections are not timed.
func result(took float64, completed int64, perSecond float64) load.Result {
	return load.Result{Seconds: took, Completed: completed, RequestsPerSecond: perSecond, FirstFailureSeconds: -1, Failures: []load.Failure{}}
}

// fail adds failures of one reason.
func (o *outcome) fail(phase load.Phase, reason string, n int64) {
	if n > 0 {
		o.result.Failed += n
		o.result.Failures = append(o.result.Failures, load.Failure{Phase: phase, Reason: reason, Count: n})
	}
}

// bounded is the shorter one of a load's own time and the stage's limit.
func (l *loads) bounded(d time.Duration) time.Duration {
	if limit := l.st.Limit; limit > 0 && (d == 0 || limit < d) {
		return limit
	}
	return d
}

func (l *loads) progress(i int, p load.Progress) {
	l.done[i].Store(p.Completed + p.Failed)
	l.say(p.String())
}

func (l *loads) say(text string) {
	l.saying.Lock()
	defer l.saying.Unlock()
	l.c.Progress(l.st.Name + ": " + text)
}

func (l *loads) options(i int, one lab.Load) loadrun.Options {
	return loadrun.Options{Netns: l.c.node(one.From), Progress: func(p load.Progress) { l.progress(i, p) }}
}

func (l *loads) http(ctx context.Context, i int, one lab.Load) (o outcome) {
	cfg := load.Config{
		URL: l.st.URL, Sources: one.Sources, SourcePorts: nat.Ports(one.SourcePorts), Seed: one.Seed,
		Concurrency: one.Concurrency, Requests: one.Requests, Rate: one.Rate,
		Duration: l.bounded(one.For), Timeout: one.Timeout,
		Workers: one.Workers, Close: load.CloseMode(cmp.Or(one.Close, string(load.CloseServer))),
		ConnectTo: one.Servers, KeepAlive: one.KeepAlive > 1,
	}
	if cfg.KeepAlive {
		cfg.PerConnection = one.KeepAlive
	}
	if len(cfg.Sources) == 0 {
		cfg.Sources = l.c.sc.StageSources(l.c.index(l.st))
	}
	options, batches := l.options(i, one), l.newBatches(one.Batch)
	if batches != nil {
		cfg.Batch, options.NextBatch = one.Batch.Requests, batches.next
	}
	r, err := loadrun.HTTP(ctx, cfg, options)
	if o.err = err; r == nil {
		return o
	}
	o.result, o.batches = *r, batches.report()
	o.report.Sent = r.Completed + r.Failed + r.Unfinished
	return o
}

// udp takes a run to which nothing came back for what it is: that may be the fault.
func (l *loads) udp(ctx context.Context, i int, one lab.Load) (o outcome) {
	r, err := loadrun.UDP(ctx, packets.UDPConfig{
		To: one.To, Flows: one.FlowCount(), Rate: one.Rate, Concurrency: one.Concurrency,
		Packets: one.Requests, Duration: l.bounded(one.For), Timeout: one.Timeout,
		Sources: one.Sources, SourcePorts: nat.Ports(one.SourcePorts), Seed: one.Seed, Workers: one.Workers,
	}, l.options(i, one))
	if r == nil {
		o.err = err
		return o
	}
	o.result = result(r.Seconds, r.Answered(), r.AnsweredPerSecond)
	o.result.Total, o.result.Series, o.result.CPU, o.result.SystemCalls = r.RoundTrip, r.Series, r.CPU, r.SystemCalls
	o.result.GeneratorLimit, o.result.CPUContention = r.GeneratorLimit, r.CPUContention
	o.result.Failures = append(o.result.Failures, r.Failures...)
	o.fail(load.Wait, "no answer", r.Lost)
	o.report.Sent = r.Sent
	return o
}

// packetsFlows is the default number of flows of a load of packets.
const packetsFlows = 1000

func (l *loads) packets(ctx context.Context, i int, one lab.Load) (o outcome) {
	cfg, err := packetsConfig(one, l.c.sc.Addresses(one.From))
	if err != nil {
		o.err = err
		return o
	}
	if cfg.Duration = l.bounded(one.For); cfg.Duration == 0 && one.Rate > 0 {
		cfg.Duration = time.Duration(float64(one.Requests)/one.Rate*float64(time.Second)) + 5*time.Second
	}
	lies := pktgen.Route{Netns: l.c.node(one.From)}
	for _, n := range l.c.lab.Nodes() {
		lies.Neighbours = append(lies.Neighbours, n.Netns)
	}
	way, err := pktgen.ReadEgress(lies, one.To.Addr())
	if err != nil {
		o.err = err
		return o
	}
	sink, err := l.sink(one)
	if err == nil && sink != nil && one.Rate == 0 {
		err = warmUp(ctx, cfg, way, sink)
	}
	if err != nil {
		o.err = err
		return o
	}
	r, err := pktgen.Run(ctx, cfg, way, sink, func(p packets.Progress) {
		l.done[i].Store(p.Sent)
		l.say(fmt.Sprintf("%.0f s: %d packets sent", p.Elapsed.Seconds(), p.Sent))
	})
	if o.err = err; r == nil {
		return o
	}
	o.result = result(r.Seconds, r.Sent, r.SentPerSecond)
	o.result.GeneratorLimit = r.GeneratorLimit
	o.report = lab.LoadReport{Sent: r.Sent, Notes: r.Notes}
	if sink != nil {
		o.result.RequestsPerSecond = r.ReceivedPerSecond
		o.report.Delivery = lab.DeliveryOf(one, r)
	}
	return o
}

// sink is the interface at which packets are counted: the one that leads back to the sender. Nil where none are.
func (l *loads) sink(one lab.Load) (*pktgen.Port, error) {
	if one.Arrive == nil {
		return nil, nil
	}
	back, err := pktgen.ReadEgress(pktgen.Route{Netns: l.c.node(one.Arrive.Node)}, l.c.sc.Addresses(one.From)[0])
	return &back.Port, err
}

// warmUp makes all flows known to what forwards them: what a new one costs is not measured.
func warmUp(ctx context.Context, cfg packets.Config, way pktgen.Egress, sink *pktgen.Port) error {
	cfg.Packets = 2 * int64(cfg.Flows.Count)
	_, err := pktgen.Run(ctx, cfg, way, sink, nil)
	return err
}

func packetsConfig(one lab.Load, own []netip.Addr) (packets.Config, error) {
	spec := packets.Spec{Protocol: unix.IPPROTO_UDP, IPv6: one.To.Addr().Is6(), HopLimit: 64}
	if one.TCP != "" {
		var err error
		if spec.TCPFlags, err = packets.ParseFlagCycle(one.TCP); err != nil {
			return packets.Config{}, err
		}
		spec.Protocol = unix.IPPROTO_TCP
	}
	spec.Sizes = []int{spec.MinSize()}
	flows := packets.Flows{Count: one.Flows, Sources: one.Sources, Seed: one.Seed,
		SourcePorts: nat.Ports(one.SourcePorts), Destinations: []netip.AddrPort{one.To}}
	if len(flows.Sources) == 0 {
		flows.Sources = own[:1]
	}
	if flows.SourcePorts.Len() == 0 {
		flows.SourcePorts = nat.Ports{First: 1024, Last: 65535}
	}
	if flows.Count == 0 {
		flows.Count = packetsFlows
		if one.Requests > 0 { // each packet is a flow of its own
			flows.Count = int(min(one.Requests, packets.MaxFlows))
		}
		flows.Count = min(flows.Count, len(flows.Sources)*flows.SourcePorts.Len())
	}
	workers := one.Workers
	if workers == 0 {
		workers = min(runtime.NumCPU(), flows.Count)
	}
	cfg := packets.Config{Spec: spec, Flows: flows, Packets: one.Requests, Rate: one.Rate, Workers: workers}
	if a := one.Arrive; a != nil {
		same := packets.End{Address: packets.Same, Port: packets.Same}
		cfg.Verify, cfg.Expect = true, packets.Expectation{Source: same, Destination: same}
		if a.As.IsValid() {
			var err error
			if cfg.Expect.Destination, err = packets.ParseEnd(a.As.String()); err != nil {
				return packets.Config{}, err
			}
		}
	}
	return cfg, nil
}

func (l *loads) none(ctx context.Context, one lab.Load) (o outcome) {
	l.say("idle for " + one.For.String())
	o.err = wait(ctx, l.bounded(one.For))
	o.result = result(one.For.Seconds(), 0, 0)
	return o
}
