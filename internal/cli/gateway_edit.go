//go:build linux

package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
)

const gatewaySetSchema = "natkit.gateway-set/1"

// gatewaySet are the flags of `natkit gateway set`.
type gatewaySet struct {
	env                   *Env
	dryRun, force, backup bool
}

func newGatewaySet(env *Env) *cobra.Command {
	s := gatewaySet{env: env}
	cmd := &cobra.Command{
		Use:   "set FILE EDIT…",
		Short: "change values in a gateway file, and nothing else in it",
		Long: `Change single values in a gateway file; its comments, order and layout stay. EDIT is

  PATH=VALUE    set a value; the word may be new
  PATH=         remove a word
  PATH+=ITEM    append an item to a list; a single value becomes a list
  PATH-=ITEM    remove an item from a list

PATH is words with dots between them. A rule is named by its place in its list, counted
from 0, or by its name: nat[2] or nat[web], in quotes as shells take brackets for
themselves, or nat.2 and nat.web. A list or a mapping is written in brackets as in the
file: 'interfaces.lan=[eth1, br0]', 'nat+={masquerade: {from: 10.0.0.0/8}}'.

The result is parsed and checked before it is written, in one step; owner, mode, ACL and
extended attributes stay, and a file with hard links is refused. Where it would not parse,
or has a refused finding that the file did not have, nothing is written. Rules that change
as well, by an anchor (&) or define, are printed. Nothing is applied: 'natkit gateway
apply' does that.

Exit codes: 0 ok, 1 error, 2 usage, or the result does not parse, 3 refused.`,
		Example: `  natkit gateway set gateway.yaml 'nat[web].to=10.0.0.4:80' interfaces.wan=eth1
  natkit gateway set gateway.yaml nat.2.enabled=off --dry-run
  natkit gateway set gateway.yaml 'nat[proxy].except-from+=192.168.0.2'
  natkit gateway set gateway.yaml nat-=web`,
		RunE:              func(_ *cobra.Command, args []string) error { return s.run(args[0], args[1:]) },
		ValidArgsFunction: completeEdit,
	}
	f := cmd.Flags()
	f.BoolVar(&s.dryRun, "dry-run", false, "print the difference and write nothing")
	f.BoolVar(&s.force, "force", false, "write it even if 'natkit gateway check' refuses the result")
	f.BoolVar(&s.backup, "backup", false, "keep the former file as FILE~")
	env.addJSON(cmd, gatewaySetSchema)
	return cmd
}

// completeEdit offers files, and then the paths of what the file has.
func completeEdit(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return completeYAML(cmd, args, word)
	}
	f, err := openEditable("set", args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var paths []string
	for _, path := range gateway.EditPaths(f.text) {
		if strings.HasPrefix(path, word) {
			paths = append(paths, path+"=")
		}
	}
	return paths, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// setDocument is what an edit does to a file.
type setDocument struct {
	Schema string `json:"schema"`
	File   string `json:"file"`
	// Diff is the difference in the unified format; empty where there is none.
	Diff string `json:"diff"`
	// Written: the file has the edits now.
	Written bool `json:"written"`
	// Also are other rules that the edits change.
	Also     []gateway.SideEffect `json:"also"`
	Findings []gateway.Finding    `json:"findings"`
	text     string
}

// Text writes the difference, or what became of it.
func (d setDocument) Text(w io.Writer, _ report.Style) error {
	_, err := io.WriteString(w, d.text)
	return err
}

func (s *gatewaySet) run(name string, args []string) error {
	collectSeldom()
	var edits []gateway.Edit
	for _, arg := range args {
		e, err := gateway.ParseEdit(arg)
		if err != nil {
			return usage(err)
		}
		edits = append(edits, e)
	}
	f, err := openEditable("set", name)
	if err != nil {
		return err
	}
	now, err := gateway.Edited(disk.Files{}, name, f.text, edits)
	if err != nil {
		return fmt.Errorf("set: %w", err)
	}
	doc := setDocument{Schema: gatewaySetSchema, File: name, Diff: f.difference(now.Text), Also: list(now.Also), Findings: list(gateway.Check(now.File, gateway.Facts{}))}
	if news := f.newlyRefused(doc.Findings); len(news) > 0 && !s.force {
		_ = report.GatewayFindings(s.env.Stderr, report.Style{}, name, news)
		return refusal{fmt.Errorf("set: %s is not written: 'natkit gateway check' would refuse it; --force writes it", f)}
	}
	switch {
	case doc.Diff == "":
		doc.text = fmt.Sprintf("%s: nothing to change\n", f)
	case s.dryRun:
		doc.text = doc.Diff + alsoText(now.Also)
	default:
		if err := f.write(now.Text, s.backup); err != nil {
			return err
		}
		doc.Written, doc.text = true, alsoText(now.Also)+fmt.Sprintf("%s: written; %s\n", f, f.next())
	}
	return s.env.print(doc)
}

// alsoText has a line for each edit that changes other rules.
func alsoText(all []gateway.SideEffect) string {
	var b strings.Builder
	for _, s := range all {
		var rules []string
		for _, r := range s.Rules {
			rules = append(rules, r.String())
		}
		by := map[string]string{"&": "an anchor of the same value (&)", "define": "define"}[s.By]
		fmt.Fprintf(&b, "%s also changes, by %s: %s\n", document.Shown(s.Edit), by, strings.Join(rules, ", "))
	}
	return b.String()
}

// editable is a gateway file that a verb changes in place.
type editable struct {
	name string
	text []byte
}

func openEditable(verb, name string) (f editable, err error) {
	if name == "-" {
		return f, usagef("%s changes a file in place: name one instead of -", verb)
	}
	text, err := gwapply.ReadFile(name)
	return editable{name, text}, err
}

// String is the name for messages.
func (f editable) String() string { return document.Shown(f.name) }

// next is what to do with the file when it is written.
func (f editable) next() string {
	name := f.name
	if diagnose.ShellWord(name) != name {
		name = strconv.Quote(name)
	}
	return "'natkit gateway apply " + name + "' puts it in force; 'natkit gateway run' follows it by itself"
}

// difference is what changes, as diff -u writes it; empty where nothing does.
func (f editable) difference(text []byte) string {
	all := string(diff.Diff(f.String(), f.text, f.String()+" (changed)", text))
	_, all, _ = strings.Cut(all, "\n") // "diff", with both names
	return all
}

// write replaces the file, and keeps the former one beside it on request.
func (f editable) write(text []byte, backup bool) error {
	if backup {
		if err := writeWhole(f.name+"~", 0o600, disk.Text(f.text)); err != nil {
			return err
		}
	}
	return f.writing(disk.Update(f.name, f.text, text))
}

func (f editable) writing(err error) error { return writing(f.String(), err) }

// newlyRefused are the refused findings of a kind of which the file had fewer before.
func (f editable) newlyRefused(now []gateway.Finding) (news []gateway.Finding) {
	more := map[string]int{}
	count := func(all []gateway.Finding, n int) {
		for _, f := range all {
			if f.Severity == gateway.Refuse {
				more[f.ID] += n
			}
		}
	}
	if file, err := gateway.ParseWith(disk.Files{}, f.name, f.text); err == nil {
		count(gateway.Check(file, gateway.Facts{}), -1)
	}
	count(now, 1)
	for _, f := range now {
		if f.Severity == gateway.Refuse && more[f.ID] > 0 {
			news = append(news, f)
		}
	}
	return news
}

// serviceFile is the file of natkit-gateway.service.
const serviceFile = "/etc/natkit/gateway.yaml"

// gatewayEdit is the verb gateway edit.
type gatewayEdit struct {
	env *Env
	target
	confirm time.Duration
}

func newGatewayEdit(env *Env) *cobra.Command {
	e := &gatewayEdit{env: env}
	cmd := &cobra.Command{
		Use:   "edit [FILE]",
		Short: "edit a gateway file in an editor; check, show the plan, write and apply",
		Long: `Open an editor ($VISUAL, $EDITOR, or editor, vi, nano) on a copy of the file, by default
that of natkit-gateway.service, /etc/natkit/gateway.yaml. Then check it against this host,
show what it would change, and ask: edit again, write it and apply it, write it without
applying it, or leave the file as it is. What does not parse, or 'natkit gateway check'
newly refuses, is not written.

A copy that is left is kept, and its name printed. sudo keeps the variables of the editor
with --preserve-env=VISUAL,EDITOR. Requires a terminal; 'natkit gateway set' does not.

Exit codes: 0 ok, also if left, 1 error, 2 usage, or no terminal, 3 refused by apply.`,
		Example: `  sudo natkit gateway edit
  sudo --preserve-env=VISUAL,EDITOR natkit gateway edit gateway.yaml --confirm 60s`,
		ValidArgsFunction: completeYAML,
	}
	e.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error {
		return e.run(ctx, ns, cmp.Or(strings.Join(args, ""), serviceFile))
	})
	cmd.Flags().Var(period(&e.confirm, minConfirm, maxConfirm), "confirm", "roll back after this time unless it is confirmed: seconds or 2m, …")
	return cmd
}

func (e *gatewayEdit) run(ctx context.Context, ns *netns.Handle, name string) error {
	if !e.env.StdinTerminal || !e.env.StdoutTerminal {
		return usagef("stdin and stdout must be a terminal; 'natkit gateway set' changes values of a file without one")
	}
	f, err := openEditable("edit", name)
	if errors.Is(err, fs.ErrNotExist) && name == serviceFile {
		return fmt.Errorf("%w; 'natkit gateway apply FILE --persist' makes it, or name another file", err)
	}
	if err != nil {
		return err
	}
	if err := disk.MayUpdate(name); err != nil {
		return f.writing(err)
	}
	editor, err := findEditor(e.env.Getenv)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "natkit-edit-")
	if err != nil {
		return err
	}
	s := &editing{gatewayEdit: e, ns: ns, former: f, editor: editor, copy: filepath.Join(dir, filepath.Base(name))}
	if err = os.WriteFile(s.copy, f.text, 0o600); err == nil {
		err = s.untilDone(ctx)
	}
	if !s.kept {
		os.RemoveAll(dir)
	}
	return err
}

// findEditor returns the user's editor, as a command of the shell.
func findEditor(getenv func(string) string) (string, error) {
	for _, variable := range []string{"VISUAL", "EDITOR"} {
		if editor := getenv(variable); strings.TrimSpace(editor) != "" {
			return editor, nil
		}
	}
	for _, editor := range []string{"editor", "vi", "nano"} {
		if _, err := exec.LookPath(editor); err == nil {
			return editor, nil
		}
	}
	return "", usagef("there is no editor: set VISUAL or EDITOR to its command")
}

// editing is the course of an edit.
type editing struct {
	*gatewayEdit
	ns           *netns.Handle
	former       editable
	text         []byte
	editor, copy string
	// kept: the copy is not removed.
	kept bool
	// interrupts are Ctrl-C: while the editor runs they are its own.
	interrupts chan os.Signal
}

func (s *editing) untilDone(ctx context.Context) error {
	s.interrupts = make(chan os.Signal, 1)
	signal.Ignore(os.Interrupt) // takes it from the handler that would end natkit
	signal.Notify(s.interrupts, os.Interrupt)
	for {
		if err := s.edit(); err != nil {
			return s.leave(err)
		}
		if bytes.Equal(s.text, s.former.text) {
			return s.env.say("%s: nothing was changed\n", s.former)
		}
		again, err := s.step(ctx)
		if err != nil || !again {
			return err
		}
	}
}

// edit runs the editor on the copy and reads it.
func (s *editing) edit() (err error) {
	cmd := exec.Command("sh", "-c", s.editor+` "$1"`, "sh", s.copy)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.env.Stdin, s.env.Stdout, s.env.Stderr
	err = cmd.Run()
	select {
	case <-s.interrupts:
	default:
	}
	if err != nil {
		return fmt.Errorf("edit: the editor %q: %w", s.editor, err)
	}
	s.text, err = gwapply.ReadFile(s.copy)
	return err
}

// step shows what the copy is, asks, and does what is answered. It reports whether to edit again.
func (s *editing) step(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.interrupts:
			cancel()
		case <-ctx.Done():
		}
	}()
	choices, err := s.look(ctx)
	if err != nil {
		return false, s.leave(err)
	}
	switch answer, err := s.choose(ctx, choices); {
	case err != nil || answer == toLeave:
		return false, s.leave(err)
	case answer == toEdit:
		return true, nil
	case answer == toSave:
		return false, s.write(s.former.next())
	}
	return false, s.apply(ctx)
}

// What may be done with a copy. The first letter chooses it.
const (
	toEdit  = "edit again"
	toApply = "apply"
	toSave  = "save without applying"
	toLeave = "leave"
)

// look checks the copy, shows its findings and the plan, and returns what may be done with it.
func (s *editing) look(ctx context.Context) ([]string, error) {
	bad := []string{toEdit, toLeave}
	complain := func(err error) {
		fmt.Fprintf(s.env.Stderr, "natkit: %s\n", said(err))
		var syntax *document.SyntaxError
		if errors.As(err, &syntax) && syntax.Excerpt != "" {
			fmt.Fprintln(s.env.Stderr, syntax.Excerpt)
		}
	}
	file, err := gateway.ParseWith(disk.Files{}, s.former.name, s.text)
	if err != nil {
		complain(err)
		return bad, nil
	}
	if news := s.former.newlyRefused(gateway.Check(file, gateway.Facts{})); len(news) > 0 {
		return bad, report.GatewayFindings(s.env.Stdout, s.env.style(), s.former.name, news)
	}
	saved := []string{toEdit, toSave, toLeave}
	h, err := gatewayHost(s.env, s.ns)
	if err != nil {
		return nil, err
	}
	doc, err := previewDocument(ctx, h, gwapply.Wish{Name: s.former.name, Text: s.text, PID: os.Getpid(), Origin: gwapply.Origin})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil: // without privilege, for one
		complain(err)
		return saved, nil
	case doc.Refused:
		return saved, s.env.print(doc)
	}
	return []string{toEdit, toApply, toSave, toLeave}, s.env.print(doc)
}

// choose asks until one of the choices is answered, by its first letter or more of it.
func (s *editing) choose(ctx context.Context, choices []string) (string, error) {
	var letters []string
	for _, c := range choices {
		letters = append(letters, c[:1])
	}
	for {
		fmt.Fprintf(s.env.Stderr, "%s? [%s] ", strings.Join(choices, ", "), strings.Join(letters, "/"))
		answer, err := s.env.line(ctx)
		if err != nil { // no answer has ended the line of the question
			fmt.Fprintln(s.env.Stderr)
		}
		if errors.Is(err, io.EOF) {
			return toLeave, nil
		}
		if err != nil {
			return "", err
		}
		for _, c := range choices {
			if answer != "" && strings.HasPrefix(c, strings.ToLower(answer)) {
				return c, nil
			}
		}
	}
}

func (s *editing) write(next string) error {
	if err := s.former.write(s.text, false); err != nil {
		return s.leave(err)
	}
	return s.env.say("%s: written; %s\n", s.former, next)
}

// apply writes the file and applies it; a service that has it does so itself.
func (s *editing) apply(ctx context.Context) error {
	h, err := gatewayHost(s.env, s.ns)
	if err != nil {
		return s.leave(err)
	}
	if service, there := h.Service(); there && s.former.name == serviceFile {
		return s.write(service.String() + " runs here and applies it")
	}
	if err := s.write("it is being applied"); err != nil || s.kept {
		return err
	}
	f := gatewayApply{env: s.env, target: s.target, changeFlags: changeFlags{yes: true, confirm: s.confirm}, agreed: true}
	return f.run(ctx, s.ns, []string{s.former.name})
}

// leave ends the edit with the file as it is. The copy is kept where it has changes.
func (s *editing) leave(err error) error {
	if now, e := gwapply.ReadFile(s.copy); e == nil && !bytes.Equal(now, s.former.text) {
		s.kept = true
		s.env.note("%s is not changed; your copy is %s", s.former, s.copy)
	}
	if errors.Is(err, context.Canceled) {
		return errCutShort
	}
	return err
}
