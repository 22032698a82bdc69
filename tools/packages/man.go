package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/natkit/natkit/internal/cli"
)

// manPages returns the pages of all verbs, by file name, compressed as the distributions do.
func manPages(s Source) (map[string][]byte, error) {
	pages := map[string][]byte{}
	root := cli.Commands(s.Version)
	root.DisableAutoGenTag = true
	var visit func(*cobra.Command) error
	visit = func(cmd *cobra.Command) error {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
			return nil
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		cmd.Long = markdown(cmd.Long)
		var page bytes.Buffer
		header := &doc.GenManHeader{Title: strings.ToUpper(name), Section: "1", Date: &s.Time, Source: "natkit " + s.Version, Manual: "natkit"}
		if err := doc.GenMan(cmd, header, &page); err != nil {
			return fmt.Errorf("make man page %s: %w", name, err)
		}
		text, err := compressed(page.Bytes())
		if err != nil {
			return err
		}
		pages[name+".1.gz"] = text
		for _, sub := range cmd.Commands() {
			if err := visit(sub); err != nil {
				return err
			}
		}
		return nil
	}
	return pages, visit(root)
}

// fleetPages returns the pages of natkit-fleet and of kubectl-natkit, which is the same script: what its head says, and its usage by
// either name.
func fleetPages(root string, s Source) (map[string][]byte, error) {
	script := filepath.Join(root, "deploy/natkit-fleet")
	text, err := os.ReadFile(script)
	if err != nil {
		return nil, err
	}
	summary, about := headOf(string(text))
	pages := map[string][]byte{}
	for _, name := range []string{"natkit-fleet", "kubectl-natkit"} {
		usage, err := exec.Command("bash", "-c", `. "$1" --help`, name, script).Output()
		if err != nil {
			return nil, fmt.Errorf("make man page %s: ask it for its usage: %w", name, err)
		}
		page := fmt.Sprintf(".TH %q \"1\" %q %q \"natkit\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n%s.fi\n.SH DESCRIPTION\n.nf\n%s.fi\n.SH SEE ALSO\n\\fBnatkit\\-doctor(1)\\fP, \\fBnatkit\\-snapshot(1)\\fP\n",
			strings.ToUpper(name), s.Time.Format("Jan 2006"), "natkit "+s.Version, roff.Replace(name), roff.Replace(summary), roffLines(string(usage)), roffLines(about))
		if pages[name+".1.gz"], err = compressed([]byte(page)); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// headOf returns the first sentence of the comment at the head of a script, without what marks it, and the paragraphs behind it.
func headOf(script string) (summary, about string) {
	_, rest, _ := strings.Cut(script, "\n")
	var head strings.Builder
	for line := range strings.Lines(rest) {
		text, is := strings.CutPrefix(line, "#")
		if !is || strings.HasPrefix(text, " shellcheck ") {
			break
		}
		head.WriteString(strings.TrimPrefix(text, " "))
	}
	summary, about, _ = strings.Cut(head.String(), ".\n")
	return strings.ToLower(summary[:1]) + summary[1:], strings.TrimLeft(about, "\n")
}

var roff = strings.NewReplacer(`\`, `\e`, "-", `\-`)

// roffLines is text that is laid out already: a line that begins with . or ' is no request.
func roffLines(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			out.WriteString(`\&`)
		}
		out.WriteString(roff.Replace(line))
	}
	return out.String()
}

// markdown is a help text as the generator of pages takes it: a paragraph that is indented is laid out already, and what
// has a meaning in Markdown alone is text.
func markdown(help string) string {
	var out strings.Builder
	laidOut := false
	for line := range strings.Lines(help) {
		indented := strings.HasPrefix(line, "  ")
		if strings.TrimSpace(line) != "" && indented != laidOut {
			out.WriteString("\n")
			laidOut = indented
		}
		if indented {
			out.WriteString("    " + strings.TrimPrefix(line, "  "))
			continue
		}
		out.WriteString(escape.Replace(line))
	}
	return out.String()
}

var escape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `_`, `\_`, `<`, `\<`, "`", "\\`", `[`, `\[`, `#`, `\#`)

// compressed is gzip without a name and a time.
func compressed(text []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w.ModTime = time.Time{}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

// zshCompletion is where zsh looks for completions, but on Debian, where packages have another place.
const zshCompletion = "/usr/share/zsh/site-functions/_natkit"

// completions returns the scripts of the shells, by where their packages have them.
func completions(version string) (map[string][]byte, error) {
	files := map[string][]byte{}
	root := cli.Commands(version)
	var out bytes.Buffer
	for name, generate := range map[string]func() error{
		"bash-completion/completions/natkit":             func() error { return root.GenBashCompletionV2(&out, true) },
		strings.TrimPrefix(zshCompletion, "/usr/share/"): func() error { return root.GenZshCompletion(&out) },
		"fish/vendor_completions.d/natkit.fish":          func() error { return root.GenFishCompletion(&out, true) },
	} {
		out.Reset()
		if err := generate(); err != nil {
			return nil, fmt.Errorf("make completion %s: %w", name, err)
		}
		files[name] = bytes.Clone(out.Bytes())
	}
	return files, nil
}
