package cli

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/spf13/cobra"
)

func newBench(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "make load and measure what comes of it; a server to aim it at",
	}
	cmd.AddCommand(newBenchHTTP(env), newBenchUDP(env), newBenchPackets(env), newBenchServe(env))
	return cmd
}

// sourceFlags say where load comes from.
type sourceFlags struct {
	addresses []string
	ports     string
}

// addFlags adds --source and --source-port; ports describes the latter.
func (s *sourceFlags) addFlags(cmd *cobra.Command, ports string) {
	cmd.Flags().StringArrayVar(&s.addresses, "source", nil, "send from this address, range or prefix (`ADDR[-ADDR]`, ADDR/BITS), in turn; may be repeated")
	cmd.Flags().StringVar(&s.ports, "source-port", s.ports, ports)
}

// parse returns no addresses and the zero range where none are given.
func (s *sourceFlags) parse() (addresses []netip.Addr, ports nat.Ports, err error) {
	if addresses, err = parseAddresses(s.addresses); err != nil || s.ports == "" {
		return addresses, ports, err
	}
	if ports, err = nat.ParsePorts(s.ports); err != nil {
		return nil, ports, usageError{fmt.Errorf("source %w", err)}
	}
	return addresses, ports, nil
}

// parseAddresses reads addresses, ranges and prefixes.
func parseAddresses(texts []string) (addresses []netip.Addr, err error) {
	for _, text := range texts {
		more, err := load.ParseSources(text)
		if err != nil {
			return nil, usageError{err}
		}
		addresses = append(addresses, more...)
	}
	return addresses, nil
}

// addTime adds -t, --time.
func addTime(cmd *cobra.Command, limit *seconds) {
	cmd.Flags().VarP(limit, "time", "t", "end after this time: seconds or 500ms, 2m, …")
}

// addSize adds --size, which packets.ParseSizes reads.
func addSize(cmd *cobra.Command, size *string) {
	cmd.Flags().StringVar(size, "size", "", "frame sizes in bytes, FCS included: `SIZE[,SIZE]` in turn, or imix (64, or the least possible)")
}

// addOwnNetwork adds the flag without which no load goes to public addresses.
func addOwnNetwork(cmd *cobra.Command, own *bool) {
	cmd.Flags().BoolVar(own, "i-own-this-network", false, "allow public addresses: they and all on the way there are yours")
}
