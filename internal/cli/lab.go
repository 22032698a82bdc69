package cli

import "github.com/spf13/cobra"

func newLab(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "reproduce NAT's failure modes on this kernel, in network namespaces",
		Long: `The lab builds small networks out of network namespaces, with a real web server
and the real netfilter of this kernel, and reproduces a failure mode in them:
the demonstration, the test bed and the benchmark.`,
		Example: `  natkit lab list
  sudo natkit lab run table-full
  sudo natkit lab up table-full && sudo natkit lab exec client -- ping -c 3 198.19.0.2`,
	}
	cmd.AddCommand(newLabRun(env), newLabList(env), newLabUp(env), newLabExec(env), newLabDown(env), newLabFill(env), newLabClean(env))
	return cmd
}
