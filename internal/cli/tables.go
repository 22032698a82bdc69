package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/natkit/natkit/internal/units"
)

// parquetFormat is the word of --output for tables.
const parquetFormat = "parquet"

// tableFlags choose where tables go.
type tableFlags struct {
	env                *Env
	to, node, endpoint string
}

// tableFlagNames are the flags that --output parquet has.
var tableFlagNames = []string{"to", "node", "s3-endpoint"}

// addFlags adds --to, --node and --s3-endpoint.
func (f *tableFlags) addFlags(env *Env, cmd *cobra.Command) {
	f.env = env
	flags := cmd.Flags()
	flags.Var(into(&f.to, func(to string) (string, error) {
		_, err := store.KindOf(to)
		return to, err
	}), "to", "with --output parquet: write to `PLACE`: a directory (TABLE/day=DAY/node=NAME/part-….parquet), a file *.parquet (- is stdout) for one table, or s3://BUCKET/PREFIX")
	flags.Var(into(&f.node, func(node string) (string, error) { return node, store.CheckNode(node) }),
		"node", "with --output parquet: `NAME` of the host in the rows (default: this host's name)")
	flags.Var(into(&f.endpoint, notEmpty("a URL")), "s3-endpoint", "with --output parquet and s3://: `URL` of the store (default AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, then that of AWS)")
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	} else {
		cmd.Annotations = maps.Clone(cmd.Annotations)
	}
	cmd.Annotations[formatsKey] = strings.TrimSpace(cmd.Annotations[formatsKey] + " " + parquetFormat)
}

// check refuses flags of tables without the format, and the format without a place.
func (f *tableFlags) check(cmd *cobra.Command, chosen bool) error {
	for _, name := range tableFlagNames {
		if !chosen && cmd.Flags().Changed(name) {
			return usagef("--%s requires --output parquet", name)
		}
	}
	if chosen && f.to == "" {
		return usagef("--output parquet requires --to PLACE: a directory, a file *.parquet, or s3://BUCKET/PREFIX")
	}
	if kind, _ := store.KindOf(f.to); f.endpoint != "" && kind != store.ToS3 {
		return usagef("--s3-endpoint requires --to s3://BUCKET/PREFIX")
	}
	return nil
}

// chosen reports whether the verb writes tables; it is for verbs whose --output is Env.format.
func (f *tableFlags) chosen(cmd *cobra.Command) (bool, error) {
	is := f.env.format == parquetFormat
	return is, f.check(cmd, is)
}

// several refuses a file for several tables.
func (f *tableFlags) several() error {
	if kind, _ := store.KindOf(f.to); kind == store.ToFile {
		return usagef("--to %s: there are several tables: give a directory or s3://BUCKET/PREFIX", f.to)
	}
	return nil
}

// named returns the node; of is that of what is read, empty where it is not known. Elsewhere is true where it may be
// another host.
func (f *tableFlags) named(of string, elsewhere bool) (string, error) {
	if f.node != "" {
		return f.node, nil
	}
	if of != "" {
		return of, nil
	}
	host, err := os.Hostname()
	if err == nil {
		err = store.CheckNode(host)
	}
	if err != nil {
		return "", fmt.Errorf("this host's name %.80q: %w; use --node", host, err)
	}
	if elsewhere {
		f.noteHost(host)
	}
	return host, nil
}

func (f *tableFlags) noteHost(host string) {
	f.env.note("the rows are of node %s, this host; use --node for what was taken on another one", host)
}

// open begins to write tables. What goes on until it is interrupted is written all the same with a context that is not.
func (f *tableFlags) open(ctx context.Context, node string) (*store.Store, error) {
	return store.Open(ctx, store.Options{To: f.to, Node: node, Version: f.env.Version, Now: time.Now(), Stdout: f.env.Stdout, S3: s3Of(f.env.Getenv, f.endpoint)})
}

// s3Of is how a store is reached: by the variables that its own programs read, and the endpoint of --s3-endpoint before theirs.
func s3Of(getenv func(string) string, endpoint string) store.S3 {
	return store.S3{Endpoint: cmp.Or(endpoint, getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL")), Region: cmp.Or(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION")),
		AccessKey: getenv("AWS_ACCESS_KEY_ID"), SecretKey: getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: getenv("AWS_SESSION_TOKEN")}
}

// commit makes the tables visible, and notes what was written.
func (f *tableFlags) commit(s *store.Store) error {
	if err := s.Commit(); err != nil {
		return err
	}
	rows := s.Rows()
	var all []string
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		all = append(all, units.Plural(rows[name], "row", "rows")+" of "+name)
	}
	if len(all) == 0 {
		all = []string{"no rows"}
	}
	f.env.note("wrote %s to %s", strings.Join(all, ", "), report.Clean(f.to))
	return nil
}
