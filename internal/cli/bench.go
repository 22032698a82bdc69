package cli

import (
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
