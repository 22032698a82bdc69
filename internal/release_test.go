package internal_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReleaseNotes: the notes of a release are its section of the changelog.
func TestReleaseNotes(t *testing.T) {
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	const text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- new\n\n## [1.2.0] - 2027-01-31\n\n### Fixed\n\n- one\n  of two lines\n\n- two\n\n## [1.1.0] - 2027-01-01\n\n\n[1.2.0]: https://example.net/\n"
	if err := os.WriteFile(changelog, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ version, want, refusal string }{
		{"v1.2.0", "### Fixed\n\n- one\n  of two lines\n\n- two\n", ""},
		{"1.2.0", "### Fixed\n\n- one\n  of two lines\n\n- two\n", ""},
		{"Unreleased", "### Added\n\n- new\n", ""},
		{"v1.1.0", "", "is empty"},
		{"v1.2", "", `no section "## [1.2]"`},
	} {
		cmd := exec.Command("../scripts/release-notes", tt.version, changelog)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if string(out) != tt.want || (err != nil) != (tt.refusal != "") || !strings.Contains(stderr.String(), tt.refusal) {
			t.Errorf("%s: %q, %v, %q", tt.version, out, err, &stderr)
		}
	}
}

// readme is what two languages of README.md have in common, in order.
type readme struct {
	// Levels are those of the headings.
	Levels []int
	// Blocks are commands and output.
	Blocks []string
	// Code is what stands in backticks in the rows of tables, and Links all links but those to sections of the page.
	Code, Links []string
}

var (
	codeBlock   = regexp.MustCompile("(?ms)^```.*?^```$")
	headingMark = regexp.MustCompile(`(?m)^#+ `)
	tableRow    = regexp.MustCompile(`(?m)^\|.*\|$`)
	backticks   = regexp.MustCompile("`[^`]+`")
	linkTarget  = regexp.MustCompile(`\]\(([^)#][^)]*)\)`)
	// comment is text for people in a block of commands.
	comment = regexp.MustCompile(`(?m) +# .*$`)
)

func readReadme(t *testing.T, name string) (r readme) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range codeBlock.FindAllString(string(text), -1) {
		r.Blocks = append(r.Blocks, comment.ReplaceAllString(block, ""))
	}
	rest := codeBlock.ReplaceAllString(string(text), "")
	for _, h := range headingMark.FindAllString(rest, -1) {
		r.Levels = append(r.Levels, len(h)-1)
	}
	for _, row := range tableRow.FindAllString(rest, -1) {
		r.Code = append(r.Code, backticks.FindAllString(row, -1)...)
	}
	for _, l := range linkTarget.FindAllStringSubmatch(rest, -1) {
		r.Links = append(r.Links, l[1])
	}
	// Each names the other one at its head.
	r.Links = slices.DeleteFunc(r.Links, func(l string) bool { return strings.HasPrefix(l, "README") })
	// A sentence of another language may name things in another order.
	slices.Sort(r.Links)
	return r
}

var updateDocs = flag.Bool("update-docs", false, "copy commands and output into README.zh.md instead of comparing them")

// copyBlocks copies the blocks of README.md into README.zh.md, one by one, but for those that differ in comments alone.
func copyBlocks(t *testing.T, english readme) {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	from := codeBlock.FindAllString(string(text), -1)
	if text, err = os.ReadFile("../README.zh.md"); err != nil {
		t.Fatal(err)
	}
	next := 0
	updated := codeBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		if next++; next > len(from) || comment.ReplaceAllString(block, "") == english.Blocks[next-1] {
			return block
		}
		return from[next-1]
	})
	if err := os.WriteFile("../README.zh.md", []byte(updated), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestReadmeInChinese: README.zh.md has the sections, commands, output and links of README.md.
func TestReadmeInChinese(t *testing.T) {
	english := readReadme(t, "../README.md")
	if *updateDocs {
		copyBlocks(t, english)
	}
	chinese := readReadme(t, "../README.zh.md")
	if len(english.Blocks) < 4 || len(english.Levels) < 8 || len(english.Code) < 15 || len(english.Links) < 20 {
		t.Fatalf("README.md was not understood: %+v", english)
	}
	if diff := cmp.Diff(english, chinese); diff != "" {
		t.Errorf("README.zh.md differs from README.md (-en +zh):\n%s", diff)
	}
}
