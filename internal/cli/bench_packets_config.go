package cli

import (
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/packet"
)

const (
	defaultSourcePorts = "1024-65535"
	defaultFlows       = 1000
	defaultTTL         = 64
	defaultPacketsTime = 10 * time.Second
)

// config is the run that the command line describes, but for the source address
// where the kernel is to choose it. All is checked before anything is opened.
func (b *benchPackets) config(to string) (packet.Config, error) {
	cfg := b.cfg
	cfg.Duration = b.limit()
	dst, err := netip.ParseAddrPort(to)
	if err != nil {
		return cfg, usagef("destination %q: must be ADDR:PORT, such as 198.18.0.1:8080 or [2001:db8::1]:80", to)
	}
	cfg.Flows.Destinations = []netip.AddrPort{dst}
	cfg.Spec.IPv6 = cfg.Flows.IPv6()
	for _, fill := range []func(*packet.Config) error{b.fillFlows, b.fillSpec, b.fillExpectation} {
		if err := fill(&cfg); err != nil {
			return cfg, err
		}
	}
	if err := checkWithSource(cfg); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// limit bounds every run in time.
func (b *benchPackets) limit() time.Duration {
	switch {
	case b.time != 0:
		return time.Duration(b.time)
	case b.cfg.Packets != 0:
		return packet.MaxDuration
	}
	return defaultPacketsTime
}

// checkWithSource checks as if there were a source address, where none is given.
func checkWithSource(cfg packet.Config) error {
	if len(cfg.Flows.Sources) == 0 {
		stand := netip.AddrFrom4([4]byte{192, 0, 2, 1})
		if cfg.Spec.IPv6 {
			stand = netip.MustParseAddr("2001:db8::1")
		}
		cfg.Flows.Sources = []netip.Addr{stand}
	}
	return cfg.Check()
}

func (b *benchPackets) fillFlows(cfg *packet.Config) (err error) {
	if cfg.Flows.Sources, cfg.Flows.SourcePorts, err = b.source.parse(); err != nil {
		return err
	}
	if cfg.Flows.Count == 0 {
		cfg.Flows.Count = min(defaultFlows, max(len(cfg.Flows.Sources), 1)*cfg.Flows.SourcePorts.Len())
	}
	if cfg.Workers == 0 {
		cfg.Workers = allWorkers(cfg)
	}
	return nil
}

// allWorkers is one for each CPU, as far as each has a flow and a packet to send.
func allWorkers(cfg *packet.Config) int {
	n := min(runtime.NumCPU(), max(cfg.Flows.Count, 1))
	if cfg.Packets > 0 {
		n = int(min(int64(n), cfg.Packets))
	}
	return n
}

func (b *benchPackets) fillSpec(cfg *packet.Config) (err error) {
	cfg.Spec.Protocol = unix.IPPROTO_UDP
	if b.tcp != "" {
		cfg.Spec.Protocol = unix.IPPROTO_TCP
		if cfg.Spec.TCPFlags, err = packet.ParseTCPFlags(b.tcp); err != nil {
			return usageError{err}
		}
	}
	cfg.Spec.Sizes, err = frameSizes(b.size, cfg.Spec.MinSize())
	return err
}

// frameSizes reads sizes. One that was named must be possible; those of the default
// and of IMIX, which have UDP over IPv4 in mind, are made as great as they have to be.
func frameSizes(text string, least int) ([]int, error) {
	if text == "" {
		return []int{least}, nil
	}
	sizes, err := packet.ParseSizes(text)
	if err != nil {
		return nil, usageError{err}
	}
	if strings.EqualFold(text, "imix") {
		for i := range sizes {
			sizes[i] = max(sizes[i], least)
		}
	}
	return sizes, nil
}

func (b *benchPackets) fillExpectation(cfg *packet.Config) error {
	for _, end := range []struct {
		flag, text string
		to         *packet.End
	}{
		{"--expect-source", b.expect.source, &cfg.Expect.Source},
		{"--expect-destination", b.expect.destination, &cfg.Expect.Destination},
	} {
		if end.text == "" {
			continue
		}
		parsed, err := packet.ParseEnd(end.text)
		if err != nil {
			return usagef("%s: %w", end.flag, err)
		}
		*end.to = parsed
	}
	cfg.Verify = cfg.Verify || cfg.Expect.Given()
	return nil
}

// checkReceiver finds what only makes sense where something is counted. It returns
// the loss that is allowed; a negative one where any is.
func (b *benchPackets) checkReceiver(cmd *cobra.Command) (maxLoss float64, err error) {
	if maxLoss, err = b.parseMaxLoss(); err != nil {
		return 0, err
	}
	if err := b.ways.check(cmd); err != nil || b.ways.counts(cmd) {
		return maxLoss, err
	}
	for _, flag := range []string{"expect-source", "expect-destination", "verify", "max-loss"} {
		if cmd.Flags().Changed(flag) {
			return 0, usagef("--%s: nobody looks at what arrives: give --sink", flag)
		}
	}
	if !cmd.Flags().Changed("rate") && !cmd.Flags().Changed("packets") {
		return 0, usagef("without --sink nobody sees what the packets do to their receiver: say how many to send (--packets) or how fast (--rate; 0 is as fast as one can)")
	}
	return maxLoss, nil
}

// parseMaxLoss reads the share that may be lost; -1 where none is given.
func (b *benchPackets) parseMaxLoss() (float64, error) {
	if b.maxLoss == "" {
		return -1, nil
	}
	return parseShare("max-loss", b.maxLoss)
}
