// Package trial carries out the trials of RFC 9693 with generated packets.
package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/natkit/natkit/internal/bpf/pktgen"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/load/rfc9693"
	"github.com/natkit/natkit/internal/netns"
)

// Gateway is a NAT gateway between an initiator and a responder.
type Gateway struct {
	// Packets are the test frames; their number, their rate and that of the flows are the trial's.
	Packets packets.Config
	// From is the initiator's way to the gateway.
	From pktgen.Egress
	// To is the responder's interface. Replies leave by it.
	To pktgen.Port
	// Neighbours are as in pktgen.Route, for the way of the replies.
	Neighbours []*netns.Handle
	// Table is the gateway's.
	Table Table
	// Tolerance is that of the sender.
	Tolerance rfc9693.Tolerance
}

// warmUp are the connections of Probe, and their rate.
const (
	warmUp     = 100
	warmUpRate = 1000
)

// Probe makes a few connections at a low rate, by which hosts on the way find their neighbours, and
// returns why not all of them are established.
func (g *Gateway) Probe(ctx context.Context, most int) error {
	anyTime := rfc9693.Tolerance{Overrun: math.MaxInt64}
	t := rfc9693.Trial{Connections: min(most, warmUp), PerSecond: warmUpRate}
	o, err := g.establish(ctx, t, anyTime)
	if err == nil && (o.Arrived < o.Sent || o.Returned < o.Replied) { // neighbours may have been unknown
		o, err = g.establish(ctx, t, anyTime)
	}
	switch n := int64(o.Connections); {
	case err != nil:
		return err
	case o.Arrived < n:
		return fmt.Errorf("only %d of the first %d test frames arrived at %v: check filter rules, and whether the table has room", o.Arrived, n, g.To)
	case o.Returned < n:
		return fmt.Errorf("only %d of the first %d replies returned to %v: check that the gateway finds the source addresses there, and what it does with replies", o.Returned, n, g.From.Port)
	}
	return nil
}

// Establish empties the table, sends the test frames of phase 1 and, if all arrived, a reply in each
// connection.
func (g *Gateway) Establish(ctx context.Context, t rfc9693.Trial) (rfc9693.Outcome, error) {
	o, err := g.establish(ctx, t, g.Tolerance)
	if none := new(pktgen.NoneArrivedError); errors.As(err, &none) {
		err = nil
	}
	o.Verdict = o.Judge(g.Tolerance)
	return o, err
}

// establish is Establish without a verdict. Where the sender is too slow it does without the replies.
func (g *Gateway) establish(ctx context.Context, t rfc9693.Trial, tolerance rfc9693.Tolerance) (o rfc9693.Outcome, err error) {
	o.Trial = t
	if _, err := g.Empty(ctx); err != nil {
		return o, err
	}
	cfg := g.Packets
	cfg.Flows.Count, cfg.Packets, cfg.Rate = t.Connections, int64(t.Connections), t.PerSecond
	cfg.Workers = min(max(cfg.Workers, 1), t.Connections)
	cfg.Even, cfg.Verify = true, true
	sent, learned, err := pktgen.Learn(ctx, cfg, g.From, g.To, nil)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, learned.Close()) }()
	if err := ctx.Err(); err != nil {
		return o, err
	}
	o.Sent, o.Arrived, o.LateSeconds, o.OverrunSeconds = sent.Sent, arrived(sent), sent.LateSeconds, sent.BehindSeconds
	if o.Arrived < int64(t.Connections) || o.TooSlow(tolerance) {
		return o, nil
	}
	return o, g.validate(ctx, learned, &o)
}

// validate sends the replies (RFC 9693, Validation of Connection Establishment).
func (g *Gateway) validate(ctx context.Context, learned *pktgen.Learned, o *rfc9693.Outcome) error {
	_, to, err := learned.First()
	if err != nil {
		return err
	}
	back, err := pktgen.ReadEgress(pktgen.Route{Netns: g.To.Netns, Interface: g.To.Interface, Neighbours: g.Neighbours}, to.Addr())
	if err != nil {
		return fmt.Errorf("reply to the translated connections: %w", err)
	}
	r, err := learned.Reply(ctx, o.PerSecond*rfc9693.Alpha, back, g.From.Port, nil)
	if err != nil {
		return err
	}
	o.Replied, o.Returned, o.LateSeconds = r.Sent, arrived(r), max(o.LateSeconds, r.LateSeconds)
	return ctx.Err()
}

// arrived counts the test frames that arrived as they should, each once.
func arrived(r *packets.Result) int64 { return r.Received - r.Duplicated }

// Empty deletes all entries of the table.
func (g *Gateway) Empty(ctx context.Context) (time.Duration, error) {
	took, err := g.Table.Empty(ctx)
	if err != nil {
		err = fmt.Errorf("empty the gateway's table: %w", err)
	}
	return took, err
}
