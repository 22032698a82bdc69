package internal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// page is a Markdown file: the anchors that can be linked to, and its links.
type page struct{ anchors, links []string }

var (
	heading  = regexp.MustCompile(`^#{1,6} (.+)`)
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inline   = regexp.MustCompile("`[^`]*`")
	unlinked = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// readPage passes over what is code: a comment there is no heading, an index no link.
func readPage(t *testing.T, path string) page {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var p page
	same, fenced := map[string]int{}, false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(line, "    ") {
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			a := anchor(m[1])
			if same[a]++; same[a] > 1 {
				a = fmt.Sprintf("%s-%d", a, same[a]-1)
			}
			p.anchors = append(p.anchors, a)
		}
		for _, m := range link.FindAllStringSubmatch(inline.ReplaceAllString(line, "``"), -1) {
			p.links = append(p.links, m[1])
		}
	}
	return p
}

// anchor is the one that GitHub gives a heading.
func anchor(text string) string {
	text = unlinked.ReplaceAllString(strings.ToLower(strings.TrimSpace(text)), "")
	return strings.ReplaceAll(text, " ", "-")
}

// pages are all of the documentation's, by their paths from here.
func pages(t *testing.T) map[string]page {
	t.Helper()
	all := map[string]page{}
	for _, path := range []string{"../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../SECURITY.md", "../README.zh.md"} {
		all[path] = readPage(t, path)
	}
	if err := filepath.WalkDir("../docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			all[path] = readPage(t, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestLinksLeadSomewhere: each relative link of the documentation is to a file that exists,
// and to a heading of it.
func TestLinksLeadSomewhere(t *testing.T) {
	all, followed := pages(t), 0
	for from, p := range all {
		for _, target := range p.links {
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			followed++
			name, part, _ := strings.Cut(target, "#")
			path := from
			if name != "" {
				path = filepath.Join(filepath.Dir(from), name)
			}
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s links to %s, which does not exist", from, target)
			} else if to, is := all[path]; part != "" && (!is || !slices.Contains(to.anchors, part)) {
				t.Errorf("%s links to %s, which has no such heading", from, target)
			}
		}
	}
	if followed < 100 {
		t.Fatalf("found only %d links: the search is broken", followed)
	}
}

// TestMapHasEveryPage: docs/README.md links to each page of docs exactly once.
func TestMapHasEveryPage(t *testing.T) {
	const at = "../docs/README.md"
	linked := map[string]int{}
	for _, target := range readPage(t, at).links {
		linked[filepath.Join("../docs", target)]++
	}
	found, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if n := linked[path]; path != at && n != 1 {
			t.Errorf("%s links %d times to %s", at, n, path)
		}
	}
}

// TestNamedPagesExist: each page of docs that help texts, scripts and the service's unit name.
func TestNamedPagesExist(t *testing.T) {
	named, where := regexp.MustCompile(`docs/[a-z/-]+\.md`), map[string]string{}
	for _, root := range []string{"../internal", "../scripts", "../deploy", "../Makefile"} {
		if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, name := range named.FindAllString(string(text), -1) {
				where[name] = path
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(where) < 5 {
		t.Fatalf("found only the pages %v: the search is broken", where)
	}
	for name, path := range where {
		if _, err := os.Stat("../" + name); err != nil {
			t.Errorf("%s names %s: %v", path, name, err)
		}
	}
}
