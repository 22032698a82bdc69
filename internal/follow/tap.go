package follow

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tap"
)

// Tap follows connections from Start to Stop.
type Tap struct {
	ns     *netns.Handle
	watch  *Watch
	socket *tap.Socket
	rate   *tap.Rate
	began  time.Time
	links  map[int]string
	// datagrams are followed while they are not too many.
	datagrams bool
	stop      func() error
}

// Start begins to follow connections through a namespace (nil: the one natkit runs in). Needs
// CAP_NET_RAW there.
func Start(ctx context.Context, ns *netns.Handle) (t *Tap, err error) {
	if err := netns.CheckPrivilege(netns.Need{Any: netns.NetRaw, Why: "for a packet socket, to follow connections"}); err != nil {
		return nil, fmt.Errorf("follow connections: %w", err)
	}
	t = &Tap{ns: ns, watch: NewWatch(), rate: tap.NewRate(), began: time.Now(), links: map[int]string{}, datagrams: true}
	err = ns.Do(func() (err error) {
		t.socket, err = tap.Open(unix.ETH_P_ALL, t.rate.Sample, func(sample int) ([]bpf.RawInstruction, error) { return firstPackets(sample, t.datagrams) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("follow connections: %w", err)
	}
	t.stop = tap.Run(ctx, t.poll)
	return t, nil
}

// poll takes the packets that have come. Where they are too many it gives up datagrams first,
// of which a sample would miss the answers.
func (t *Tap) poll() error {
	var f frame.Frame
	n, err := t.socket.Receive(func(p *tap.Packet) {
		if f.DecodeNetwork(tap.EtherType(p.Version), p.Data) != nil {
			return
		}
		at := time.Since(t.began)
		if !p.At.IsZero() {
			at = p.At.Sub(t.began)
		}
		t.watch.See(Packet{At: at.Seconds(), Interface: p.Interface, Sent: p.Sent, Frame: &f})
	})
	if err != nil || !t.rate.Add(n) {
		return err
	}
	if t.datagrams {
		t.datagrams, t.rate.Sample = false, t.rate.Sample/2
	}
	return t.socket.Attach(t.rate.Sample)
}

// Stop ends the watch and returns its result. It may be called once.
func (t *Tap) Stop() (*snapshot.Followed, error) {
	err := t.stop()
	seconds := time.Since(t.began).Seconds()
	lost := t.socket.Lost()
	t.socket.Close()
	if err != nil {
		return nil, fmt.Errorf("follow connections: %w", err)
	}
	err = t.ns.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			t.links[l.Index] = l.Name
		}
		return err
	})
	r := t.watch.Result(seconds, func(index int) string { return t.links[index] })
	r.Seconds, r.Sample, r.TCPOnly = seconds, t.rate.Sample, !t.datagrams
	r.Lost += lost
	return r, err
}
