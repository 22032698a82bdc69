package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
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

// completions returns the scripts of the shells, by where their packages have them.
func completions(version string) (map[string][]byte, error) {
	files := map[string][]byte{}
	root := cli.Commands(version)
	var out bytes.Buffer
	for name, generate := range map[string]func() error{
		"bash-completion/completions/natkit":    func() error { return root.GenBashCompletionV2(&out, true) },
		"zsh/site-functions/_natkit":            func() error { return root.GenZshCompletion(&out) },
		"fish/vendor_completions.d/natkit.fish": func() error { return root.GenFishCompletion(&out, true) },
	} {
		out.Reset()
		if err := generate(); err != nil {
			return nil, fmt.Errorf("make completion %s: %w", name, err)
		}
		files[name] = bytes.Clone(out.Bytes())
	}
	return files, nil
}
