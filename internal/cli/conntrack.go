package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/units"
)

// conntrackVerb is the verb conntrack without a sub-command: the table on one screen.
type conntrackVerb struct {
	env     *Env
	entries entries
}

func newConntrack(env *Env) *cobra.Command {
	c := &conntrackVerb{env: env}
	cmd := &cobra.Command{
		Use:   "conntrack",
		Short: "see what is in the connection table",
		Long: `Tells what the connection table of a network namespace holds, or one that was
written to a text.`,
		Example: `  sudo natkit conntrack
  sudo natkit conntrack --netns gateway
  conntrack -L -o extended | natkit conntrack --from -`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		Annotations:       runsItself,
		RunE:              func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	c.entries.addFlags(cmd)
	cmd.AddCommand(conntrackCommands(env)...)
	return cmd
}

func (c *conntrackVerb) run(cmd *cobra.Command) error {
	sampler := conntrack.NewSampler()
	about, err := c.entries.each(cmd, c.env, nil, func(e *conntrack.Entry) error {
		sampler.Add(e)
		return nil
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.env.Stdout, "%s: %s\n", about.Source, units.Plural(about.Entries, "entry", "entries"))
	return err
}
