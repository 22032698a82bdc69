package cli

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/report"
)

const versionSchema = "natkit.version/1"

// Build is what natkit was built from. What is not known is empty.
type Build struct {
	// Version is the tag, with the number of commits since it and their last one; the
	// commit where there is no tag.
	Version string `json:"version"`
	Tag     string `json:"tag"`
	Commit  string `json:"commit"`
	// Date is when the commit was made.
	Date string `json:"date"`
	// Modified is true where the sources were not those of the commit.
	Modified bool `json:"modified"`
}

// Both forms that the words of scripts/version and of an archive's VERSION have: with a
// tag, or with the commit and its date alone.
var (
	described = regexp.MustCompile(`^(.+?)(-\d+-g[0-9a-f]+)?(-dirty)?$`)
	hash      = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
	// pseudo is the version of a commit without a tag for the go command
	// (go.dev/ref/mod#pseudo-versions).
	pseudo = regexp.MustCompile(`[.-](\d{14})-([0-9a-f]{12})$`)
)

// BuildOf is found in what the linker was told and in what git put into an archive, each
// of them "VERSION COMMIT DATE", and in what the go command recorded.
func BuildOf(linked, archived string, info *debug.BuildInfo) Build {
	var b Build
	if b.words(linked); b.Version == "" && !strings.Contains(archived, "$Format") {
		b.words(archived)
	}
	if info != nil {
		b.recorded(info)
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	return b
}

func (b *Build) words(text string) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return
	}
	if b.Version = words[0]; len(words) == 2 { // git had no tag to name
		words = append([]string{words[0][:min(12, len(words[0]))]}, words...)
		b.Version = words[0]
	}
	b.Modified = strings.HasSuffix(b.Version, "-dirty")
	if m := described.FindStringSubmatch(b.Version); m[1] != "unknown" && !hash.MatchString(m[1]) {
		b.Tag = m[1]
	}
	if len(words) == 3 {
		b.Commit, b.Date = words[1], words[2]
	}
}

// recorded takes what is missing from the go command: the version of a module that 'go
// install' fetched, or the commit of the checkout.
func (b *Build) recorded(info *debug.BuildInfo) {
	if version := info.Main.Version; b.Version == "" && version != "(devel)" {
		b.Version = version
		version, _, _ = strings.Cut(version, "+")
		if m := pseudo.FindStringSubmatch(version); m != nil {
			b.Commit = m[2]
			if date, err := time.Parse("20060102150405", m[1]); err == nil {
				b.Date = date.Format(time.RFC3339)
			}
		} else {
			b.Tag = version
		}
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) > len(b.Commit):
			b.Commit = s.Value
		case s.Key == "vcs.time" && b.Date == "":
			b.Date = s.Value
		case s.Key == "vcs.modified":
			b.Modified = b.Modified || s.Value == "true"
		}
	}
	if b.Version == "" {
		b.Version = b.Commit[:min(12, len(b.Commit))]
	}
}

// versionDocument is the JSON form.
type versionDocument struct {
	Schema string `json:"schema"`
	Build
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "print what this natkit was built from: tag, commit, date, Go, platform",
		Example: "  natkit version\n  natkit version -o json | jq -r .commit",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			doc := versionDocument{versionSchema, env.Build, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			doc.Version = env.Version
			if asJSON {
				return report.JSON(env.Stdout, doc)
			}
			return doc.text(env)
		},
	}
	addJSON(cmd, &asJSON, versionSchema)
	return cmd
}

func (d versionDocument) text(env *Env) error {
	t := &report.Table{Columns: []report.Column{{}, {}}}
	for _, row := range [][2]string{{"natkit", d.Version}, {"tag", d.Tag}, {"commit", d.Commit}, {"date", d.Date}, {"go", d.Go}, {"platform", d.Platform}} {
		if row[1] == "" {
			row[1] = "unknown"
		}
		t.Row(row[0], row[1])
	}
	if err := t.Write(env.Stdout, env.style()); err != nil {
		return err
	}
	if d.Modified {
		_, err := fmt.Fprintln(env.Stdout, "with changes that are not in that commit")
		return err
	}
	return nil
}
